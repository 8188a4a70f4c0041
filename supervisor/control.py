"""What this host is told by the database: shut down, leave a queue, pause it, serve it otherwise.

All of it comes with the beat; a NOTIFY only makes the beat hurry. A command is obeyed once and
answered twice, *draining* at once and *down* at the end, and never by a supervisor that started
after it was given.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final

from fleet.errors import ConfigError
from fleet.model import OwnerId, TaskId
from fleet.settings import RunSettings
from fleet.settings.overrides import overridden
from fleet.store import beats, control
from fleet.store.beats import Told
from fleet.store.control import PAUSED
from supervisor import drain
from supervisor.child import Child
from supervisor.link import Disconnected, Link
from supervisor.roster import Roster
from supervisor.tasks import Tasks
from supervisor.traffic import Traffic

_log: Final = logging.getLogger("fleet.supervisor")


class Control:
    """One host's obedience."""

    def __init__(
        self,
        settings: RunSettings,
        roster: Roster,
        traffic: Traffic,
        link: Link,
        tasks: Tasks,
        *,
        stop: Callable[[], None],
        now: asyncio.Event,
    ) -> None:
        self.settings = settings  # of the files, without what the database says
        self.owners: list[OwnerId] = []  # every one that this process has been
        self.obeyed: dict[int, OwnerId] = {}  # request → as whom it is answered
        self._overrides: dict[str, dict[str, Any]] = {}
        self._complaints: set[str] = set()
        self._roster = roster
        self._traffic = traffic
        self._link = link
        self._tasks = tasks
        self._stop = stop
        self._now = now

    async def hear(self, told: Told) -> None:
        """Act on the news of a beat."""
        self._pause({queue for queue, said in told.queues.items() if said.get(PAUSED)})
        settings = {q: {k: v for k, v in s.items() if k != PAUSED} for q, s in told.queues.items()}
        wanted = {queue: said for queue, said in settings.items() if said}
        if wanted != self._overrides:
            self._overrides = wanted
            self._apply()
        for command in told.shutdown:
            await self._obey(command)

    # ── settings ────────────────────────────────────────────────────────────────────────────────

    def reload(self, settings: RunSettings) -> None:
        """Take over a new configuration, live; ConfigError, and the old one stays, if it cannot."""
        former, self.settings = self.settings, settings
        try:
            self._apply()
        except ConfigError:
            self.settings = former
            raise

    def _apply(self) -> None:
        settings, refused = overridden(self.settings, self._overrides)
        complaints = {str(error) for error in refused}
        for complaint in sorted(complaints - self._complaints):
            _log.warning("an override of fleet queue set is ignored: %s", complaint)
        self._complaints = complaints
        self._roster.reload(settings)

    def _pause(self, queues: set[str]) -> None:
        news = self._traffic.paused ^ queues
        self._traffic.paused = queues
        for line in self._traffic.fetcher.lines.values():
            if line.queue not in news:
                continue
            line.paused = line.queue in queues
            if not line.paused:
                self._traffic.fetcher.due(line)
        for queue in sorted(news):
            _log.info("queue %s is %s", queue, "paused" if queue in queues else "resumed")
            if queue in queues:
                self._return_unstarted(queue)

    def _return_unstarted(self, queue: str) -> None:
        for child in self._roster.children():
            if ids := child.tasks_of(queue):
                child.channel.send("return", ids)
        self._return_suspects(queue)

    def _return_suspects(self, queue: str) -> None:
        for crew in self._traffic.crews.values():
            self._traffic.give_back([claim for claim in crew.alone if claim.queue == queue])
            crew.alone = deque(claim for claim in crew.alone if claim.queue != queue)

    # ── commands ────────────────────────────────────────────────────────────────────────────────

    async def _obey(self, command: Mapping[str, Any]) -> None:
        number, queue = command["id"], command["queue"]
        # One that lost its lease on the way is still meant, and known by the name it had then.
        meant = [owner for owner in self.owners if owner <= command["last_owner"]]
        if number in self.obeyed or not meant:
            return
        if command["host"] not in (None, self._roster.site.host):
            return
        _log.info("told to shut down%s (request %s)", f" queue {queue}" if queue else "", number)
        self.obeyed[number] = meant[-1]
        await self._answer(number, "draining")
        if queue is None:
            self._stop()
        else:
            self._tasks.start(self._leave_queue(number, queue))

    async def _leave_queue(self, number: int, queue: str) -> None:
        """Stop the workers of one queue; until this supervisor ends, it is not served here."""
        dedicated, ours = self._crew_of(queue), self._tasks_of(queue)
        self._roster.leave_out(queue)
        with contextlib.suppress(Disconnected):
            await beats.disarm(self._link, self._roster.owner, [queue])
        self._return_suspects(queue)
        if dedicated:
            drain.tell(dedicated)
        else:
            drain.tell_queue(self._roster.children(), queue)
        patience = self.settings.supervisor.drain_timeout
        await drain.wait(lambda: self._holds(queue), patience, self._now)
        drain.end(child for child in dedicated if child.state != "dead")
        await drain.end_queue(self._roster.children(), queue, self._now)
        await drain.wait(
            lambda: (
                self._holds(queue)
                or any(child.state != "dead" for child in dedicated)
                or bool(ours & self._traffic.finisher.tasks)
            ),
            math.inf,
            self._now,
        )
        _log.info("queue %s is no longer served here, until this supervisor starts again", queue)
        await self._answer(number, "down")

    def _crew_of(self, queue: str) -> list[Child]:
        crew = self._traffic.crews.get(queue)
        return list(crew.children) if crew is not None and crew.pool.dedicated else []

    def _tasks_of(self, queue: str) -> set[TaskId]:
        held = [h for child in self._roster.children() for h in child.held.values()]
        return {each.claim.id for each in held if each.claim.queue == queue}

    def _holds(self, queue: str) -> bool:
        return any(crew.holds(queue) for crew in self._traffic.crews.values())

    async def _answer(self, number: int, state: str) -> None:
        with contextlib.suppress(Disconnected):
            await control.acknowledge(self._link, number, self.obeyed[number], state)

    async def say_down(self) -> None:
        """Tell whoever waits that nothing runs here any more."""
        for number in self.obeyed:
            await self._answer(number, "down")
