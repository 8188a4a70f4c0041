"""Fires schedules. Any supervisor fires any tick; the database sees to it that one does.

A beat brings the schedules that are due. Which ticks those are, and which is the next, is computed
here, from the moment that the beat told: the database's, so this host's clock may say anything.
Then one statement a schedule does everything, or finds that another host has done it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from typing import Any, Final

from fleet.errors import DefinitionError
from fleet.model import Seconds
from fleet.schedule import Schedule, StaleSchedules
from fleet.store import schedules
from fleet.store.beats import Told
from fleet.store.failures import is_passing
from fleet.store.schedules import Waiting
from supervisor.link import Disconnected, Link
from supervisor.tasks import Tasks

_log: Final = logging.getLogger("fleet.supervisor")

_CALENDARS: Final = 1_000


class Ticks:
    """One host's share in the schedules."""

    def __init__(
        self,
        link: Link,
        tasks: Tasks,
        *,
        stale: Callable[[], StaleSchedules],
        declared_here: Callable[[], Collection[str]],
        expect: Callable[[Seconds], None],
    ) -> None:
        self._link = link
        self._tasks = tasks
        self._stale = stale
        self._declared_here = declared_here
        self._expect = expect
        self._calendars: dict[tuple[str, str, str], Schedule] = {}
        self._said: dict[str, str] = {}  # what is wrong with a schedule
        self._firing: asyncio.Task[Any] | None = None

    def hear(self, told: Told) -> None:
        """Fire what a beat says is due; beside the beats, which nothing may hold up."""
        if told.now is None or (self._firing is not None and not self._firing.done()):
            return
        if wanted := [waiting for waiting in told.ticks if self._fires(waiting)]:
            now = datetime.fromtimestamp(told.now, UTC)
            self._firing = self._tasks.start(self._fire(wanted, now))

    def _fires(self, waiting: Waiting) -> bool:
        # What this host's own application declares is declared, even if an outage, or a long
        # pause of this process, has kept us from saying so.
        if waiting.declared or waiting.name in self._declared_here():
            return True
        stale = self._stale()
        return stale == "manual" or (stale == "stale" and waiting.by_hand)

    async def _fire(self, wanted: list[Waiting], now: datetime) -> None:
        heard = time.monotonic()
        for waiting in wanted:
            try:
                following = await self._fire_one(waiting, now)
            except Disconnected:
                return  # the next beat brings them again
            except Exception as error:
                if not is_passing(error):
                    self._complain(waiting.name, f"{type(error).__name__}: {error}")
                continue
            if following is not None:
                # Between this beat and its commit nobody knew when the next one is due.
                passed = time.monotonic() - heard
                self._expect(max((following - now).total_seconds() - passed, 0.0))

    async def _fire_one(self, waiting: Waiting, now: datetime) -> datetime | None:
        """Fire what is due of one schedule; return when it is next due, if that is known."""
        # The moment comes as a float: rounded, it may be before what the database called due.
        now = now if waiting.next_at is None else max(now, waiting.next_at)
        try:
            calendar = self._calendar(waiting)
        except DefinitionError as error:
            await schedules.note_error(self._link, waiting, str(error))
            self._complain(waiting.name, str(error))
            return None
        ticks, following = calendar.due(now, since=waiting.since, next_at=waiting.next_at)
        done = await schedules.fire(self._link, waiting, ticks, following)
        if done is not None and done.error:
            self._complain(waiting.name, done.error)
            return None
        if done is not None:
            self._said.pop(waiting.name, None)
            _log.debug("schedule %s fired %s: tasks %s", waiting.name, ticks, done.tasks)
        return following

    def _calendar(self, waiting: Waiting) -> Schedule:
        said = (waiting.cron, waiting.timezone, waiting.missed)
        if said not in self._calendars:
            if len(self._calendars) >= _CALENDARS:
                self._calendars.clear()
            self._calendars[said] = waiting.schedule()
        return self._calendars[said]

    def _complain(self, name: str, problem: str) -> None:
        """Say what keeps a schedule from firing, once."""
        if self._said.get(name) != problem:
            self._said[name] = problem
            _log.warning("schedule %s cannot fire, and is tried at every beat: %s", name, problem)
