"""Writes outcomes in batches: whatever has gathered while the last write was under way.

No timer: an idle system adds no latency, a busy one has large batches. After a broken connection
the same batch is written again; what is not found then was either written before the reply was
lost, or belongs to somebody else by now, and in both cases is no longer ours to write.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from fleet.errors import LeaseLost
from fleet.lifecycle import Advance, Transition, onward
from fleet.model import Claim, OwnerId, TaskId
from fleet.store.executor import Executor
from fleet.store.failures import is_passing
from fleet.store.outcomes import BATCH, Outcome, Report, write
from fleet.store.standing import Undecided, ended, standing
from supervisor.link import Disconnected

_log: Final = logging.getLogger("fleet.supervisor")

# Enough for two more statements: beyond that claiming waits for writing.
CROWDED: Final = 4 * BATCH
BURIED: Final = "bury"


@dataclass(slots=True)
class Written:
    """What the finisher tells: a task that goes on here, or one that is out of our hands."""

    outcome: Outcome[Transition]
    onward: Claim | None = None
    word: str | None = None  # what the database says became of it; None: this outcome is not there


def word_of(transition: Transition) -> str:
    """Return how a transition is counted."""
    return getattr(transition, "outcome", None) or type(transition).__name__.lower()


class Finisher:
    """One connection that writes what became of this owner's tasks."""

    def __init__(
        self,
        link: Executor,
        owner: OwnerId,
        on_written: Callable[[Written], None],
        on_moved: Callable[[Claim], None],
    ) -> None:
        self._link = link
        self.owner = owner
        self._on_written = on_written
        self._on_moved = on_moved
        self._pending: list[Outcome[Transition]] = []
        self._doubted: set[TaskId] = set()
        self._writing: set[TaskId] = set()
        self._busy: set[TaskId] = set()
        self._news = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self.lost: Counter[str] = Counter()

    def put(self, outcome: Outcome[Transition]) -> None:
        """Take an outcome to be written."""
        self._pending.append(outcome)
        self._news.set()
        self._empty.clear()

    @property
    def crowded(self) -> bool:
        """Whether claiming should wait for writing to catch up."""
        return len(self._pending) > CROWDED

    @property
    def tasks(self) -> set[TaskId]:
        """The tasks whose outcomes are not written yet."""
        return {o.claim.id for o in self._pending} | self._writing | self._busy

    @staticmethod
    def written(outcome: Outcome[Transition], fence: int) -> Written:
        """Return what is told of an outcome that is in the database under this fence."""
        transition = outcome.transition
        following = isinstance(transition, Advance) and onward(outcome.claim, transition, fence)
        return Written(outcome, following or None, word_of(transition))

    async def emptied(self) -> None:
        """Wait until everything is written."""
        await self._empty.wait()

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await self._news.wait()
            self._news.clear()
            while self._pending:
                batch, self._pending = self._pending[:BATCH], self._pending[BATCH:]
                self._writing = {o.claim.id for o in batch}
                await self._write(batch)
                self._writing = set()
            if not self._busy:
                self._empty.set()

    async def _write(self, batch: list[Outcome[Transition]]) -> None:
        untold = deque(batch)
        try:
            report = await write(self._link, self.owner, batch)
            await self._tell(untold, report)
        except Exception as error:
            # Some of it may be in the database: what is missing next time is looked at. Whoever
            # was told already must not be told again, or the next step would run twice.
            self._doubted |= {o.claim.id for o in untold}
            self._again(list(untold))
            if not isinstance(error, Disconnected) and not is_passing(error):
                _log.exception("outcomes could not be written; they are tried again")
                await asyncio.sleep(1)
            await asyncio.sleep(0.05)

    async def _tell(self, untold: deque[Outcome[Transition]], report: Report) -> None:
        busy: list[Outcome[Transition]] = []
        try:
            await self._tell_each(untold, report, busy)
        finally:
            if busy:
                # Locked by the last transaction of a worker that was killed: its end is near.
                asyncio.get_running_loop().call_later(0.05, self._retry_busy, busy)

    async def _tell_each(
        self,
        untold: deque[Outcome[Transition]],
        report: Report,
        busy: list[Outcome[Transition]],
    ) -> None:
        while untold:
            outcome = untold[0]
            task = outcome.claim.id
            fence = report.fences.get(task)
            if task in report.busy:
                busy.append(untold.popleft())
                self._busy.add(task)
                continue
            if fence is None:
                try:
                    written = await self._look(outcome)
                except Undecided:
                    busy.append(untold.popleft())
                    self._busy.add(task)
                    continue
            elif task in report.unstorable:
                written = Written(outcome, word=BURIED)  # whatever it was to become
            else:
                written = self.written(outcome, fence)
            untold.popleft()
            self._doubted.discard(task)
            self._on_written(written)

    async def _look(self, outcome: Outcome[Transition]) -> Written:
        """See why an outcome was not written now: it was before, or it is not ours to write."""
        claim = outcome.claim
        found = await standing(self._link, self.owner, claim)
        doubted = claim.id in self._doubted
        if found.how == "advanced":
            if doubted and isinstance(outcome.transition, Advance):
                return self.written(outcome, found.fence)
            # Its worker wrote the outcome itself, in the step's own transaction, and died before
            # it could say so: the next step is anybody's.
            self._on_moved(claim._replace(fence=found.fence))
        elif doubted:
            # The first write was carried out and its answer lost, as far as one can know.
            return Written(outcome, word=word_of(outcome.transition))
        elif not await ended(self._link, claim):
            self.lost[claim.queue] += 1
            _log.warning("%s", LeaseLost(claim.id, claim.fence))
        return Written(outcome)

    def _retry_busy(self, busy: list[Outcome[Transition]]) -> None:
        self._busy -= {o.claim.id for o in busy}
        self._again(busy)

    def _again(self, batch: list[Outcome[Transition]]) -> None:
        self._pending = batch + self._pending
        self._news.set()
        self._empty.clear()
