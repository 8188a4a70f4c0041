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
from collections.abc import Callable
from typing import Any, Final

from fleet.lifecycle import Released
from fleet.model import Failure, OwnerId, Seconds, TaskId
from fleet.settings import RunSettings
from fleet.store import beats, claims, migrations
from fleet.store.beats import Told
from supervisor import drain
from supervisor.abilities import Abilities
from supervisor.beat import SAFE, Heart
from supervisor.control import Control
from supervisor.link import Disconnected, Door, Link
from supervisor.listener import Listener
from supervisor.roster import Roster, Site
from supervisor.sweep import Watch, take_over
from supervisor.tasks import Tasks
from supervisor.ticks import Ticks
from supervisor.traffic import Traffic
from supervisor.watchdog import Watchdog

_log: Final = logging.getLogger("fleet.supervisor")

HOUSEKEEPING: Final[Seconds] = 20.0  # a definition not seen for a minute is not live
MAINTENANCE: Final[Seconds] = 600.0
LAST_WRITES: Final[Seconds] = 5.0
SILENCE: Final[Seconds] = 4.0  # of a beat: a cut is noticed within five seconds


class Supervisor:
    """One host's supervisor."""

    def __init__(self, settings: RunSettings, site: Site) -> None:
        self.settings = settings
        self.site = site
        self.state = "starting"
        self.owner = OwnerId(0)
        self.started = asyncio.Event()
        self._stop = asyncio.Event()
        self._stop_now = asyncio.Event()
        self._doubt = False
        self._connects = 0  # again
        self._tidying: asyncio.Task[Any] | None = None
        self._watch = Watch()
        self._tasks = Tasks(self._fail)
        self.failed = False
        self.on_learnt: Callable[[], None] = lambda: None
        self._connect_parts()

    def _connect_parts(self) -> None:
        door, url, own = Door(), self.site.url, self.settings.supervisor
        self.claiming = Link(url, "claims", door, settings=claims.SETTINGS)
        self.writing = Link(
            # An application's open transaction may hold what a step's unique enqueue asks for.
            url,
            "writes",
            door,
            settings={**claims.SETTINGS, "lock_timeout": "1s"},
        )
        patience = min(max(own.lease / 3, 1.0), SILENCE)
        self.beating = Link(url, "beat", door, timeout=patience, pulse=True)
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
            may_run=lambda: self.heart.time_left > 0,
        )
        self.roster = Roster(self.settings, self.site, self.traffic, self.writing, self._tasks)
        self.roster.on_learnt = self._learnt
        self.control = Control(
            self.settings,
            self.roster,
            self.traffic,
            self.beating,
            self._tasks,
            stop=self.stop,
            now=self._stop_now,
        )
        self.heart = Heart(
            self.beating,
            every=self.settings.fetch.empty_delay,
            lease=own.lease,
            describe=self._describe,
            on_told=self._told,
            on_expired=self._lease_expired,
            on_taken=self._taken_over,
        )
        self.traffic.on_deferred = self.heart.expect
        self.ticks = Ticks(
            self.writing,
            self._tasks,
            stale=lambda: self.settings.supervisor.stale_schedules,
            declared_here=lambda: {each["name"] for each in self.abilities.schedules},
            expect=self.heart.expect,
        )
        self.listener = Listener(self.listening, self._news, self._after_gap)
        self.watchdog = Watchdog(
            self.roster.children,
            self.abilities.step,
            self.roster.limits,
            boot_timeout=own.boot_timeout,
        )
        self.roster.on_stir = self.watchdog.stir

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
            self._tasks.start(loop(), vital=True)
        try:
            await self._stop.wait()
            await self._drain()
        finally:
            await self._leave()

    async def _become_owner(self) -> None:
        lease, since = self.settings.supervisor.lease, time.monotonic()
        self.owner = await beats.register(self.beating, self.site.host, os.getpid(), lease)
        self.traffic.belongs_to(self.owner)
        self.roster.owner = self.owner
        self.control.owners.append(self.owner)
        self.heart.begin(self.owner, since)

    def reload(self, settings: RunSettings) -> None:
        """Take over a new configuration, live; ConfigError if it cannot work."""
        self.control.reload(settings)
        self.settings = settings

    # ── stop ────────────────────────────────────────────────────────────────────────────────────

    @property
    def stopping(self) -> bool:
        """Whether it was told to stop."""
        return self._stop.is_set()

    def stop(self) -> None:
        """Drain and end; the second time, end now."""
        if self._stop.is_set():
            self._stop_now.set()
        self._stop.set()

    def _learnt(self) -> None:
        self.heart.hurry()  # others want to know which queues are served here
        self.on_learnt()

    def _fail(self) -> None:
        self.failed = True
        self.stop()

    async def _drain(self) -> None:
        self.state = "draining"
        self.traffic.draining = self.roster.closed = True
        self.traffic.fetcher.stop()
        self.heart.hurry()
        drain.tell(self.roster.children())
        for crew in self.traffic.crews.values():
            self.traffic.give_back(list(crew.alone))
            crew.alone.clear()
        patience = self.settings.supervisor.drain_timeout
        await drain.wait(self._holds, patience, self._stop_now)
        drain.end(self.roster.children())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_WRITES):
                while any(True for _ in self.roster.children()):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                async with self.traffic.fetcher.claiming:  # what comes back late is given back
                    pass
                await self.traffic.emptied()

    def _holds(self) -> bool:
        return any(child.held for child in self.roster.children())

    async def _leave(self) -> None:
        self.state = "stopped"
        self.roster.closed = True
        for child in self.roster.children():
            child.kill("drain: the supervisor ends")
        await self._tasks.cancel()
        with contextlib.suppress(Disconnected, TimeoutError):
            async with asyncio.timeout(2):
                # The word first: a row that goes without it is one that disappeared.
                await self.control.say_down()
                # Whoever still holds something keeps its row: the others take it over by that.
                if not await claims.held(self.writing, self.owner):
                    await beats.forget(self.beating, self.owner)
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
            self.traffic.fetcher.wake(queue, foreign=True)
        for task in told.cancel:
            self._cancel(task)
        if not told.heard:
            return
        self.ticks.hear(told)
        await self.control.hear(told)
        if told.now is not None:
            self.traffic.clock_offset = told.now - time.time()
        if self.state == "starting" and not self._stop.is_set():
            # Not before the first news: a queue may be paused, or served otherwise.
            self.state = "running"
            self.roster.open()
            self.started.set()
        links = (self.claiming, self.writing, self.beating)
        connects = sum(max(0, link.connects - 1) for link in links)
        if connects != self._connects:
            # What was claimed, or written, and not confirmed may be so or not; a server that
            # crashed may even have forgotten what it had confirmed (synchronous_commit = off).
            self._connects, self._doubt = connects, True
        silent = self._watch.silent(told.owners, time.monotonic(), self.beating.connects)
        if (silent or self._doubt) and (self._tidying is None or self._tidying.done()):
            # Aside: whoever has locked the tasks must not keep us from the next beat.
            self._tidying = self._tasks.start(self._tidy([OwnerId(owner) for owner in silent]))

    async def _tidy(self, silent: list[OwnerId]) -> None:
        """Take over what silent owners held, and find what is ours and in nobody's hands."""
        with contextlib.suppress(Disconnected):
            for owner in silent:
                if await take_over(self.writing, owner, self.abilities.policy, self.site.host):
                    self._watch.dealt_with(owner, time.monotonic())
            if self._doubt:
                self._doubt = False
                try:
                    await self.traffic.reconcile()
                except BaseException:
                    self._doubt = True
                    raise

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
            if held := child.held.get(task):
                child.cancel(task, held)

    def _in_doubt(self) -> None:
        self._doubt = True
        self.heart.hurry()

    def _lease_expired(self) -> None:
        """Stop every worker at once: soon somebody else may be given their tasks.

        Until that happens they are ours, so once the database is back they are released, free.
        """
        _log.error(
            "the lease could not be renewed for %gs: all workers are stopped",
            SAFE * self.settings.supervisor.lease,
        )
        self._stop_workers("lease: it could not be renewed")

    async def _taken_over(self) -> None:
        """Begin anew: whatever this host still held belongs to others now."""
        _log.error(
            "another supervisor has taken this one's tasks over: all workers are stopped, and this "
            "host starts again as a new owner"
        )
        former = self.owner
        self._stop_workers("lease: it was taken over")
        while True:
            try:
                await self._become_owner()
            except Disconnected:
                await asyncio.sleep(0.1)
            else:
                break
        self._tasks.start(self.traffic.let_go(former))

    def _stop_workers(self, why: str) -> None:
        aborted = Released(Failure(type="LeaseExpired", message=f"the step was aborted: {why}"))
        for child in list(self.roster.children()):
            child.verdicts |= dict.fromkeys(child.held, aborted)
            child.kill(why)
        for crew in self.traffic.crews.values():
            self.traffic.give_back(list(crew.alone))
            crew.alone.clear()

    async def _keep_house(self) -> None:
        maintained = 0.0
        while True:
            await asyncio.sleep(HOUSEKEEPING)
            try:
                await self.roster.register()
                if time.monotonic() - maintained > MAINTENANCE:
                    maintained = time.monotonic()
                    await beats.maintain(self.writing)
                    await self._tidy(await claims.orphaned(self.writing))
            except Disconnected:
                pass
            except Exception:
                _log.exception("housekeeping failed; it is tried again")
