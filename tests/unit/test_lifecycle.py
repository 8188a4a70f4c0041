"""What becomes of a task: each row of fleet.lifecycle's table."""

from __future__ import annotations

import pytest

from fleet.lifecycle import (
    CRASH_BUDGET,
    Advance,
    Advanced,
    Bury,
    Cancel,
    Cancelled,
    Completed,
    Crashed,
    Failed,
    Finish,
    Lost,
    PutBack,
    Refused,
    Released,
    Snoozed,
    decide,
    onward,
)
from fleet.policy import Policy
from fleet.retry import Retry
from tests.unit.lives import BOOM, KILLED, POLICY, SILENT, after, run_again, running
from tests.unit.model import apply, promoted, revived

# ── the step went on ─────────────────────────────────────────────────────────────────────────────


def test_u17_a_step_that_returned_goes_on_with_the_next_without_letting_go():
    task = running(failures=2, crashes=1, losses=1, releases=3, prior=4, alone=True)

    transition = decide(task.claim, Advanced("b", "2"), POLICY, 0.0)
    moved = apply(task, transition)

    assert transition == Advance("b", "2")
    assert (moved.state, moved.step, moved.input, moved.fence, moved.visit) == (
        ("running", "b", "2", 2, 2)
    )
    assert (moved.failures, moved.crashes, moved.losses, moved.releases, moved.prior) == (0,) * 5
    assert not moved.alone
    assert moved.claim.attempt == 1


def test_the_claim_goes_on_as_the_row_does():
    task = running(failures=2, crashes=1, losses=1, releases=3, prior=4, alone=True)
    step = Advance("b", "2", priority=5)

    went_on = onward(task.claim, step, fence=2)
    row = apply(task, step).claim

    # Where it stands in the line is the database's business while somebody holds it.
    assert went_on._replace(rank=0, pos=0) == row._replace(rank=0, pos=0)


def test_a_next_step_with_a_delay_lets_go_and_is_deferred():
    transition = decide(running(failures=2).claim, Advanced("b", "2", delay=60), POLICY, 0.0)

    assert isinstance(transition, PutBack)
    assert (transition.outcome, transition.delay, transition.step) == ("next", 60, "b")
    assert (transition.visit, transition.failures) == (2, 0)
    assert apply(running(), transition).state == "deferred"


def test_a_step_with_a_key_of_its_own_waits_for_it_and_gives_the_old_one_up():
    task = running(key="old", granted=True)

    waiting = apply(task, decide(task.claim, Advanced("b", "2", key="new"), POLICY, 0.0))

    assert (waiting.state, waiting.key, waiting.granted) == ("waiting", "new", False)
    assert waiting.visit == 2


def test_a_step_whose_key_is_the_one_the_task_holds_just_goes_on():
    task = running(key="same", granted=True)

    assert decide(task.claim, Advanced("b", "2", key="same"), POLICY, 0.0) == Advance("b", "2")


def test_a_step_without_a_key_of_its_own_keeps_the_one_the_task_holds():
    task = running(key="old", granted=True)

    moved = apply(task, decide(task.claim, Advanced("b", "2"), POLICY, 0.0))
    deferred = apply(task, decide(task.claim, Advanced("b", "2", delay=5), POLICY, 0.0))

    assert (moved.key, moved.granted) == ("old", True)
    assert (deferred.key, deferred.granted) == ("old", True)


def test_a_step_with_a_key_of_its_own_and_a_delay_waits_for_its_time_first():
    task = running()

    later = apply(task, decide(task.claim, Advanced("b", "2", delay=5, key="new"), POLICY, 0.0))

    assert (later.state, later.key, promoted(later).state) == ("deferred", "new", "waiting")


@pytest.mark.parametrize("delay", [None, 30])
def test_a_step_with_a_priority_of_its_own_takes_it_along(delay):
    task = running(priority=1)

    event = Advanced("b", "2", delay=delay, priority=9)

    assert apply(task, decide(task.claim, event, POLICY, 0.0)).priority == 9


# ── the last step ended ──────────────────────────────────────────────────────────────────────────


def test_r10_the_last_step_archives_the_task():
    assert decide(running().claim, Completed("42"), POLICY, 0.0) == Finish("42", keep=True)
    assert after(running(), Completed("42")).state == "succeeded"


def test_r10_on_success_delete_keeps_nothing():
    policy = Policy(on_success="delete")

    assert after(running(), Completed("42"), policy=policy).state == "deleted"


# ── again ────────────────────────────────────────────────────────────────────────────────────────


def test_a_snooze_costs_nothing():
    task = running(failures=1, crashes=1, losses=1)

    snoozed = apply(task, decide(task.claim, Snoozed(30), POLICY, 0.0))

    assert (snoozed.state, snoozed.due_at) == ("deferred", 30)
    assert (snoozed.failures, snoozed.crashes, snoozed.losses) == (1, 1, 1)
    assert snoozed.claim.idempotency_key == task.claim.idempotency_key
    assert snoozed.claim.attempt == task.claim.attempt


def test_u02_a_failure_is_tried_again_after_the_delay_of_its_retry():
    first = decide(running().claim, Failed(BOOM), POLICY, 0.0)
    second = decide(running(failures=1).claim, Failed(BOOM), POLICY, 0.0)

    assert isinstance(first, PutBack)
    assert (first.outcome, first.delay, first.failures, first.error) == ("failed", 10, 1, BOOM)
    assert isinstance(second, PutBack)
    assert (second.delay, second.failures) == (20, 2)


def test_u02_the_jitter_is_the_chance_that_is_given():
    policy = Policy(retry=Retry(initial=10, jitter=0.5))

    transition = decide(running().claim, Failed(BOOM), policy, chance=0.5)

    assert isinstance(transition, PutBack)
    assert transition.delay == 7.5


def test_u09_a_timeout_is_a_failure_that_says_so():
    transition = decide(running().claim, Failed(BOOM, timed_out=True), POLICY, 0.0)

    assert isinstance(transition, PutBack)
    assert (transition.outcome, transition.failures) == ("timed_out", 1)


def test_u02_the_last_attempt_that_retry_allows_buries():
    buried = after(running(), Failed(BOOM), Failed(BOOM), Failed(BOOM))

    assert (buried.state, buried.reason, buried.failures) == ("buried", "exhausted", 3)
    assert buried.ended_at_attempt == 3


def test_one_attempt_means_no_retry():
    policy = Policy(retry=Retry(max_attempts=1))

    assert after(running(), Failed(BOOM), policy=policy).reason == "exhausted"


def test_a_release_is_free_goes_to_the_front_and_is_counted_in_a_row():
    task = running(failures=1, crashes=1)

    released = apply(task, decide(task.claim, Released(), POLICY, 0.0))
    twice = after(task, Released(), Released())

    assert (released.state, released.front, released.releases) == ("ready", True, 1)
    assert (released.failures, released.crashes) == (1, 1)
    assert (twice.releases, twice.claim.attempt) == (2, task.claim.attempt)


@pytest.mark.parametrize("event", [Snoozed(1), Failed(BOOM), Crashed(KILLED), Lost(SILENT)])
def test_anything_else_ends_a_row_of_releases(event):
    assert after(running(), Released(), Released(), event).releases == 0


def test_a_thousand_releases_and_snoozes_bury_nothing():
    task = after(running(), *[Released(), Snoozed(1)] * 500)

    assert (task.state, task.claim.attempt) == ("running", 1)


# ── the end, against its will ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("reason", ["fatal", "undecodable", "unstorable"])
def test_u09_u10_what_is_pointless_to_try_again_is_buried_at_once_with_its_error(reason):
    transition = decide(running(failures=1).claim, Refused(reason, BOOM), POLICY, 0.0)

    assert isinstance(transition, Bury)
    assert (transition.reason, transition.error, transition.keep) == (reason, BOOM, True)


@pytest.mark.parametrize("event", [Refused("fatal", BOOM), Failed(BOOM), Crashed(KILLED)])
def test_r10_on_failure_delete_keeps_nothing(event):
    policy = Policy(retry=Retry(max_attempts=1), on_failure="delete")

    assert after(running(crashes=2), event, policy=policy).state == "deleted"


def test_u18_a_cancelled_task_is_cancelled():
    assert decide(running().claim, Cancelled(), POLICY, 0.0) == Cancel()


# ── blame ────────────────────────────────────────────────────────────────────────────────────────


def test_the_only_step_in_a_process_that_died_is_charged_and_runs_alone():
    task = running()

    crashed = apply(task, decide(task.claim, Crashed(KILLED, suspects=1), POLICY, 0.0))

    assert (crashed.state, crashed.front) == ("ready", True)
    assert (crashed.crashes, crashed.alone) == (1, True)
    assert crashed.claim.attempt == 2


def test_of_several_in_a_process_that_died_nobody_is_charged_but_each_runs_alone():
    task = running(crashes=CRASH_BUDGET - 1)

    suspect = apply(task, decide(task.claim, Crashed(KILLED, suspects=2), POLICY, 0.0))

    assert (suspect.state, suspect.crashes, suspect.alone) == ("ready", 2, True)


def test_p08_what_dies_alone_three_times_is_poison():
    buried = after(running(), Crashed(KILLED), Crashed(KILLED), Crashed(KILLED))

    assert (buried.state, buried.reason, buried.crashes) == ("buried", "poison", 3)


def test_failures_and_crashes_have_budgets_of_their_own():
    task = after(running(), Failed(BOOM), Crashed(KILLED), Failed(BOOM), Crashed(KILLED))

    assert (task.state, task.failures, task.crashes) == ("running", 2, 2)
    assert task.claim.attempt == 5


def test_the_first_loss_is_free_from_the_second_on_it_runs_alone_then_a_loss_is_a_crash():
    once = after(running(), Lost(SILENT))
    twice = after(once, Lost(SILENT))
    thrice = after(twice, Lost(SILENT))

    assert (once.losses, once.crashes, once.alone) == (1, 0, False)
    assert (twice.losses, twice.crashes, twice.alone) == (2, 0, True)
    assert (thrice.losses, thrice.crashes, thrice.alone) == (3, 1, True)


def test_losing_its_host_again_and_again_is_poison_in_the_end():
    buried = after(running(), *[Lost(SILENT)] * 5)

    assert (buried.state, buried.reason) == ("buried", "poison")
    assert (buried.losses, buried.crashes) == (5, 3)


def test_a_suspect_that_loses_its_host_is_charged_even_the_first_time():
    task = after(running(), Crashed(KILLED, suspects=2), Lost(SILENT))

    assert (task.losses, task.crashes) == (1, 1)


def test_a_suspect_stays_alone_until_its_step_is_done():
    suspect = after(running(), Crashed(KILLED, suspects=2), Failed(BOOM), Released(), Snoozed(1))

    assert suspect.alone
    assert not after(suspect, Advanced("b", "2")).alone


# ── revival ──────────────────────────────────────────────────────────────────────────────────────


def test_p09_a_revived_step_has_new_budgets_and_goes_on_counting_its_attempts():
    buried = after(running(), Failed(BOOM), Failed(BOOM), Failed(BOOM))

    back = run_again(revived(buried, None, 0.0))

    assert (back.failures, back.prior, back.claim.attempt) == (0, 3, 4)
    assert back.fence > buried.fence
    assert back.claim.idempotency_key == buried.claim.idempotency_key


@pytest.mark.parametrize("reason", ["fatal", "undecodable", "unstorable"])
def test_the_number_of_an_attempt_that_counted_as_no_failure_is_not_used_again(reason):
    buried = after(running(), Failed(BOOM), Refused(reason, BOOM))

    back = run_again(revived(buried, None, 0.0))

    assert (buried.ended_at_attempt, back.claim.attempt) == (2, 3)
    again = run_again(revived(after(back, Refused(reason, BOOM)), None, 0.0))
    assert again.claim.attempt == 4


def test_p09_what_was_refused_was_an_attempt_too():
    buried = after(running(), Refused("fatal", BOOM))

    assert (buried.ended_at_attempt, revived(buried, None, 0.0).claim.attempt) == (1, 2)


def test_u12_a_task_revived_at_another_step_enters_it_anew():
    buried = after(running(), Failed(BOOM), Failed(BOOM), Failed(BOOM))

    back = revived(buried, "b", 0.0)

    assert (back.step, back.visit, back.prior, back.claim.attempt) == ("b", 2, 0, 1)
