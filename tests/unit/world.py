"""The reference model of all the tables together: who gets claimed, who has a key, what is refused.

Positions are the one thing it does not foresee: it says who draws a new one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from fleet.lifecycle import Advance, Bury, Cancel, PutBack, Transition
from fleet.model import Claim, TaskId
from tests.unit.model import (
    PLACED,
    Arrow,
    Place,
    Task,
    apply,
    cancelled,
    claimed,
    enqueued,
    given_its_key,
    off,
    over,
    promoted,
    revived,
    unclaimed,
)


class Over(NamedTuple):
    """An attempt that was not its task's last: a row of fleet.attempt."""

    task_id: TaskId
    fence: int
    visit: int
    attempt: int
    step: str
    outcome: str


@dataclass(slots=True)
class World:
    """Every task there ever was, the keys, the wishes to cancel, and the attempts that are over."""

    now: float = 0.0
    tasks: dict[TaskId, Task] = field(default_factory=dict)
    keys: dict[Place, TaskId | None] = field(default_factory=dict)
    wishes: set[TaskId] = field(default_factory=set)
    history: list[Over] = field(default_factory=list)
    arrows: set[Arrow] = field(default_factory=set)
    drew: list[TaskId] = field(default_factory=list)  # who drew a position since it was emptied

    def live(self) -> list[Task]:
        return [task for task in self.tasks.values() if task.live]

    def running(self, owner: int) -> list[Task]:
        held = [task for task in self.live() if task.owner == owner]
        return sorted(held, key=lambda task: (task.rank, task.pos))

    def slot_holder(self, job: str, slot: str | None) -> TaskId | None:
        holders = [t.id for t in self.live() if slot and (t.job, t.unique_slot) == (job, slot)]
        assert len(holders) <= 1
        return holders[0] if holders else None

    def enqueue(self, task: Task, delay: float | None) -> None:
        self.arrows.add(("[*]", enqueued(task, delay, self.now).state))
        self._put(enqueued(task, delay, self.now))

    def claim(self, owner: int, queue: str, limit: int, known: Collection[str]) -> list[Task]:
        line = [
            task
            for task in self.live()
            if task.state == "ready" and task.queue == queue and f"{task.job}/{task.step}" in known
        ]
        line.sort(key=lambda task: (task.rank, task.pos))
        for task in line[:limit]:
            self._put(claimed(task, owner))
        return [self.tasks[task.id] for task in line[:limit]]

    def holds(self, owner: int, claim: Claim) -> bool:
        task = self.tasks[claim.id]
        return task.live and task.owner == owner and task.fence == claim.fence

    def write(self, outcomes: Sequence[tuple[Claim, Transition]]) -> None:
        """What claims that hold have come to, a statement for each kind of transition."""
        statements: dict[object, list[tuple[Claim, Transition]]] = {}
        for claim, transition in outcomes:
            kind = (type(transition), getattr(transition, "keep", True))
            statements.setdefault(kind, []).append((claim, transition))
        for statement in statements.values():
            for claim, transition in statement:
                self._remember(claim, transition)
            self._put(*(apply(self.tasks[c.id], t, self.now) for c, t in statement))

    def _remember(self, claim: Claim, transition: Transition) -> None:
        if isinstance(transition, Cancel):
            self.wishes.discard(claim.id)
        if outcome := _outcome(transition):
            self.history.append(
                Over(claim.id, claim.fence, claim.visit, claim.attempt, claim.step, outcome)
            )

    def unclaim(self, given_back: Sequence[Claim]) -> None:
        self._put(*(unclaimed(self.tasks[claim.id]) for claim in given_back))

    def promote(self) -> dict[str, int]:
        ready: dict[str, int] = {}
        due = [t for t in self.live() if t.state == "deferred" and (t.due_at or 0.0) <= self.now]
        for task in sorted(due, key=lambda task: task.due_at or 0.0):
            self._put(promoted(task))
            ready[task.queue] = ready.get(task.queue, 0) + (self.tasks[task.id].state == "ready")
        return ready

    def grant_keys(self) -> int:
        fresh = [t for t in self.live() if t.state == "waiting" and t.due_at is not None]
        free = {place for place, holder in self.keys.items() if holder is None}
        given = 0
        for place in sorted({t.place for t in fresh if t.place} | free):
            self.keys.setdefault(place, None)
            if self.keys[place] is None:
                given += self._give(place)
        for task in fresh:
            if self.tasks[task.id].state == "waiting":
                self._put(replace(self.tasks[task.id], due_at=None))
        return given

    def cancel(self, task_id: TaskId) -> str | None:
        task = self.tasks.get(task_id)
        if task is None or task.state == "deleted":
            return None
        if not task.live:
            return "ended"
        if task.state == "running":
            self.wishes.add(task_id)
            return "requested"
        self._put(cancelled(task))
        return "cancelled"

    def cancel_leftovers(self) -> int:
        idle = [t for t in self.live() if t.id in self.wishes and t.state != "running"]
        self._put(*map(cancelled, idle))
        self.wishes = {wish for wish in self.wishes if self.tasks[wish].live}
        return len(idle)

    def revive(self, task_id: TaskId, step: str | None) -> bool:
        """False: its unique slot is taken."""
        dead = self.tasks[task_id]
        if self.slot_holder(dead.job, dead.unique_slot) is not None:
            return False
        outcome = "crashed" if dead.reason == "poison" else "failed"
        attempt = dead.ended_at_attempt or 0
        self.history.append(Over(dead.id, dead.fence, dead.visit, attempt, dead.step, outcome))
        self.wishes.discard(task_id)
        self._put(revived(dead, step, self.now))
        return True

    def delete(self, task_id: TaskId) -> None:
        """An operator's DELETE, which is no arrow of ours; but its key must go on."""
        arrows = set(self.arrows)
        self._put(over(self.tasks[task_id], "deleted", 0))
        self.arrows = arrows

    def _put(self, *rows: Task) -> None:
        """One statement: every row first, then the keys that it has set free."""
        before = {row.id: self.tasks.get(row.id) for row in rows}
        for row in rows:
            if row.state == "ready":
                self.drew.append(row.id)
            self.tasks[row.id] = row if row.pos is None or row.state in PLACED else off(row)
        for row in rows:
            old = before[row.id]
            if old is not None:
                self.arrows |= {(old.state, row.state)} - {("waiting", "waiting")}
            if old is not None and old.granted and not row.granted and old.place is not None:
                self._give(old.place)

    def _give(self, place: Place) -> bool:
        """Give a key to the first who waits for it, by id."""
        line = [t for t in self.live() if t.state == "waiting" and t.place == place]
        if not line:
            del self.keys[place]
            return False
        heir = min(line, key=lambda task: task.id)
        self.keys[place] = heir.id
        self._put(given_its_key(heir, self.now))
        return True


def _outcome(transition: Transition) -> str | None:
    """What the history says of an attempt; None if the row where the task ended says it."""
    match transition:
        case Advance():
            return "next"
        case PutBack():
            return transition.outcome
        case Bury(keep=False):
            return "crashed" if transition.reason == "poison" else "failed"
        case _:
            return None
