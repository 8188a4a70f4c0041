"""GET /healthz, /readyz and /metrics, and nothing else: no token, so nothing that could harm.

/healthz   the loop runs; never asks the database, or an outage would restart every host
/readyz    200 if tasks can run here; else 503, and why
/metrics   Prometheus
"""

from __future__ import annotations

from typing import Any, Final

import orjson
from aiohttp import web

from fleet.errors import ConfigError
from fleet.settings import Address
from supervisor.metrics import Metrics
from supervisor.supervisor import Supervisor

_JSON: Final = "application/json"


class Probes:
    """One small server."""

    def __init__(self, supervisor: Supervisor, metrics: Metrics) -> None:
        self._supervisor = supervisor
        self._metrics = metrics
        self._runner: web.AppRunner | None = None

    async def open(self, address: Address) -> Address:
        """Listen; return where, which port 0 leaves open."""
        app = web.Application()
        for path, handler in (
            ("/healthz", self._healthz),
            ("/readyz", self._readyz),
            ("/metrics", self._show_metrics),
        ):
            app.router.add_get(path, handler)
        # A scrape must not hold up an exit.
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, address.host, address.port).start()
        except OSError as error:
            await self.close()
            raise ConfigError(
                "supervisor.http",
                str(address),
                f"cannot be listened on: {error.strerror or error}. Another port, or "
                f'http = "off", or FLEET_SUPERVISOR_HTTP=…',
            ) from None
        return Address(address.host, self._runner.addresses[0][1])

    async def close(self) -> None:
        """Listen no more."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        found = readiness(self._supervisor)
        status = 200 if found["ready"] else 503
        body = orjson.dumps(found, option=orjson.OPT_APPEND_NEWLINE)
        return web.Response(body=body, status=status, content_type=_JSON)

    async def _show_metrics(self, _: web.Request) -> web.Response:
        body, kind = await self._metrics.text()
        return web.Response(body=body, headers={"Content-Type": kind})


def readiness(supervisor: Supervisor) -> dict[str, Any]:
    """Return whether tasks can run here, and if not, why not."""
    children = list(supervisor.roster.children())
    ready = sum(child.state == "ready" for child in children)
    crews = supervisor.traffic.crews
    unhealthy = {name: crew.trouble for name, crew in crews.items() if crew.trouble}
    why = []
    if supervisor.state != "running":
        why.append(f"it is {supervisor.state}")
    if not supervisor.beating.connected or supervisor.heart.time_left <= 0:
        why.append("the database does not answer")
    if not ready:
        why.append("no worker is ready")
    if unhealthy and len(unhealthy) == len(crews):
        why.append("every pool of workers is unhealthy")
    return {
        "ready": not why,
        "why": why,
        "state": supervisor.state,
        "owner": supervisor.owner,
        "workers": {"ready": ready, "all": len(children)},
        "unhealthy": unhealthy,
        "news": "listening" if supervisor.listener.hears else "polling",
    }
