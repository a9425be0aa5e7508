"""The import table of ARCHITECTURE.md, enforced."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "millrace"

WORDS = {"types", "limits", "errors", "config", "lsn"}
CORE = WORDS | {"core"}
MAY_IMPORT = {
    "types": set(),
    "lsn": {"types"},
    "limits": set(),
    "errors": set(),
    "config": WORDS,
    "core": WORDS,
    "codec": CORE,
    "store": CORE | {"codec"},
    "runtime": CORE | {"codec"},
    "meta": CORE | {"codec"},
    "server": CORE | {"codec", "store", "runtime", "meta"},
    "client": CORE | {"codec", "runtime", "meta"},
    "local": WORDS,
    "spark": CORE | {"client", "codec"},
    "scenario": CORE | {"codec", "store", "server"},
    "sim": CORE | {"codec", "store", "server", "meta", "scenario"},
    "demo": CORE | {"client", "local", "meta", "runtime", "spark"},
    "cli": CORE
    | {"client", "codec", "local", "server", "sim", "scenario", "meta", "runtime", "spark"},
}
# What the core may never touch: the outside world and chance.
IMPURE = {
    "asyncio",
    "datetime",
    "io",
    "logging",
    "multiprocessing",
    "os",
    "pathlib",
    "random",
    "secrets",
    "select",
    "signal",
    "socket",
    "subprocess",
    "threading",
    "time",
    "uuid",
}


def imports_of(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            yield node.module
            if node.module == "millrace":
                for alias in node.names:
                    yield f"millrace.{alias.name}"


def part_of(path: Path) -> str:
    relative = path.relative_to(PACKAGE)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def modules() -> list[Path]:
    top = {"__init__.py", "__main__.py"}
    return [
        path
        for path in sorted(PACKAGE.rglob("*.py"))
        if not (path.parent == PACKAGE and path.name in top)
    ]


def test_a_module_imports_only_what_its_layer_may() -> None:
    offenders = []
    for path in modules():
        part = part_of(path)
        forbidden = MAY_IMPORT.keys() - MAY_IMPORT[part] - {part}
        for name in imports_of(path):
            if name.startswith("millrace.") and name.split(".")[1] in forbidden:
                offenders.append(f"{path.relative_to(PACKAGE)}: {part} may not import {name}")
    assert not offenders


def test_core_decides_and_never_acts() -> None:
    """It imports neither the outside world nor chance."""
    offenders = [
        f"{path.relative_to(PACKAGE)} imports {name}"
        for path in sorted((PACKAGE / "core").rglob("*.py"))
        for name in imports_of(path)
        if name.split(".")[0] in IMPURE
    ]
    assert not offenders


def test_every_part_is_in_the_table() -> None:
    assert {part_of(path) for path in modules()} == set(MAY_IMPORT)


def test_the_table_is_in_the_architecture_page() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    for part in MAY_IMPORT:
        assert f"`{part}" in text, f"ARCHITECTURE.md does not mention {part}"
