"""What becomes of a task: (the task, what happened) → a transition. Pure, and only here.

    what happened            event       transition
    ─────────────            ─────       ──────────
    the step went on         Advanced    Advance (stays claimed); PutBack with a delay or key
    the last step ended      Completed   Finish
    To.snooze                Snoozed     PutBack deferred, nothing charged
    the step raised          Failed      PutBack deferred; Bury once Retry is exhausted
    Fatal, undecodable       Refused     Bury
    its process died         Crashed     PutBack in the front lane; Bury when the budget is spent
    its host fell silent     Lost        PutBack in the front lane; a loss while alone is a crash
    a drain handed it back   Released    PutBack in the front lane, nothing charged
    somebody cancelled it    Cancelled   Cancel

``fleet.store.outcomes`` has one statement for each transition. The diagram is
docs/state-machine.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from fleet.model import BuryReason, Claim, Failure, Json, Seconds
from fleet.policy import Policy

CRASH_BUDGET = 3
FREE_LOSSES = 1

AttemptOutcome: TypeAlias = Literal[
    "next", "snoozed", "failed", "timed_out", "crashed", "lost", "released"
]


# ── what happened ────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Advanced:
    """The step is done and another one follows.

    ``priority`` and ``key`` are the next step's own, None where it has none.
    """

    step: str
    input: Json
    delay: Seconds | None = None
    priority: int | None = None
    key: str | None = None


@dataclass(frozen=True, slots=True)
class Completed:
    """The task is done."""

    result: Json


@dataclass(frozen=True, slots=True)
class Snoozed:
    """The step wants to run again later."""

    delay: Seconds


@dataclass(frozen=True, slots=True)
class Failed:
    """The step raised, or ran into its timeout."""

    error: Failure
    timed_out: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    """Another attempt would be pointless."""

    reason: Literal["fatal", "undecodable", "unstorable"]
    error: Failure


@dataclass(frozen=True, slots=True)
class Crashed:
    """The process died under the step.

    ``suspects`` is how many steps were running in it: one is to blame; of several, nobody is.
    """

    error: Failure
    suspects: int = 1


@dataclass(frozen=True, slots=True)
class Lost:
    """The owner's lease ran out."""

    error: Failure


@dataclass(frozen=True, slots=True)
class Released:
    """The owner handed the task back; it had no part in it."""

    error: Failure | None = None


@dataclass(frozen=True, slots=True)
class Cancelled:
    """Somebody asked for its end and the step has stopped."""


Event: TypeAlias = (
    Advanced | Completed | Snoozed | Failed | Refused | Crashed | Lost | Released | Cancelled
)


# ── what becomes of it ───────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Advance:
    """running → running: the next step, still claimed. Fence and visit grow, counts start anew."""

    step: str
    input: Json
    priority: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PutBack:
    """running → ready (``delay`` None: front lane), deferred, or waiting (for a new ``key``)."""

    outcome: AttemptOutcome
    delay: Seconds | None = None
    step: str
    input: Json | None = None  # None: as it was
    visit: int
    failures: int
    crashes: int
    losses: int
    releases: int
    prior: int
    alone: bool
    priority: int | None = None
    key: str | None = None
    error: Failure | None = None


@dataclass(frozen=True, slots=True)
class Finish:
    """running → succeeded, in the archive; or deleted, where the job keeps no history."""

    result: Json
    keep: bool = True


@dataclass(frozen=True, slots=True)
class Bury:
    """running → buried; or deleted, where the job keeps no failures. The counts are final."""

    reason: BuryReason
    error: Failure
    failures: int
    crashes: int
    losses: int
    keep: bool = True


@dataclass(frozen=True, slots=True)
class Cancel:
    """running → cancelled, in the archive."""


Transition: TypeAlias = Advance | PutBack | Finish | Bury | Cancel


# ── the decision ─────────────────────────────────────────────────────────────────────────────────


def decide(task: Claim, event: Event, policy: Policy, chance: float) -> Transition:
    """Decide what becomes of ``task``; ``chance`` in [0, 1) is a retry's jitter."""
    match event:
        case Completed():
            return Finish(event.result, keep=policy.on_success == "archive")
        case Advanced():
            return after_step(task, event)
        case Snoozed():
            return _again(task, "snoozed", delay=event.delay)
        case Failed():
            return after_failure(task, event, policy, chance)
        case Refused():
            return _bury(task, event.reason, event.error, policy)
        case Crashed():
            return after_crash(task, event, policy)
        case Lost():
            return after_loss(task, event, policy)
        case Released():
            return _again(task, "released", releases=task.releases + 1, error=event.error)
        case Cancelled():
            return Cancel()


def after_step(task: Claim, event: Advanced) -> Advance | PutBack:
    """Go on with the next step: on the spot, unless it must wait for its time or for a key."""
    new_key = event.key if event.key != task.key else None
    if event.delay is None and new_key is None:
        return Advance(event.step, event.input, event.priority)
    return PutBack(
        outcome="next",
        delay=event.delay,
        step=event.step,
        input=event.input,
        visit=task.visit + 1,
        failures=0,
        crashes=0,
        losses=0,
        releases=0,
        prior=0,
        alone=False,
        priority=event.priority,
        key=new_key,
    )


def after_failure(task: Claim, event: Failed, policy: Policy, chance: float) -> PutBack | Bury:
    """Try again after a while, as often as ``Retry`` says."""
    failures = task.failures + 1
    if failures >= policy.retry.max_attempts:
        return _bury(task, "exhausted", event.error, policy, failures=failures)
    return _again(
        task,
        "timed_out" if event.timed_out else "failed",
        delay=policy.retry.delay(failures, chance),
        failures=failures,
        error=event.error,
    )


def after_crash(task: Claim, event: Crashed, policy: Policy) -> PutBack | Bury:
    """Decide what becomes of a task whose process died under it."""
    # A budget of its own, smaller than for failures: a segfault takes its neighbours down too, so
    # it must not buy as many restarts as an exception. Whoever dies in company is only a suspect.
    crashes = task.crashes + (1 if event.suspects == 1 else 0)
    if crashes >= CRASH_BUDGET:
        return _bury(task, "poison", event.error, policy, crashes=crashes)
    return _again(task, "crashed", crashes=crashes, alone=True, error=event.error)


def after_loss(task: Claim, event: Lost, policy: Policy) -> PutBack | Bury:
    """Decide what becomes of a task whose host fell silent."""
    # Hosts die for reasons of their own, so the first loss is free. A task that keeps losing its
    # host is a suspect; one that loses it while nothing else ran beside it is to blame.
    losses = task.losses + 1
    if task.alone:
        crashes = task.crashes + 1
        if crashes >= CRASH_BUDGET:
            return _bury(task, "poison", event.error, policy, crashes=crashes, losses=losses)
        return _again(task, "lost", crashes=crashes, losses=losses, error=event.error)
    return _again(task, "lost", losses=losses, alone=losses > FREE_LOSSES, error=event.error)


def onward(task: Claim, step: Advance, fence: int) -> Claim:
    """Return the claim that goes on with the next step, once its ``Advance`` is written."""
    return task._replace(
        fence=fence,
        step=step.step,
        input=step.input,
        visit=task.visit + 1,
        failures=0,
        crashes=0,
        losses=0,
        releases=0,
        prior=0,
        alone=False,
        priority=task.priority if step.priority is None else step.priority,
    )


def _again(
    task: Claim,
    outcome: AttemptOutcome,
    *,
    delay: Seconds | None = None,
    failures: int | None = None,
    crashes: int | None = None,
    losses: int | None = None,
    releases: int = 0,
    alone: bool | None = None,
    error: Failure | None = None,
) -> PutBack:
    """The same step once more; what is not given stays as it was (releases count in a row)."""
    return PutBack(
        outcome=outcome,
        delay=delay,
        step=task.step,
        visit=task.visit,
        failures=task.failures if failures is None else failures,
        crashes=task.crashes if crashes is None else crashes,
        losses=task.losses if losses is None else losses,
        releases=releases,
        prior=task.prior,
        alone=task.alone if alone is None else alone,
        error=error,
    )


def _bury(
    task: Claim,
    reason: BuryReason,
    error: Failure,
    policy: Policy,
    *,
    failures: int | None = None,
    crashes: int | None = None,
    losses: int | None = None,
) -> Bury:
    return Bury(
        reason,
        error,
        failures=task.failures if failures is None else failures,
        crashes=task.crashes if crashes is None else crashes,
        losses=task.losses if losses is None else losses,
        keep=policy.on_failure == "bury",
    )
