"""`millrace node config`: a configuration file that explains itself."""

from typing import Any, Final, get_args, get_type_hints

import msgspec

from millrace.config import Configuration
from millrace.types import Role

# The settings without a default, and a node that can stand alone.
CHOSEN: Final[dict[str, Any]] = {
    "node.id": 1,
    "node.data": "millrace-1",
    "node.roles": (Role.STORAGE, Role.SEQUENCER, Role.DOCUMENTS, Role.METADATA),
}


def example() -> str:
    """Works as it is for a cluster of one node; settings with their default are commented out."""
    lines = [
        "# Configuration of a Millrace node: `millrace node run FILE`.",
        "# Settings behind `#` have their default.",
    ]
    for section, kind in get_type_hints(Configuration).items():
        lines += ["", f"[{section}]"]
        hints = get_type_hints(kind, include_extras=True)
        for field in msgspec.structs.fields(kind):
            chosen = CHOSEN.get(f"{section}.{field.name}")
            lines.append(f"# {_description(hints[field.name])}")
            if chosen is None:
                lines.append(f"# {field.name} = {_toml(field.default)}")
            else:
                lines.append(f"{field.name} = {_toml(chosen)}")
    return "\n".join(lines) + "\n"


def _description(hint: Any) -> str:
    return next(
        argument.description
        for argument in get_args(hint)[1:]
        if isinstance(argument, msgspec.Meta) and argument.description
    )


def _toml(value: Any) -> str:
    """Strings, numbers and lists are written in TOML as in JSON."""
    return msgspec.json.encode(value).decode()
