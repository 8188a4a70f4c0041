"""Tasks on their way: from a claim to a worker, from a worker to the database, and back again."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Final

from fleet.lifecycle import Event, PutBack, decide
from fleet.limits import Limits
from fleet.model import Claim, OwnerId, Seconds, TaskId
from fleet.store import beats, claims
from fleet.store.failures import is_passing
from fleet.store.outcomes import Outcome
from fleet.wire.messages import unpack_outcome
from supervisor.abilities import Abilities
from supervisor.child import Child
from supervisor.crew import Crew
from supervisor.fetcher import Fetcher
from supervisor.finisher import Finisher, Written
from supervisor.lines import Line, lines_of, place_of
from supervisor.link import Disconnected, Link
from supervisor.plan import Plan
from supervisor.tally import Tally
from supervisor.tasks import Tasks

_log: Final = logging.getLogger("fleet.supervisor")

LOCKED_FOR: Final = 100  # attempts to give back what somebody has locked


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
        may_run: Callable[[], bool],
    ) -> None:
        self.crews: dict[str, Crew] = {}
        self.abilities = abilities
        self.draining = False
        self.on_deferred: Callable[[Seconds], None] = lambda _: None
        self.paused: set[str] = set()
        self.outcomes: Counter[tuple[str, str]] = Counter()  # (queue, what became of it)
        self.steps, self.waits = Tally(), Tally()
        self.clock_offset: Seconds = 0.0  # of the database's clock, to ours
        self.balance = "fair"
        self._tasks = tasks
        self._writing = writing
        self._on_doubt = on_doubt
        self._may_run = may_run
        self._giving: set[asyncio.Task[None]] = set()
        self.finisher = Finisher(
            writing, OwnerId(0), self._written, lambda claim: self.give_back([claim])
        )
        self.fetcher = Fetcher(
            claiming,
            OwnerId(0),
            batch=batch,
            error_delay=error_delay,
            room=self._room,
            take=self._take,
            keep=self._keep,
            starved=lambda line: not self.crews[line.pool].backlog,
            on_doubt=on_doubt,
            strayed=lambda owner, got: self.give_back(got, owner),
        )

    def belongs_to(self, owner: OwnerId) -> None:
        """Claim and write for this owner from now on."""
        self.owner = self.finisher.owner = owner
        self.fetcher.belongs_to(owner)

    def learn(self, plan: Plan) -> None:
        """Make lines of the steps that ready workers know, for every queue that the plan serves."""
        self.balance = plan.balance
        steps, served = self.abilities.steps, {queue.name: queue for queue in plan.queues}
        known = lines_of(steps, served)
        of_jobs = {place_of(step["queue"], step) for step in steps.values()}
        for left in [x for x in self.fetcher.lines.values() if x.queue not in served]:
            self.fetcher.remove(left)
        for place in self.fetcher.lines.keys() - known.keys():
            self.fetcher.lines[place].learn(())
        for place, names in known.items():
            queue, kind, job = place
            serves, line = served[queue], self.fetcher.lines.get(place)
            if line is None:
                line = Line(queue, kind, serves.pool, job, paused=queue in self.paused)
                self.fetcher.add(line)
            line.pool, line.weight, line.rank = serves.pool, serves.weight, serves.rank
            line.foreign = place not in of_jobs
            self._limit(line, Limits(serves.limit, serves.rate), self.abilities.limits(job))
            if line.learn(tuple(sorted(names))):
                self.fetcher.due(line)

    def _limit(self, line: Line, of_queue: Limits, of_job: Limits) -> None:
        if (line.of_queue, line.of_job) == (of_queue, of_job):
            return
        before = line.limited
        line.of_queue, line.of_job = of_queue, of_job
        if line.limited and not before:
            self._tasks.start(self._count_in(line))
        self.fetcher.due(line)

    async def _count_in(self, line: Line) -> None:
        """Let what this host runs already count against a limit that has come."""
        running = [
            held.claim.id
            for crew in self.crews.values()
            for child in crew.children
            for held in child.held.values()
            if held.claim.queue == line.queue and (not line.job or held.claim.job == line.job)
        ]
        with contextlib.suppress(Disconnected):
            await claims.count_in(self._writing, self.owner, running)

    # ── in ──────────────────────────────────────────────────────────────────────────────────────

    def _line(self, claim: Claim) -> Line | None:
        return self.fetcher.lines.get(place_of(claim.queue, self.abilities.step(claim)))

    def _room(self, line: Line) -> int:
        """How many tasks of a line to claim: its free slots, its share, and a little ahead."""
        if self.finisher.crowded or not self._may_run():
            return 0
        crew = self.crews[line.pool]
        rivals = [
            other
            for other in self.fetcher.lines.values()
            if other.pool == line.pool and other.wants
        ]
        if not any(other.kind == "def" for other in rivals):
            crew.keep_none()
        if not crew.takers(line.kind):
            # Not even ahead: it would be given back, which wakes us, and so on without end.
            return 0
        free, ahead = crew.free(line.kind) - len(crew.alone), line.ahead
        if self.balance == "strict":
            if any(other.rank < line.rank for other in rivals):
                return 0
            rivals = [other for other in rivals if other.rank == line.rank]
        # A queue has its weight once, however many of its jobs have a line of their own.
        weights = {(other.queue, other.kind): other.weight for other in (line, *rivals)}
        if len(weights) > 1:
            share = line.weight / sum(weights.values())
            ahead = round(ahead * share)
            if line.kind == "async":
                due = max(1, round(share * crew.slots)) - crew.holds(line.queue)
                # What others have claimed ahead must not keep a line from its share for ever.
                free = min(due, max(free, crew.backlog))
            else:
                most = max(1, round(share * len(crew.children)))
                free = min(free, max(1, most - crew.busy_with(line.queue)))
        return free + max(0, ahead - crew.backlog)

    def _keep(self, line: Line, really: bool) -> bool:
        """Keep a worker for a def line that finds none idle; or say whether one could be kept."""
        crew = self.crews[line.pool]
        lowest = self.balance == "strict" and any(
            other.rank < line.rank and other.wants
            for other in self.fetcher.lines.values()
            if other.pool == line.pool
        )
        if line.kind != "def" or lowest or crew.free("def") > 0 or not self._may_run():
            return False
        return crew.keep_one() if really else crew.can_keep is not None

    def _take(self, line: Line, got: list[Claim]) -> None:
        now = time.time() + self.clock_offset
        for claim in got:
            self.waits.add(line.queue, max(now - claim.ready_at.timestamp(), 0.0))
        self._hand_out(line if line.known else None, got)

    def _hand_out(self, line: Line | None, got: list[Claim]) -> None:
        # The claim may have been under way when a drain began, or when the lease ran out.
        if line is None or self.draining or not self._may_run():
            self.give_back(got)
        else:
            self.give_back(self.crews[line.pool].hand_out(got, line.kind))

    # ── out ─────────────────────────────────────────────────────────────────────────────────────

    def done(self, child: Child, outcomes: list[list[Any]]) -> None:
        """Pass outcomes on to be written; those that are written already go on at once."""
        for packed in outcomes:
            held = child.held.get(packed[0])
            if held is None or held.claim.fence != packed[1]:
                continue
            del child.held[packed[0]]
            outcome, fence = unpack_outcome(held.claim, packed, child.orders.worker)
            self.steps.add(held.claim.queue, outcome.took)
            if line := self._line(held.claim):
                line.ended(outcome.took)
            if fence is None:
                self.finisher.put(outcome)
            else:
                self._written(self.finisher.written(outcome, fence))
        self.crews[child.pool].serve_suspects()
        self.fetcher.freed(child.pool)

    def returned(self, child: Child, ids: Iterable[TaskId]) -> None:
        """Give back to the queue what a child has not started."""
        back = [child.held.pop(task).claim for task in ids if task in child.held]
        for line in {self._line(claim) for claim in back}:
            if line is not None:
                line.overreached()
        self.give_back(back)
        self.crews[child.pool].serve_suspects()
        self.fetcher.freed(child.pool)

    def settle(self, claim: Claim, event: Event, worker: str) -> None:
        """Decide and write what becomes of a task that its worker can say nothing about."""
        policy = self.abilities.policy(claim)
        transition = decide(claim, event, policy, 0.5)
        self.finisher.put(Outcome(claim, transition, worker, 0.0, policy.keep))

    def _written(self, written: Written) -> None:
        """An outcome is in the database, or was refused: go on with the next step, if any."""
        transition = written.outcome.transition
        if written.word is not None:
            self.outcomes[written.outcome.claim.queue, written.word] += 1
        if isinstance(transition, PutBack) and transition.delay is not None:
            self.on_deferred(transition.delay)
        claim = written.onward
        if claim is None:
            self.fetcher.let_in(written.outcome.claim.queue)
            return
        self._hand_out(self._line(claim), [claim])

    def give_back(self, back: list[Claim], owner: OwnerId | None = None) -> None:
        """Let go of tasks that were never started: free of charge, for anybody to take."""
        if back:
            giving = self._give_back(back, self.owner if owner is None else owner)
            task = self._tasks.start(giving)
            self._giving.add(task)
            task.add_done_callback(self._giving.discard)

    async def _give_back(self, back: list[Claim], owner: OwnerId) -> None:
        left, locked = back, 0
        while locked < LOCKED_FOR:
            try:
                done = await claims.unclaim(self._writing, owner, left)
            except Disconnected:
                await asyncio.sleep(0.1)
                continue
            except Exception as error:
                if not is_passing(error):
                    _log.exception("tasks could not be given back; trying again")
                await asyncio.sleep(0.5)
                continue
            left = [claim for claim in left if claim.id not in done]
            if left:
                left = await self._locked(owner, left)
            if not left:
                return
            locked += 1
            await asyncio.sleep(0.05)
        self._on_doubt()  # the next beat finds them again

    async def _locked(self, owner: OwnerId, left: list[Claim]) -> list[Claim]:
        """Return those that are still ours: somebody has locked them, and they were passed over."""
        with contextlib.suppress(Disconnected):
            fences = {c.id: c.fence for c in await claims.held(self._writing, owner)}
            if any(fences.get(c.id, c.fence) > c.fence for c in left):
                # Its worker had ended the step in a transaction of its own, and died unheard.
                self._on_doubt()
            return [c for c in left if fences.get(c.id) == c.fence]
        return left

    async def emptied(self) -> None:
        """Wait until everything is written and given back."""
        await self.finisher.emptied()
        while self._giving:
            await asyncio.wait(self._giving)

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
        async with self.fetcher.claiming:
            before = self.in_hand()
            ours = await claims.held(self._writing, self.owner)
            stranded = [c for c in ours if c.id not in before | self.in_hand()]
        if stranded:
            _log.info("%d claimed tasks never reached us and are given back", len(stranded))
            self.give_back(stranded)

    async def let_go(self, former: OwnerId) -> None:
        """Give back what was claimed in the name of an owner that has been taken over since."""
        while True:
            try:
                self.give_back(await claims.held(self._writing, former), former)
            except Disconnected:
                await asyncio.sleep(0.5)
            else:
                return
