"""Tasks on their way: from a claim to a worker, from a worker to the database, and back again."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Final

from fleet.lifecycle import Event, Transition, decide
from fleet.model import Claim, OwnerId, Seconds, TaskId
from fleet.store import beats, claims
from fleet.store.outcomes import Outcome
from fleet.wire.messages import unpack_outcome
from supervisor.abilities import Abilities
from supervisor.child import Child
from supervisor.crew import Crew
from supervisor.fetcher import Fetcher
from supervisor.finisher import Finisher, Written
from supervisor.lines import Line
from supervisor.link import Disconnected, Link
from supervisor.plan import Plan
from supervisor.tasks import Tasks

_log: Final = logging.getLogger("fleet.supervisor")


class Traffic:
    """Everything a task passes through on this host."""

    def __init__(
        self,
        claiming: Link,
        writing: Link,
        tasks: Tasks,
        abilities: Abilities,
        *,
        batch: int,
        error_delay: Seconds,
        on_doubt: Callable[[], None],
    ) -> None:
        self.crews: dict[str, Crew] = {}
        self.abilities = abilities
        self.draining = False
        self.outcomes: Counter[tuple[str, str]] = Counter()  # (queue, what became of it)
        self.took: Counter[str] = Counter()  # seconds of steps, by queue
        self.balance = "fair"
        self._tasks = tasks
        self._writing = writing
        self._on_doubt = on_doubt
        self.finisher = Finisher(writing, OwnerId(0), self._written)
        self.fetcher = Fetcher(
            claiming,
            OwnerId(0),
            batch=batch,
            error_delay=error_delay,
            room=self._room,
            take=self._take,
            starved=lambda line: not self.crews[line.pool].backlog,
            on_doubt=on_doubt,
        )

    def belongs_to(self, owner: OwnerId) -> None:
        """Claim and write for this owner from now on."""
        self.owner = self.fetcher.owner = self.finisher.owner = owner

    def learn(self, plan: Plan, known: dict[tuple[str, Any], list[str]]) -> None:
        """Make lines of the steps that ready workers know, as the plan serves their queues."""
        self.balance = plan.balance
        for (queue, kind), steps in known.items():
            served = plan.served(queue)
            if served is None:
                continue
            line = self.fetcher.lines.get((queue, kind))
            if line is None:
                line = Line(queue, kind, served.pool)
                self.fetcher.add(line)
            line.pool, line.weight, line.rank = served.pool, served.weight, served.rank
            if line.learn(tuple(sorted(steps))):
                self.fetcher.due(line)

    # ── in ──────────────────────────────────────────────────────────────────────────────────────

    def _line(self, claim: Claim) -> Line | None:
        return self.fetcher.lines.get((claim.queue, self.abilities.step(claim)["kind"]))

    def _room(self, line: Line) -> int:
        """How many tasks of a line to claim: its free slots, its share, and a little ahead."""
        if self.finisher.crowded:
            return 0
        crew = self.crews[line.pool]
        free, ahead = crew.free(line.kind) - len(crew.alone), line.ahead
        rivals = [
            other
            for other in self.fetcher.lines.values()
            if other.pool == line.pool and other.has_work and not other.paused
        ]
        if len(rivals) > 1 and self.balance == "strict":
            if any(other.rank < line.rank for other in rivals):
                return 0
        elif len(rivals) > 1 and line.kind == "async":
            share = line.weight / sum(other.weight for other in rivals)
            free = min(free, max(1, round(share * crew.slots)) - crew.holds(line.queue))
            ahead = round(ahead * share)
        return free + max(0, ahead - crew.backlog)

    def _take(self, line: Line, got: list[Claim]) -> None:
        self.give_back(self.crews[line.pool].hand_out(got, line.kind))

    # ── out ─────────────────────────────────────────────────────────────────────────────────────

    def done(self, child: Child, outcomes: list[list[Any]]) -> None:
        """Pass outcomes on to be written; those that are written already go on at once."""
        for packed in outcomes:
            held = child.held.pop(packed[0], None)
            if held is None or held.claim.fence != packed[1]:
                continue
            outcome, fence = unpack_outcome(held.claim, packed, child.orders.worker)
            self.took[held.claim.queue] += outcome.took  # type: ignore[assignment]
            if line := self._line(held.claim):
                line.ended(outcome.took)
            if fence is None:
                self.finisher.put(outcome)
            else:
                self._written(Written(outcome, self.finisher.following(outcome, fence)))
        if child.exclusive and not child.held:
            child.exclusive = False
        self.crews[child.pool].serve_suspects()
        self.fetcher.freed(child.pool)

    def returned(self, child: Child, ids: Iterable[TaskId]) -> None:
        """Give back to the queue what a child has not started."""
        self.give_back([child.held.pop(task).claim for task in ids if task in child.held])

    def settle(self, claim: Claim, event: Event, worker: str) -> None:
        """Decide and write what becomes of a task that its worker can say nothing about."""
        policy = self.abilities.policy(claim)
        transition = decide(claim, event, policy, 0.5)
        self.finisher.put(Outcome(claim, transition, worker, 0.0, policy.keep))

    def _written(self, written: Written) -> None:
        """An outcome is in the database: go on with the next step, if there is one."""
        transition = written.outcome.transition
        self.outcomes[written.outcome.claim.queue, _word(transition)] += 1
        claim = written.onward
        if claim is None:
            return
        line = self._line(claim)
        if self.draining or line is None:
            self.give_back([claim])
        else:
            self.give_back(self.crews[line.pool].hand_out([claim], line.kind))

    def give_back(self, back: list[Claim]) -> None:
        """Let go of tasks that were never started: free of charge, for anybody to take."""
        if back:
            self._tasks.start(self._give_back(back))

    async def _give_back(self, back: list[Claim]) -> None:
        while True:
            try:
                await claims.unclaim(self._writing, self.owner, back)
            except Disconnected:
                self._on_doubt()  # what was not given back is found by the next beat
            except Exception:
                _log.exception("tasks could not be given back; trying again")
                await asyncio.sleep(0.5)
                continue
            return

    async def note(self, notes: list[list[Any]]) -> None:
        """Keep how far steps have come."""
        with contextlib.suppress(Disconnected):
            await beats.note_progress(self._writing, self.owner, notes)

    # ── after a cut ─────────────────────────────────────────────────────────────────────────────

    def in_hand(self) -> set[TaskId]:
        """Return every task that somebody on this host knows of."""
        held = {task for crew in self.crews.values() for c in crew.children for task in c.held}
        held |= {claim.id for crew in self.crews.values() for claim in crew.alone}
        return held | self.finisher.tasks

    async def reconcile(self) -> None:
        """After a lost reply: give back what is ours in the database and in nobody's hands."""
        before = self.in_hand()
        ours = await claims.held(self._writing, self.owner)
        stranded = [c for c in ours if c.id not in before | self.in_hand()]
        if stranded:
            _log.info("%d claimed tasks never reached us and are given back", len(stranded))
            await claims.unclaim(self._writing, self.owner, stranded)

    def drop_everything(self) -> None:
        """Forget every task: the right to run them is lost, and so is the right to write."""
        for crew in self.crews.values():
            crew.alone.clear()
            for child in crew.children:
                child.held.clear()
        self.finisher.forget()


def _word(transition: Transition) -> str:
    return getattr(transition, "outcome", None) or type(transition).__name__.lower()
