"""A node's configuration file: TOML, every setting documented where it is defined.

`docs/reference/configuration.md` is generated from the descriptions here.
"""

import re
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from millrace.errors import BadConfiguration
from millrace.limits import MIB
from millrace.types import NodeId, Role

NAME_PATTERN: Final = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_UNKNOWN_FIELD: Final = re.compile(r"Object contains unknown field `(.+)`")
_MISSING_FIELD: Final = re.compile(r"Object missing required field `(.+)`")


class NodeSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: Annotated[
        int, Meta(ge=1, le=65_535, description="Number of the node, unique and for ever.")
    ]
    data: Annotated[str, Meta(min_length=1, description="Data directory; made if it is missing.")]
    listen: Annotated[str, Meta(description="host:port of the data protocol.")] = "127.0.0.1:7700"
    advertise: Annotated[
        str,
        Meta(
            description="host:port that others reach it by; empty: as `listen`, which then must "
            "not be every interface."
        ),
    ] = ""
    documents: Annotated[
        str,
        Meta(
            description="host:port of the documents' protocol, for memcached's clients too; empty: "
            "any free port of the host of `listen`."
        ),
    ] = ""
    admin: Annotated[str, Meta(description="host:port of /healthz and /metrics; empty: none.")] = ""
    location: Annotated[
        str, Meta(description="region.dc.cluster.row.rack; copies go to different ones.")
    ] = ""
    roles: Annotated[
        tuple[Role, ...],
        Meta(
            description="Any of storage, sequencer, documents, metadata (hosts the embedded "
            "repository)."
        ),
    ] = (Role.STORAGE, Role.SEQUENCER, Role.DOCUMENTS)


class ClusterSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Annotated[str, Meta(pattern=f"^{NAME_PATTERN}$", description="Name of the cluster.")] = (
        "millrace"
    )
    metadata: Annotated[
        Literal["embedded", "etcd"], Meta(description="Where the metadata repository is.")
    ] = "embedded"
    metadata_address: Annotated[
        str,
        Meta(description="embedded: host:port of the node with the metadata role."),
    ] = ""
    etcd: Annotated[
        tuple[str, ...], Meta(description="etcd: URLs of its members, e.g. http://10.0.0.1:2379.")
    ] = ()
    lease_ttl_ms: Annotated[
        int, Meta(ge=500, le=600_000, description="A silent node counts as dead after this.")
    ] = 4_000
    start_timeout_ms: Annotated[
        int, Meta(ge=100, description="How long a starting node waits for the repository.")
    ] = 30_000


class StoreSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    map_bytes: Annotated[
        int, Meta(ge=4 * MIB, description="Largest size of the data file; it grows as needed.")
    ] = 1 << 40
    tail_buffer_bytes: Annotated[
        int, Meta(ge=MIB, description="Newest blocks kept in memory for readers at the tail.")
    ] = 64 * MIB


class KeeperSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    interval_ms: Annotated[
        int, Meta(ge=10, description="How often the keeper looks after all logs.")
    ] = 500
    retention_interval_ms: Annotated[
        int, Meta(ge=10, description="How often retention is applied.")
    ] = 10_000
    surplus_after_ms: Annotated[
        int, Meta(ge=1_000, description="A copy that no chain needs is dropped after this.")
    ] = 60_000
    rebuild_after_ms: Annotated[
        int,
        Meta(
            ge=100,
            description="Copies of sequenced logs on a node that is dead for so long are made anew "
            "on others.",
        ),
    ] = 1_200_000


class Configuration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    node: NodeSettings
    cluster: ClusterSettings = ClusterSettings()
    store: StoreSettings = StoreSettings()
    keeper: KeeperSettings = KeeperSettings()

    @property
    def node_id(self) -> NodeId:
        return NodeId(self.node.id)

    @property
    def documents_at(self) -> tuple[str, int]:
        """Where the documents' protocol is served; port 0: any that is free."""
        if self.node.documents:
            return parse_address(self.node.documents)
        return parse_address(self.node.listen)[0], 0

    @property
    def hosts_metadata(self) -> bool:
        return Role.METADATA in self.node.roles


def load(path: Path) -> Configuration:
    """The configuration in a file; raises BadConfiguration that says what and where."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise BadConfiguration(f"{path}: cannot be read: {error.strerror}") from error
    return parse(text, str(path))


def parse(text: bytes, name: str) -> Configuration:
    try:
        configuration = msgspec.toml.decode(text, type=Configuration)
    except msgspec.DecodeError as error:
        why = decoder_complaint(error)
        raise BadConfiguration(f"{name}: {why}; see docs/reference/configuration.md") from error
    return validate(configuration, name)


def decoder_complaint(error: Exception) -> str:
    """What a decoder says, for people: which setting, and what is wrong with it."""
    text, _, where = str(error).partition(" - at ")
    place = where.strip("`").removeprefix("$").removeprefix(".")
    if unknown := _UNKNOWN_FIELD.fullmatch(text):
        return f"there is no setting {place + '.' if place else ''}{unknown[1]}"
    if missing := _MISSING_FIELD.fullmatch(text):
        return f"the setting {place + '.' if place else ''}{missing[1]} is missing"
    said = text.replace("`", "").replace("null", "nothing")
    said = said[:1].lower() + said[1:]
    return f"{place}: {said}" if place else said


def validate(configuration: Configuration, name: str) -> Configuration:
    cluster = configuration.cluster
    if cluster.metadata == "etcd" and not cluster.etcd:
        raise BadConfiguration(
            f"{name}: cluster.metadata is etcd: list its members in cluster.etcd"
        )
    if cluster.metadata == "etcd" and configuration.hosts_metadata:
        raise BadConfiguration(f"{name}: the metadata role is for the embedded repository only")
    needs_address = cluster.metadata == "embedded" and not configuration.hosts_metadata
    if needs_address and not cluster.metadata_address:
        raise BadConfiguration(
            f"{name}: set cluster.metadata_address to the node with the metadata role, "
            "or give this node that role"
        )
    _check_addresses(configuration, name)
    return configuration


def parse_address(address: str) -> tuple[str, int]:
    """`host:port`, or `[host]:port` for an IPv6 host."""
    host, colon, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise BadConfiguration(f"address {address!r}: write an IPv6 host as [host]:port")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise BadConfiguration(f"address {address!r} is not host:port, such as 127.0.0.1:7801")
    return host, int(port)


def _check_addresses(configuration: Configuration, name: str) -> None:
    cluster, node = configuration.cluster, configuration.node
    for setting, address in (
        ("node.listen", node.listen),
        ("node.advertise", node.advertise),
        ("node.documents", node.documents),
        ("node.admin", node.admin),
        ("cluster.metadata_address", cluster.metadata_address),
    ):
        try:
            if address or setting == "node.listen":
                parse_address(address)
        except BadConfiguration as error:
            raise BadConfiguration(f"{name}: {setting}: {error}") from error
    if not node.advertise and _is_every_interface(node.listen):
        raise BadConfiguration(
            f"{name}: node.listen is {node.listen!r}, every interface, which is no address that "
            "others can reach: set node.advertise to one, for example 10.0.0.1:7700"
        )
    if node.advertise and (_is_every_interface(node.advertise) or not _port(node.advertise)):
        raise BadConfiguration(
            f"{name}: node.advertise is {node.advertise!r}, which others cannot reach: "
            "give a host and port, for example 10.0.0.1:7700"
        )


def _is_every_interface(address: str) -> bool:
    """0.0.0.0 and [::], however they are written."""
    host, _ = parse_address(address)
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        return False  # A name.


def _port(address: str) -> int:
    return parse_address(address)[1]


def to_toml(configuration: Configuration) -> str:
    """The file that gives this configuration; settings with their default are left out."""
    lines: list[str] = []
    for section in configuration.__struct_fields__:
        settings = getattr(configuration, section)
        chosen = [
            f"{field} = {_toml_value(getattr(settings, field))}"
            for field, default in _defaults(type(settings)).items()
            if getattr(settings, field) != default
        ]
        if chosen:
            lines += [f"[{section}]", *chosen, ""]
    return "\n".join(lines)


def document() -> str:
    """The reference page of all settings, in Markdown."""
    lines = [
        "# Configuration",
        "",
        "<!-- Generated from src/millrace/config.py by `make docs`; do not edit. -->",
        "",
        "`millrace node run FILE` reads one TOML file.",
    ]
    for section, kind in get_type_hints(Configuration).items():
        lines += ["", f"## `[{section}]`", "", "| setting | default | meaning |", "|---|---|---|"]
        hints = get_type_hints(kind, include_extras=True)
        for field, default in _defaults(kind).items():
            shown = "required" if default is msgspec.NODEFAULT else f"`{_toml_value(default)}`"
            lines.append(f"| `{field}` | {shown} | {_description(hints[field])} |")
    return "\n".join(lines) + "\n"


def _defaults(kind: type[msgspec.Struct]) -> dict[str, Any]:
    return {field.name: field.default for field in msgspec.structs.fields(kind)}


def _description(hint: Any) -> str:
    assert get_origin(hint) is Annotated
    for argument in get_args(hint)[1:]:
        if isinstance(argument, Meta) and argument.description:
            return argument.description
    raise AssertionError("every setting has a description")


def _toml_value(value: Any) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_toml_value, value)) + "]"
    if isinstance(value, Role):
        return f'"{value.value}"'
    if isinstance(value, str):
        return msgspec.json.encode(value).decode()
    return str(value).lower() if isinstance(value, bool) else str(value)
