"""What no sequence of events may do to a task."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fleet.lifecycle import (
    CRASH_BUDGET,
    Advanced,
    Cancelled,
    Completed,
    Crashed,
    Event,
    Failed,
    Lost,
    Refused,
    Released,
    Snoozed,
    decide,
)
from fleet.policy import Policy
from fleet.retry import Retry
from tests.unit.lives import BOOM, KILLED, SILENT, run_again
from tests.unit.model import Task, apply, revived

steps = st.sampled_from(["a", "b"])
happenings = st.one_of(
    st.builds(
        Advanced,
        steps,
        st.just("1"),
        delay=st.sampled_from([None, 5.0]),
        priority=st.sampled_from([None, 3]),
        key=st.sampled_from([None, "k", "l"]),
    ),
    st.just(Completed("1")),
    st.just(Snoozed(1.0)),
    st.builds(Failed, st.just(BOOM), st.booleans()),
    st.builds(Refused, st.sampled_from(["fatal", "undecodable", "unstorable"]), st.just(BOOM)),
    st.builds(Crashed, st.just(KILLED), st.integers(1, 3)),
    st.just(Lost(SILENT)),
    st.just(Released()),
    st.just(Cancelled()),
)
# Mostly what lets a task live on, or no sequence would be long.
lively = st.one_of(
    st.builds(Failed, st.just(BOOM)),
    st.builds(Crashed, st.just(KILLED), st.integers(1, 2)),
    st.just(Lost(SILENT)),
    st.just(Released()),
    st.just(Snoozed(1.0)),
    st.builds(Advanced, steps, st.just("1")),
)
stories = st.lists(st.one_of(lively, lively, happenings), max_size=40)
policies = st.builds(
    Policy,
    retry=st.builds(Retry, max_attempts=st.integers(1, 4)),
    on_success=st.sampled_from(["archive", "delete"]),
    on_failure=st.sampled_from(["bury", "bury", "delete"]),
)


@given(policies, stories, st.data())
def test_no_sequence_breaks_a_budget_a_fence_an_attempt_or_an_idempotency_key(policy, story, data):
    task = run_again(Task(id=7))
    for event in story:
        before = task
        task = apply(task, decide(task.claim, event, policy, 0.0))

        stays_in_its_budgets(before, event, task, policy)
        goes_on_from(before, event, task)
        if task.state == "buried" and data.draw(st.booleans(), label="revive"):
            dead, task = task, revived(task, data.draw(st.none() | steps, label="at"), 0.0)
            is_the_same_visit_or_a_new_one(dead, task, anew=task.step != dead.step)
            assert task.step != dead.step or task.claim.attempt > before.claim.attempt
            if task.step == dead.step:
                assert task.claim.attempt == (dead.ended_at_attempt or 0) + 1
        if not task.live:
            return
        task = run_again(task)
        assert task.fence > before.fence


def stays_in_its_budgets(before: Task, event: Event, task: Task, policy: Policy) -> None:
    if task.live:
        assert task.failures < policy.retry.max_attempts
        assert task.crashes < CRASH_BUDGET
    if task.reason is not None:
        assert {
            "exhausted": task.failures == policy.retry.max_attempts,
            "poison": task.crashes == CRASH_BUDGET,
        }.get(task.reason, isinstance(event, Refused))
    if isinstance(event, Released | Snoozed):
        spent = ("failures", "crashes", "losses", "prior")
        assert [getattr(task, name) for name in spent] == [getattr(before, name) for name in spent]
    if isinstance(event, Crashed) and event.suspects > 1:
        assert task.crashes == before.crashes
        assert task.alone


def goes_on_from(before: Task, event: Event, task: Task) -> None:
    assert task.fence >= before.fence
    is_the_same_visit_or_a_new_one(before, task, anew=isinstance(event, Advanced))


def is_the_same_visit_or_a_new_one(before: Task, task: Task, *, anew: bool) -> None:
    changed = task.claim.idempotency_key != before.claim.idempotency_key
    assert changed == anew
    if anew:
        assert task.visit > before.visit
        assert task.claim.attempt == 1
    else:
        assert task.claim.attempt >= before.claim.attempt
