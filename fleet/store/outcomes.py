"""Write a batch of outcomes, whatever their kinds, so that none shares another's fate.

A statement that the database refuses for its data (a NUL that slipped in, a number it cannot
hold) is halved until the culprit stands alone; that one task is buried as ``unstorable`` and all
the others are written.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeAlias

from fleet.lifecycle import Advance, Bury, Cancel, Finish, PutBack, Transition
from fleet.model import Failure, OwnerId, TaskId
from fleet.store.anew import Anew
from fleet.store.executor import Executor
from fleet.store.failures import is_locked, is_refusal
from fleet.store.writes.advance import advance
from fleet.store.writes.end import bury, cancel
from fleet.store.writes.finish import finish, finish_and_forget
from fleet.store.writes.outcome import Outcome
from fleet.store.writes.put_back import put_back

__all__ = ["Outcome", "Report", "write", "write_in_transaction"]

# Statements of thousands of rows halved the rate of three-step jobs: nothing else of the host runs
# while one is under way.
BATCH: Final = 500

_Write: TypeAlias = Callable[[Executor, OwnerId, Sequence[Any]], Awaitable[dict[TaskId, int]]]


@dataclass(slots=True)
class Report:
    """What a write did.

    ``fences`` has the fence that each written task carries now; ``lost`` belong to a later claim,
    or ended; ``busy`` are locked by somebody at the moment: write them again a little later.
    """

    fences: dict[TaskId, int] = field(default_factory=dict)
    lost: set[TaskId] = field(default_factory=set)
    busy: set[TaskId] = field(default_factory=set)
    unstorable: set[TaskId] = field(default_factory=set)


async def write(conn: Executor, owner: OwnerId, outcomes: Sequence[Outcome[Transition]]) -> Report:
    """Write what became of the claims of ``owner``; the report says what became of each write."""
    groups: dict[_Write, list[Outcome[Transition]]] = {}
    for outcome in outcomes:
        groups.setdefault(_statement(outcome.transition), []).append(outcome)

    report = Report()
    for statement, group in groups.items():
        for start in range(0, len(group), BATCH):
            await _write(conn, owner, statement, group[start : start + BATCH], report)
    missing = [o for o in outcomes if o.claim.id not in report.fences]
    if missing:
        held = await _still_held(conn, owner, missing)
        report.busy = {o.claim.id for o in missing if o.claim.id in held}
        report.lost = {o.claim.id for o in missing} - report.busy
    return report


async def write_in_transaction(
    conn: Executor, owner: OwnerId, outcome: Outcome[Transition]
) -> int | None:
    """Write one outcome inside a transaction that is the caller's; None if the fence is gone.

    A refusal is raised as it is: the transaction is broken, and the caller rolls it back.
    """
    fences = await _statement(outcome.transition)(Anew(conn), owner, [outcome])
    return fences.get(outcome.claim.id)


async def _write(
    conn: Executor,
    owner: OwnerId,
    statement: _Write,
    batch: Sequence[Outcome[Transition]],
    report: Report,
) -> None:
    try:
        report.fences |= await statement(conn, owner, batch)
    except Exception as error:
        if not is_refusal(error) and not is_locked(error):
            raise
        if len(batch) > 1:
            middle = len(batch) // 2
            await _write(conn, owner, statement, batch[:middle], report)
            await _write(conn, owner, statement, batch[middle:], report)
            return
        if is_locked(error):
            return  # what its step enqueued waits for somebody's open transaction: it is busy
        (culprit,) = batch
        try:
            report.fences |= await bury(conn, owner, [_unstorable(culprit, error)])
        except Exception as refused:
            if not is_refusal(refused):
                raise
            return  # its very row is such that nothing can be made of it; the others are written
        report.unstorable.add(culprit.claim.id)


def _unstorable(outcome: Outcome[Transition], error: Exception) -> Outcome[Bury]:
    claim = outcome.claim
    failure = Failure(
        type=type(error).__name__,
        # The first line only: what follows may quote the data.
        message=f"PostgreSQL refused to store what this step did: {str(error).splitlines()[0]}",
    )
    verdict = Bury("unstorable", failure, claim.failures, claim.crashes, claim.losses)
    return Outcome(claim, verdict, outcome.worker, outcome.took, outcome.keep)


_forget = partial(bury, keep=False)


def _statement(transition: Transition) -> _Write:
    match transition:
        case Finish():
            return finish if transition.keep else finish_and_forget
        case Advance():
            return advance
        case PutBack():
            return put_back
        case Bury():
            return bury if transition.keep else _forget
        case Cancel():
            return cancel


_STILL_HELD: Final = """
select t.id
  from fleet.task t
  join unnest($2::bigint[], $3::bigint[]) as c (id, fence) on t.id = c.id and t.fence = c.fence
 where t.id = any ($2::bigint[]) and t.owner = $1::bigint
"""


async def _still_held(
    conn: Executor, owner: OwnerId, outcomes: Sequence[Outcome[Transition]]
) -> set[TaskId]:
    rows = await conn.fetch(
        _STILL_HELD,
        owner,
        [o.claim.id for o in outcomes],
        [o.claim.fence for o in outcomes],
    )
    return {row["id"] for row in rows}
