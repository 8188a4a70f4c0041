"""What ``fleet run`` calls: from settings to a supervisor that runs, and its signals.

Handlers only tell the supervisor; it acts. What is wrong before the start is raised as one of
Fleet's errors, and nothing has been started then.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import re
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Final

import asyncpg
import setproctitle
import uvloop

from fleet import config
from fleet.config import Settings, mask
from fleet.database import located
from fleet.errors import ConfigError, DatabaseUnavailable, FleetError
from fleet.settings import Address, RunSettings, run_settings
from fleet.store.control import overrides
from supervisor.cpus import cpus
from supervisor.link import Disconnected
from supervisor.metrics import Metrics
from supervisor.orphans import adopt
from supervisor.plan import strays
from supervisor.probes import Probes, readiness
from supervisor.roster import Site
from supervisor.summary import dump, in_words, summary
from supervisor.supervisor import Supervisor

_log: Final = logging.getLogger("fleet.run")

# Of [supervisor], [fetch] and [telemetry]; what queues and policies say is all live.
_LIVE: Final = frozenset(
    {"processes", "concurrency", "max_memory", "max_tasks", "drain_timeout", "balance"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What the command line says."""

    host: str
    folder: Path
    app: str | None = None
    file: Path | None = None
    database_url: str | None = None
    flags: Mapping[str, object] = field(default_factory=dict)

    def read(self) -> tuple[Settings, RunSettings]:
        """Read the file and the environment, now."""
        found = config.load(self.folder, file=self.file)
        return found, run_settings(found.tables, overrides=self.flags)

    def application(self, found: Settings) -> str:
        """Return the application that is named, or say how to name one."""
        named = self.app or found.app
        if named is None:
            raise ConfigError(
                "app",
                None,
                "which application? Write: fleet run shop.jobs:app, or FLEET_APP=shop.jobs:app, "
                'or in fleet.toml: app = "shop.jobs:app"',
            )
        if not re.fullmatch(r"[\w.]+:[\w.]+", named):
            raise ConfigError("app", named, 'must be module:attribute, such as "shop.jobs:app"')
        return named


def launch(told: Launch) -> None:
    """Run until told to stop."""
    began = time.monotonic()
    found, settings = told.read()
    app = told.application(found)
    with located(told.database_url, file=told.file) as url:
        site = Site(app=app, path=(str(found.root),), url=url, host=told.host, cpus=cpus())
        setproctitle.setproctitle(f"fleet: supervisor {told.host}")
        uvloop.run(_serve(told, settings, site, began))


async def _serve(told: Launch, settings: RunSettings, site: Site, began: float) -> None:
    supervisor = Supervisor(settings, site)
    metrics = Metrics(supervisor)
    probes = Probes(supervisor, metrics)
    http = settings.supervisor.http
    address = await probes.open(http) if http else None
    _listen_to_signals(told, supervisor)
    supervisor.on_learnt = lambda: _warn(supervisor)
    beside = [asyncio.create_task(_tell(supervisor, address, began))]
    if os.getpid() == 1:
        beside.append(asyncio.create_task(adopt(supervisor)))
    try:
        await supervisor.run()
    except Disconnected as error:
        raise DatabaseUnavailable(mask(site.url), str(error).rstrip(".")) from error
    finally:
        for task in beside:
            task.cancel()
        metrics.close()
        await probes.close()
    if supervisor.failed:
        raise FleetError("a part of the supervisor failed, and it has drained: see its log")
    _log.info("stopped")


# ── signals ──────────────────────────────────────────────────────────────────────────────────────


def _listen_to_signals(told: Launch, supervisor: Supervisor) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _stop, supervisor, number)
    loop.add_signal_handler(signal.SIGHUP, _reload, told, supervisor)
    loop.add_signal_handler(signal.SIGUSR1, dump, supervisor)
    # Below Python, so that a loop that hangs shows its stack too; ours follows if it does not.
    faulthandler.register(signal.SIGUSR1, all_threads=True, chain=True)


def _stop(supervisor: Supervisor, number: signal.Signals) -> None:
    again = supervisor.stopping
    _log.info("%s: %s", number.name, "ending now" if again else "draining; once more ends it now")
    supervisor.stop()


def _reload(told: Launch, supervisor: Supervisor) -> None:
    before = supervisor.settings
    try:
        found, settings = told.read()
        supervisor.reload(settings)
    except FleetError as error:
        _log.error("the configuration is not reloaded, the old one stays: %s", error)
        return
    _log.info("the configuration is reloaded")
    app = [] if (told.app or found.app) == supervisor.site.app else ["app"]
    for key in app + _needs_restart(before, settings):
        _log.warning("%s has changed, which takes effect at the next start", key)


def _needs_restart(old: RunSettings, new: RunSettings) -> list[str]:
    return [
        f"{table}.{each.name}"
        for table in ("supervisor", "fetch", "telemetry")
        for each in fields(getattr(old, table))
        if each.name not in _LIVE
        and getattr(getattr(old, table), each.name) != getattr(getattr(new, table), each.name)
    ]


# ── what it says ─────────────────────────────────────────────────────────────────────────────────


async def _tell(supervisor: Supervisor, address: Address | None, began: float) -> None:
    await supervisor.started.wait()
    try:
        found = await overrides(supervisor.beating)
    except (Disconnected, asyncpg.PostgresError):
        found = []
    told = summary(supervisor, address, found)
    _log.info("starting", extra={**told, "text": in_words(told)})
    await supervisor.roster.settled.wait()
    ready = readiness(supervisor)
    workers, unhealthy, took = (
        ready["workers"]["ready"],
        ready["unhealthy"],
        time.monotonic() - began,
    )
    extra = {"took": round(took, 3), "workers": workers, "unhealthy": unhealthy}
    if unhealthy:
        _log.warning("ready, but for %s", ", ".join(sorted(unhealthy)), extra=extra)
    else:
        words = f"Ready in {took:.1f}s: {workers} worker{'s' * (workers != 1)}"
        _log.info("ready", extra={**extra, "text": words})


def _warn(supervisor: Supervisor) -> None:
    """Say what does not fit together, now that the application's jobs are known."""
    abilities, settings = supervisor.abilities, supervisor.settings
    for stray in strays(settings, abilities.queues):
        _log.warning("%s", stray)
    patience = settings.supervisor.drain_timeout
    long = sorted(
        f"{name.replace('/', '.')} ({step['timeout']:g}s)"
        for name, step in abilities.steps.items()
        if step["timeout"] > patience and not name.endswith("/")
    )
    if long:
        more = f" and {len(long) - 5} more" if len(long) > 5 else ""
        _log.warning(
            "%s%s may run for longer than a drain waits (supervisor.drain_timeout, %gs): a deploy "
            "may cut them off, and they run again from the start of the step",
            ", ".join(long[:5]),
            more,
            patience,
        )
