"""The supervisor: owns the other parts and passes between them what they have to say.

    start    schema ─▶ owner ─▶ workers ─▶ loops
    loops    fetcher (claims) · finisher (writes) · heart (lease, news) · listener · watchdog
    stop     no more claims ─▶ drain ─▶ release the rest ─▶ write ─▶ leave

No user code runs in here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from typing import Any, Final

from fleet.lifecycle import Released
from fleet.model import OwnerId, Seconds, TaskId
from fleet.settings import RunSettings
from fleet.store import beats, claims, migrations
from fleet.store.beats import Told
from supervisor.abilities import Abilities
from supervisor.beat import Heart
from supervisor.link import Disconnected, Door, Link
from supervisor.listener import Listener
from supervisor.roster import Roster, Site
from supervisor.sweep import Watch, take_over
from supervisor.tasks import Tasks
from supervisor.traffic import Traffic
from supervisor.watchdog import Watchdog

_log: Final = logging.getLogger("fleet.supervisor")

HOUSEKEEPING: Final[Seconds] = 20.0
MAINTENANCE: Final[Seconds] = 600.0
LAST_WRITES: Final[Seconds] = 5.0


class Supervisor:
    """One host's supervisor."""

    def __init__(self, settings: RunSettings, site: Site) -> None:
        self.settings = settings
        self.site = site
        self.state = "starting"
        self.owner = OwnerId(0)
        self._stop = asyncio.Event()
        self._stop_now = asyncio.Event()
        self._doubt = False
        self._acknowledged: set[int] = set()
        self._watch = Watch()
        self._tasks = Tasks(self.stop)
        self._connect_parts()

    def _connect_parts(self) -> None:
        door, url, own = Door(), self.site.url, self.settings.supervisor
        self.claiming = Link(url, "claims", door, settings=claims.SETTINGS)
        self.writing = Link(url, "writes", door, settings=claims.SETTINGS)
        self.beating = Link(url, "beat", door, timeout=max(own.lease / 3, 1.0))
        listen = own.listen_url.url if own.listen_url else url
        self.listening = Link(listen, "listen", door, timeout=5.0)
        self.abilities = Abilities()
        self.traffic = Traffic(
            self.claiming,
            self.writing,
            self._tasks,
            self.abilities,
            batch=self.settings.fetch.batch,
            error_delay=self.settings.fetch.error_delay,
            on_doubt=self._in_doubt,
        )
        self.roster = Roster(self.settings, self.site, self.traffic, self.writing, self._tasks)
        self.heart = Heart(
            self.beating,
            every=self.settings.fetch.empty_delay,
            lease=own.lease,
            describe=self._describe,
            on_told=self._told,
            on_lost=self._lost_lease,
        )
        self.listener = Listener(self.listening, self._news, self._after_gap)
        self.watchdog = Watchdog(
            self.roster.children,
            self.abilities.step,
            self.roster.limits,
            boot_timeout=own.boot_timeout,
        )

    # ── start ───────────────────────────────────────────────────────────────────────────────────

    async def run(self) -> None:
        """Run until told to stop, then drain."""
        await migrations.require(await self.beating.connection())
        await self._become_owner()
        for loop in (
            self.heart.run,
            self.heart.guard,
            self.traffic.finisher.run,
            self.traffic.fetcher.run,
            self.listener.run,
            self.watchdog.run,
            self._keep_house,
        ):
            self._tasks.start(loop())
        self.roster.open()
        self.state = "running"
        try:
            await self._stop.wait()
            await self._drain()
        finally:
            await self._leave()

    async def _become_owner(self) -> None:
        lease = self.settings.supervisor.lease
        self.owner = await beats.register(self.beating, self.site.host, os.getpid(), lease)
        self.traffic.belongs_to(self.owner)
        self.roster.owner = self.owner
        self.heart.begin(self.owner)

    def reload(self, settings: RunSettings) -> None:
        """Take over a new configuration, live."""
        self.settings = settings
        self.roster.reload(settings)

    # ── stop ────────────────────────────────────────────────────────────────────────────────────

    def stop(self) -> None:
        """Drain and end; the second time, end now."""
        if self._stop.is_set():
            self._stop_now.set()
        self._stop.set()

    async def _drain(self) -> None:
        self.state = "draining"
        self.traffic.draining = self.roster.closed = True
        self.traffic.fetcher.stop()
        self.heart.hurry()
        for child in self.roster.children():
            child.channel.send("return", list(child.held))
            child.channel.send("drain")
        for crew in self.traffic.crews.values():
            self.traffic.give_back(list(crew.alone))
            crew.alone.clear()
        await self._let_finish(self.settings.supervisor.drain_timeout)
        for child in list(self.roster.children()):
            if child.held:
                child.verdicts |= dict.fromkeys(child.held, Released())
                child.kill("drain: its time was up")
            else:
                child.retire()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_WRITES):
                while any(True for _ in self.roster.children()):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                await self.traffic.finisher.emptied()

    async def _let_finish(self, patience: Seconds) -> None:
        """Wait until no child has anything left, for as long as the drain may take."""
        deadline = time.monotonic() + patience
        while any(child.held for child in self.roster.children()):
            left = deadline - time.monotonic()
            if left <= 0 or self._stop_now.is_set():
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(left, 0.05)):
                    await self._stop_now.wait()

    async def _leave(self) -> None:
        self.state = "stopped"
        self.roster.closed = True
        for child in self.roster.children():
            child.kill("drain: the supervisor ends")
        await self._tasks.cancel()
        with contextlib.suppress(Disconnected, TimeoutError):
            async with asyncio.timeout(2):
                # Whoever still holds something keeps its row: the others take it over by that.
                if not await claims.held(self.writing, self.owner):
                    await beats.forget(self.beating, self.owner)
                for shutdown in self._acknowledged:
                    await beats.acknowledge(self.beating, shutdown, self.owner, "down")
        for link in (self.claiming, self.writing, self.beating, self.listening):
            link.drop()
        self.roster.spawner.stop_helpers()

    # ── the beat and the news ───────────────────────────────────────────────────────────────────

    def _describe(self) -> tuple[str, list[Any], list[str]]:
        workers = [
            {
                "name": child.orders.title,
                "pid": child.pid,
                "state": child.state,
                "running": sorted(
                    f"{child.held[r.task_id].claim.job}.{child.held[r.task_id].claim.step}"
                    for r in child.running()
                )[:20],
            }
            for child in self.roster.children()
        ]
        queues = {line.queue for line in self.traffic.fetcher.lines.values()}
        return self.state, workers, sorted(queues)

    async def _told(self, told: Told) -> None:
        for queue in told.ready:
            self.traffic.fetcher.wake(queue)
        for task in told.cancel:
            self._cancel(task)
        for line in self.traffic.fetcher.lines.values():
            was, line.paused = line.paused, bool(told.queues.get(line.queue, {}).get("paused"))
            if was and not line.paused:
                self.traffic.fetcher.due(line)
        for command in told.shutdown:
            await self._command(command)
        for owner in self._watch.silent(told.owners, time.monotonic(), self.beating.connects):
            with contextlib.suppress(Disconnected):
                policy = self.abilities.policy
                await take_over(self.writing, OwnerId(owner), policy, self.site.host)
        if self._doubt:
            with contextlib.suppress(Disconnected):
                await self.traffic.reconcile()
                self._doubt = False

    async def _command(self, command: dict[str, Any]) -> None:
        if command["host"] not in (None, self.site.host) or command["queue"] is not None:
            return
        if command["id"] not in self._acknowledged:
            self._acknowledged.add(command["id"])
            _log.info("told to shut down (request %s)", command["id"])
            with contextlib.suppress(Disconnected):
                await beats.acknowledge(self.beating, command["id"], self.owner, "draining")
            self.stop()

    def _news(self, channel: str, payload: str) -> None:
        if channel == "fleet_wake":
            self.traffic.fetcher.wake(payload)
        elif channel == "fleet_cancel":
            self._cancel(int(payload))
        else:
            self.heart.hurry()

    def _after_gap(self) -> None:
        for line in self.traffic.fetcher.lines.values():
            self.traffic.fetcher.due(line)
        self.heart.hurry()

    def _cancel(self, task: TaskId) -> None:
        for child in self.roster.children():
            if task in child.held and task not in self.watchdog.cancelled:
                self.watchdog.cancelled[task] = time.monotonic()
                child.channel.send("cancel", [task])

    def _in_doubt(self) -> None:
        self._doubt = True
        self.heart.hurry()

    async def _lost_lease(self, why: str) -> None:
        """Stop every worker at once: somebody else may be given their tasks. Then begin anew."""
        _log.error("%s: all workers are stopped, and this host starts again as a new owner", why)
        self.traffic.drop_everything()
        for child in list(self.roster.children()):
            child.kill("lease: it was lost")
        while True:
            try:
                await self._become_owner()
            except Disconnected:
                await asyncio.sleep(0.1)
            else:
                return

    async def _keep_house(self) -> None:
        maintained = 0.0
        while True:
            await asyncio.sleep(HOUSEKEEPING)
            await self.roster.register()
            if time.monotonic() - maintained > MAINTENANCE:
                with contextlib.suppress(Disconnected):
                    await beats.maintain(self.writing)
                    maintained = time.monotonic()
