"""Programs of Debian packages that tests use as peers which nobody here wrote."""

import os
import shutil
import subprocess

INSTALL_TIMEOUT_S = 240


class ToolMissing(Exception):
    """It is not installed, and cannot be installed from here."""


def find_tool(name: str, package: str) -> str:
    """Its path.  Installs the package where that can be done: as root, where there is apt-get."""
    found = shutil.which(name)
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        _install(package)
        found = shutil.which(name)
    if found is None:
        raise ToolMissing(
            f"these tests need `{name}`: install the Debian package `{package}`"
            f" (apt-get install {package}), or put the program on PATH"
        )
    return found


def _install(package: str) -> None:
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update"], ["install", "-y", "--no-install-recommends", package]):
        subprocess.run(
            ["apt-get", "-q", *command],
            env=quiet,
            capture_output=True,
            timeout=INSTALL_TIMEOUT_S,
            check=False,  # What is missing afterwards is told by the caller.
        )
