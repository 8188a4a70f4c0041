"""Short words for what happens to a task."""

from __future__ import annotations

from fleet.lifecycle import (
    Event,
    decide,
)
from fleet.model import Failure
from fleet.policy import Policy
from fleet.retry import Retry
from tests.unit.model import Task, apply, claimed, given_its_key, promoted

BOOM = Failure(type="ValueError", message="boom")
KILLED = Failure(type="Killed", message="signal 9")
SILENT = Failure(type="LeaseLost", message="host fell silent")
POLICY = Policy(retry=Retry(max_attempts=3, initial=10, jitter=0))


def running(**columns) -> Task:
    return Task(id=7, state="running", fence=1, owner=1, **columns)


def after(task: Task, *events: Event, policy: Policy = POLICY) -> Task:
    """Let events happen to a task, claiming it again whenever it was put back."""
    for event in events:
        task = apply(task, decide(task.claim, event, policy, 0.0))
        if task.live:
            task = run_again(task)
    return task


def run_again(task: Task) -> Task:
    if task.state == "deferred":
        task = promoted(task)
    if task.state == "waiting":
        task = given_its_key(task, 0.0)
    return task if task.state == "running" else claimed(task, owner=1)
