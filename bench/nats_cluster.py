"""Three NATS servers on free loopback ports, with their files in one directory.

Like against like: `ack="disk"` is held against `sync_interval: always` (every server fsyncs before
it answers), `ack="memory"` against the default (fsync every two minutes).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench.peer import Ack, PeerFailure
from bench.processes import ServerProcess, free_ports, kill_all

SERVERS: Final = 3
# What a server may hold for a reader.  Its default of 64 MiB cuts off a reader of large messages
# that is slower than the server, which a push without flow control soon is.
PENDING_BYTES_MAX: Final = 1024 * 1024 * 1024
_CONFIGURATION: Final = """\
server_name: bench-{index}
listen: 127.0.0.1:{client_port}
max_pending: {pending_bytes}
jetstream {{ store_dir: "{directory}"{sync} }}
cluster {{ name: bench, listen: 127.0.0.1:{cluster_port}, routes: [{routes}] }}
"""


class NatsCluster:
    """Server `i` is named `bench-i` and listens on `ports[i]`, also after a restart."""

    def __init__(self, binary: Path, directory: Path, ack: Ack) -> None:
        self._binary = binary
        self._directory = directory
        self._servers: list[ServerProcess] = []
        ports = free_ports(2 * SERVERS)
        self.ports, cluster_ports = ports[:SERVERS], ports[SERVERS:]
        routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in cluster_ports)
        for index, (port, cluster_port) in enumerate(zip(self.ports, cluster_ports, strict=True)):
            text = _CONFIGURATION.format(
                index=index,
                client_port=port,
                pending_bytes=PENDING_BYTES_MAX,
                cluster_port=cluster_port,
                directory=directory / f"server-{index}",
                sync=", sync_interval: always" if ack is Ack.DISK else "",
                routes=routes,
            )
            self._configuration(index).write_text(text)

    def launch(self) -> None:
        assert not self._servers, "already running"
        for index in range(SERVERS):
            command = [str(self._binary), "--config", str(self._configuration(index))]
            output = self._directory / f"server-{index}.log"
            self._servers.append(ServerProcess(command, output, self._directory))

    def check(self) -> None:
        """Fails at once when a server ended, rather than after a wait for it."""
        for index, server in enumerate(self._servers):
            if not server.is_running:
                lines = (self._directory / f"server-{index}.log").read_text().splitlines()
                raise PeerFailure(f"nats-server {index} ended: {' / '.join(lines[-3:])}")

    def kill(self) -> None:
        kill_all(self._servers)
        self._servers.clear()

    def process_ids(self) -> Sequence[int]:
        return [server.process_id for server in self._servers]

    def _configuration(self, index: int) -> Path:
        return self._directory / f"server-{index}.conf"


def server_index(server_name: str) -> int:
    return int(server_name.rpartition("-")[2])
