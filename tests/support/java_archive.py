"""An archive of Spark's classes, which halves what the start of a Java costs.

Java calls it a dynamic archive for class data sharing.  It is made by a run of
`java_archive_job.py`, once for each Java and each PySpark, and kept for later test runs.

I1  An archive is complete or absent: Java crashes on a part of one.
I2  Its name says what it was made from: the same Java, the same class path, the same job.
I3  Tests work without one.  When none can be made, what was said is kept, and it is not tried
    again until that file is removed.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from millrace.spark.java import probe

ROOT = Path(__file__).resolve().parents[2]
JOB = Path(__file__).with_name("java_archive_job.py")
MAKING_TIMEOUT_S = 200.0
# Spark's class path names one file twice.  Java 21 then refuses the archive that it has made
# itself.  Such a Java has an archive of its own classes alone.
JAVA_MAX = 17
NO_CONF = "no-conf"  # On the class path, where folders must be empty.
# What would end an option, or a path in it.
BORDERS = frozenset(" \t\n\"'\\:")

Run = tuple[tuple[str, ...], Mapping[str, str]]  # A command and its environment.


def archive_options(env: Mapping[str, str], options: str, folder: Path) -> str | None:
    """What to start Java with besides `options`, in an environment with `archive_environment`.

    `env` has the JAVA_HOME and SPARK_HOME of all that are started so."""
    if "SPARK_HOME" not in env or BORDERS & set(str(folder)):
        return None
    archives: list[Path] = []
    with contextlib.suppress(OSError):
        archives = _archives(env, options, folder)
    if not archives:
        return None
    shared = ":".join(map(str, archives))
    # An archive that is refused is told on standard output, which is the tests'.
    return f"-XX:SharedArchiveFile={shared} -Xlog:disable -Xlog:all=warning:stderr"


def archive_environment(folder: Path) -> dict[str, str]:
    return {"SPARK_CONF_DIR": str(folder / NO_CONF)}


def _digest(env: Mapping[str, str], options: str) -> str:
    """Keeps I2.  Java itself looks at the sizes and times of its class path."""
    java, home = Path(env["JAVA_HOME"]), Path(env["SPARK_HOME"])
    files = (java / "lib" / "server" / "libjvm.so", *sorted((home / "jars").iterdir()))
    status = ((file, file.stat()) for file in files)
    parts = (
        options,
        JOB.read_text(),
        *(f"{file} {seen.st_size} {seen.st_mtime_ns}" for file, seen in status),
    )
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _archives(env: Mapping[str, str], options: str, folder: Path) -> list[Path]:
    """One of Java's own classes, if Java was installed without it, and on top of it Spark's."""
    (folder / NO_CONF).mkdir(exist_ok=True)
    home = Path(env["JAVA_HOME"])
    java = probe(home / "bin" / "java")
    name = _digest(env, options)
    base, archive = folder / f"{name}-base.jsa", folder / f"{name}.jsa"
    wanted = [] if (home / "lib" / "server" / "classes.jsa").exists() else [base]
    if java is not None and java.version <= JAVA_MAX:
        wanted.append(archive)
    failure = folder / f"{name}-failed.txt"
    with _alone(folder / f"{name}.lock"):
        if base in wanted and not base.exists() and not failure.exists():
            dump = (str(home / "bin" / "java"), "-Xshare:dump")
            _make(base, failure, lambda to: ((*dump, f"-XX:SharedArchiveFile={to}"), env))
        if archive in wanted and not archive.exists() and not failure.exists():
            below = f" -XX:SharedArchiveFile={base}" if base in wanted else ""
            with _without_work(Path(env["SPARK_HOME"])):
                _make(archive, failure, lambda to: _job(env, options + below, to))
    return wanted if all(path.exists() for path in wanted) else []


def _job(env: Mapping[str, str], options: str, to: Path) -> Run:
    command = (sys.executable, "-m", "tests.support.java_archive_job", str(to.parent))
    submit = {"SPARK_SUBMIT_OPTS": f"{options} -XX:ArchiveClassesAtExit={to}"}
    return command, {**env, **archive_environment(to.parents[1]), **submit}


def _make(archive: Path, failure: Path, run: Callable[[Path], Run]) -> None:
    """Keeps I1: beside its place, and renamed into it."""
    with tempfile.TemporaryDirectory(dir=archive.parent, ignore_cleanup_errors=True) as draft:
        made, output = Path(draft, archive.name), Path(draft, "output.txt")
        if _is_done(*run(made), output) and made.exists():
            made.rename(archive)
        else:
            output.rename(failure)


def _is_done(command: tuple[str, ...], env: Mapping[str, str], output: Path) -> bool:
    with (
        output.open("ab") as file,
        subprocess.Popen(
            command,
            env=env,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        ) as process,
    ):
        try:
            return process.wait(MAKING_TIMEOUT_S) == 0
        except subprocess.TimeoutExpired:
            file.write(b"It took too long.\n")
            return False
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


@contextlib.contextmanager
def _without_work(home: Path) -> Iterator[None]:
    """A worker inside a driver leaves this folder in SPARK_HOME."""
    work = home / "work"
    is_there = work.exists()
    try:
        yield
    finally:
        if not is_there:
            shutil.rmtree(work, ignore_errors=True)


@contextlib.contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Other test processes wait here and find what the first has made."""
    with lock.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
