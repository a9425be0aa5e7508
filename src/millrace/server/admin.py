"""The admin port of a node: `/healthz` for probes and `/metrics` for Prometheus."""

import os
from collections.abc import Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from millrace.errors import AddressInUse
from millrace.runtime.transport import parse_address

Health = Callable[[], dict[str, object]]


class AdminServer:
    def __init__(self, registry: CollectorRegistry, health: Health) -> None:
        self._registry = registry
        self._health = health
        self._runner: web.AppRunner | None = None
        self.address = ""

    async def start(self, address: str) -> None:
        host, port = parse_address(address)
        app = web.Application()
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/metrics", self._metrics)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port)
        try:
            await site.start()
        except OSError as error:
            await self._runner.cleanup()
            raise AddressInUse(
                f"admin port {address} cannot be used ({error.strerror}): "
                "another process has it; choose another in node.admin"
            ) from error
        self.address = f"{host}:{self._runner.addresses[0][1]}"

    async def close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _healthz(self, _: web.Request) -> web.Response:
        health = {"process": os.getpid(), **self._health()}
        return web.json_response(health, status=200 if health["status"] == "ok" else 503)

    async def _metrics(self, _: web.Request) -> web.Response:
        body = generate_latest(self._registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})
