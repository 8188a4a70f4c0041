"""A reference model of Fleet's tables: what the SQL must do, in a few lines of Python a statement.

``Task`` is one row, wherever it lies; the functions below it are the arrows of
docs/state-machine.md, each pure. ``World`` is all the tables together: who gets claimed, who has a
key, what is refused.
Positions are the one thing it does not foresee: it says who draws a new one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple, TypeAlias

from fleet.lifecycle import Advance, Bury, Cancel, Finish, PutBack, Transition
from fleet.model import Claim, TaskId

LIVE = frozenset({"ready", "running", "deferred", "waiting"})
PLACED = frozenset({"ready", "running"})
EPOCH = datetime(2030, 1, 1, tzinfo=UTC)
PAGE = Path(__file__).parents[2] / "docs" / "state-machine.md"

Arrow: TypeAlias = tuple[str, str]
Place: TypeAlias = tuple[str, str]  # a queue and a key in it


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A task: its row while it is live, and what is left of it afterwards."""

    id: TaskId
    queue: str = "q"
    job: str = "x"
    step: str = "a"
    input: str = "null"
    state: str = "ready"
    fence: int = 0
    owner: int | None = None
    visit: int = 1
    failures: int = 0
    crashes: int = 0
    losses: int = 0
    releases: int = 0
    prior: int = 0
    priority: int = 0
    front: bool = False
    alone: bool = False
    granted: bool = False
    key: str | None = None
    due_at: float | None = None
    ready_at: float = 0.0
    unique_slot: str | None = None
    unique_scope: str | None = None
    error: str | None = None  # its type
    reason: str | None = None  # why it was buried
    ended_at_attempt: int | None = None
    pos: int | None = None

    @property
    def live(self) -> bool:
        return self.state in LIVE

    @property
    def rank(self) -> int:
        return -2 * self.priority + (not self.front)

    @property
    def place(self) -> Place | None:
        return None if self.key is None else (self.queue, self.key)

    @property
    def claim(self) -> Claim:
        """The row as its owner holds it."""
        return Claim(
            id=self.id,
            fence=self.fence,
            queue=self.queue,
            job=self.job,
            step=self.step,
            visit=self.visit,
            input=self.input,
            priority=self.priority,
            failures=self.failures,
            crashes=self.crashes,
            losses=self.losses,
            releases=self.releases,
            prior=self.prior,
            alone=self.alone,
            key=self.key,
            trace=None,
            enqueued_at=EPOCH,
            ready_at=EPOCH + timedelta(seconds=self.ready_at),
            rank=self.rank,
            pos=self.pos or 0,
        )


# ── the arrows ───────────────────────────────────────────────────────────────────────────────────


def enqueued(task: Task, delay: float | None, now: float) -> Task:
    """Nowhere → ready, deferred, or waiting for its key."""
    if delay:
        return replace(task, state="deferred", due_at=now + delay, ready_at=now + delay)
    if task.key is not None:
        return replace(task, state="waiting", due_at=now, ready_at=now)
    return replace(task, state="ready", ready_at=now)


def claimed(task: Task, owner: int) -> Task:
    """ready → running."""
    slot = None if task.unique_scope == "while_waiting" else task.unique_slot
    return replace(task, state="running", fence=task.fence + 1, owner=owner, unique_slot=slot)


def unclaimed(task: Task) -> Task:
    """running → ready: claimed ahead and never started."""
    return replace(task, state="ready", owner=None, front=True)


def promoted(task: Task) -> Task:
    """deferred → ready, or waiting for a key that it does not hold yet."""
    due = task.due_at or 0.0
    if task.key is None or task.granted:
        return replace(task, state="ready", front=False, due_at=None, ready_at=due)
    return replace(task, state="waiting", front=False, ready_at=due)


def given_its_key(task: Task, now: float) -> Task:
    """waiting → ready, in the front lane."""
    return replace(task, state="ready", front=True, granted=True, due_at=None, ready_at=now)


def cancelled(task: Task) -> Task:
    """ready, deferred, waiting → cancelled."""
    return _over(task, "cancelled", task.claim.attempt)


def revived(task: Task, step: str | None, now: float) -> Task:
    """buried → ready, or waiting for its key."""
    same = step in (None, task.step)
    back = Task(
        id=task.id,
        queue=task.queue,
        job=task.job,
        step=task.step if step is None else step,
        input=task.input,
        fence=task.fence,
        visit=task.visit if same else task.visit + 1,
        prior=(task.ended_at_attempt or 0) if same else 0,
        priority=task.priority,
        key=task.key,
        unique_slot=task.unique_slot,
        unique_scope=task.unique_scope,
    )
    return enqueued(back, None, now)


def apply(task: Task, transition: Transition, now: float = 0.0) -> Task:
    """running → wherever ``fleet.lifecycle`` has decided."""
    match transition:
        case Advance():
            return _moved(task, transition)
        case PutBack():
            return _put_back(task, transition, now)
        case Finish():
            state = "succeeded" if transition.keep else "deleted"
            return _over(task, state, task.claim.attempt)
        case Bury():
            return replace(
                _over(task, "buried" if transition.keep else "deleted", task.claim.attempt),
                reason=transition.reason,
                error=transition.error.type,
                failures=transition.failures,
                crashes=transition.crashes,
                losses=transition.losses,
            )
        case Cancel():
            return cancelled(task)


def _moved(task: Task, step: Advance) -> Task:
    return replace(
        task,
        step=step.step,
        input=step.input,
        fence=task.fence + 1,
        visit=task.visit + 1,
        failures=0,
        crashes=0,
        losses=0,
        releases=0,
        prior=0,
        alone=False,
        error=None,
        priority=task.priority if step.priority is None else step.priority,
    )


def _put_back(task: Task, back: PutBack, now: float) -> Task:
    state, due = "ready", None
    if back.delay is not None:
        state, due = "deferred", now + back.delay
    elif back.key is not None:
        state, due = "waiting", now
    error = None if back.outcome == "next" else task.error
    return replace(
        task,
        state=state,
        due_at=due,
        ready_at=now + (back.delay or 0.0),
        owner=None,
        key=back.key or task.key,
        granted=task.granted and back.key is None,
        front=True,
        step=back.step,
        input=task.input if back.input is None else back.input,
        visit=back.visit,
        failures=back.failures,
        crashes=back.crashes,
        losses=back.losses,
        releases=back.releases,
        prior=back.prior,
        alone=back.alone,
        priority=task.priority if back.priority is None else back.priority,
        error=back.error.type if back.error else error,
    )


def _off(task: Task) -> Task:
    return replace(task, pos=None)


def _over(task: Task, state: str, attempt: int) -> Task:
    return replace(
        task,
        state=state,
        owner=None,
        granted=False,
        due_at=None,
        pos=None,
        ended_at_attempt=attempt,
    )


# ── the tables ───────────────────────────────────────────────────────────────────────────────────


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
        if isinstance(transition, Advance | PutBack):
            outcome = transition.outcome if isinstance(transition, PutBack) else "next"
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
        self._put(_over(self.tasks[task_id], "deleted", 0))
        self.arrows = arrows

    def _put(self, *rows: Task) -> None:
        """One statement: every row first, then the keys that it has set free."""
        before = {row.id: self.tasks.get(row.id) for row in rows}
        for row in rows:
            if row.state == "ready":
                self.drew.append(row.id)
            self.tasks[row.id] = row if row.pos is None or row.state in PLACED else _off(row)
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


def documented_arrows() -> set[Arrow]:
    """The arrows of the diagram on docs/state-machine.md."""
    diagram = re.search(r"```mermaid\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert diagram, f"{PAGE.name} has no diagram"
    return _arrows(diagram[1].splitlines())


def _arrows(lines: Iterable[str]) -> set[Arrow]:
    found = (re.match(r"\s*(\S+) --> (\w+)", line) for line in lines)
    return {(arrow[1], arrow[2]) for arrow in found if arrow}
