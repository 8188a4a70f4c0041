"""A reference model of Fleet's tasks: what the SQL must do, in a few lines of Python a statement.

``Task`` is one row, wherever it lies; the functions below it are the arrows of
docs/state-machine.md, each pure. ``World``, beside this, is all the tables together.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeAlias

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
    return over(task, "cancelled", task.claim.attempt)


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
            return over(task, state, task.claim.attempt)
        case Bury():
            return replace(
                over(task, "buried" if transition.keep else "deleted", task.claim.attempt),
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


def off(task: Task) -> Task:
    return replace(task, pos=None)


def over(task: Task, state: str, attempt: int) -> Task:
    return replace(
        task,
        state=state,
        owner=None,
        granted=False,
        due_at=None,
        pos=None,
        ended_at_attempt=attempt,
    )


def documented_arrows() -> set[Arrow]:
    """The arrows of the diagram on docs/state-machine.md."""
    diagram = re.search(r"```mermaid\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert diagram, f"{PAGE.name} has no diagram"
    return _arrows(diagram[1].splitlines())


def _arrows(lines: Iterable[str]) -> set[Arrow]:
    found = (re.match(r"\s*(\S+) --> (\w+)", line) for line in lines)
    return {(arrow[1], arrow[2]) for arrow in found if arrow}
