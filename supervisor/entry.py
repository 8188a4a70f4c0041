"""What ``fleet run`` calls: from settings to a supervisor that runs, and its signals.

Handlers only tell the supervisor; it acts. What is wrong before the start is raised as one of
Fleet's errors, and nothing has been started then.
"""

from __future__ import annotations

import asyncio
import logging
import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import setproctitle
import uvloop

from fleet import config
from fleet.config import Settings
from fleet.database import located
from fleet.errors import ConfigError
from fleet.settings import RunSettings, run_settings
from supervisor.cpus import cpus
from supervisor.metrics import Metrics
from supervisor.probes import Probes
from supervisor.roster import Site
from supervisor.supervisor import Supervisor

_log: Final = logging.getLogger("fleet.run")


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
    found, settings = told.read()
    app = told.application(found)
    with located(told.database_url, file=told.file) as url:
        site = Site(app=app, path=(str(found.root),), url=url, host=told.host, cpus=cpus())
        setproctitle.setproctitle(f"fleet: supervisor {told.host}")
        uvloop.run(_serve(told, settings, site))


async def _serve(told: Launch, settings: RunSettings, site: Site) -> None:
    supervisor = Supervisor(settings, site)
    probes = Probes(supervisor, Metrics(supervisor))
    listens = None
    if settings.supervisor.http is not None:
        listens = await probes.open(settings.supervisor.http)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, supervisor.stop)
    _log.info("started", extra={"http": str(listens) if listens else None})
    try:
        await supervisor.run()
    finally:
        await probes.close()
