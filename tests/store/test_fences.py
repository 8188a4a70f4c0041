"""Every write names task, fence and owner; what is late writes nothing."""

from __future__ import annotations

from datetime import UTC, datetime

import asyncpg
import pytest

from fleet.lifecycle import (
    Advanced,
    Cancelled,
    Completed,
    Crashed,
    Failed,
    Lost,
    Refused,
    Released,
    Snoozed,
)
from fleet.model import Failure
from fleet.policy import Policy
from fleet.store import claims
from fleet.store.failed import Place, failed_after
from fleet.store.outcomes import write
from fleet.store.standing import standing
from tests.store.conftest import ALICE, BOB

ERROR = Failure(type="ValueError", message="bad")

EVENTS = [
    Completed('"done"'),
    Advanced("two", "1"),
    Advanced("two", "1", delay=5),
    Snoozed(5),
    Failed(ERROR),
    Refused("fatal", ERROR),
    Crashed(ERROR),
    Lost(ERROR),
    Released(),
    Cancelled(),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda e: type(e).__name__)
async def test_p07_a_stalled_host_cannot_write_to_a_reclaimed_task(table, event):
    await table.enqueue('{"image": 7}')
    stale = await table.claim_one(ALICE)
    await table.settle(ALICE, (stale, Lost(ERROR)))
    fresh = await table.claim_one(BOB)
    before = await table.row(fresh.id)
    attempts = await table.db.fetchval("select count(*) from fleet.attempt")

    report = await table.settle(ALICE, (stale, event))
    assert report.lost == {stale.id}
    assert not report.fences
    assert await table.row(fresh.id) == before
    assert await table.db.fetchval("select count(*) from fleet.attempt") == attempts

    report = await table.settle(BOB, (fresh, Completed("1")))
    assert report.fences == {fresh.id: fresh.fence}


@pytest.mark.parametrize("event", EVENTS, ids=lambda e: type(e).__name__)
async def test_p07_nobody_writes_twice_and_nobody_for_another(table, event):
    await table.enqueue("1")
    claim = await table.claim_one(ALICE)
    assert (await table.settle(BOB, (claim, event))).lost == {claim.id}
    assert (await table.settle(ALICE, (claim, event))).fences
    assert (await table.settle(ALICE, (claim, event))).lost == {claim.id}


async def test_the_fence_grows_with_every_claim_and_every_step(table):
    (task,) = await table.enqueue("1")
    fences = []
    for _ in range(3):
        claim = await table.claim_one()
        fences.append(claim.fence)
        report = await table.settle(ALICE, (claim, Advanced("two", "2")))
        fences.append(report.fences[task])
        moved = claim._replace(fence=report.fences[task], step="two", visit=claim.visit + 1)
        await table.settle(ALICE, (moved, Advanced("one", "1", delay=0.0001)))
        await table.db.execute("select pg_sleep(0.001)")
    assert fences == sorted(set(fences)), "strictly growing"


async def test_p08_a_poison_task_is_buried_after_three_crashes(table):
    (task,) = await table.enqueue("1")
    died = Crashed(Failure(type="Crash", message="SIGSEGV"))
    for _ in range(3):
        assert await table.state(task) == "ready"
        await table.settle(ALICE, (await table.claim_one(), died))
    assert await table.state(task) == "buried"
    row = await table.db.fetchrow(
        "select reason, crashes, failures, error->>'message' as m from fleet.buried"
    )
    assert tuple(row) == ("poison", 3, 0, "SIGSEGV")


async def test_released_tasks_go_to_the_front(table):
    first, second, third = await table.enqueue("1", "2", "3")
    one = await table.claim_one()
    two = await table.claim_one()
    await table.settle(ALICE, (two, Released()), (one, Snoozed(0)))
    assert [c.id for c in await table.claim(limit=9)] == [second, third, first]


async def test_f37_one_outcome_that_the_database_refuses_is_buried_and_the_rest_is_written(table):
    ids = await table.enqueue(*["1"] * 500)
    claimed = await table.claim(limit=500)
    outcomes = [table.outcome(c, Completed('"fine"')) for c in claimed]
    culprit = claimed[321]
    outcomes[321] = table.outcome(culprit, Completed('"nul \\u0000 inside"'))

    report = await write(table.db, ALICE, outcomes)

    assert report.unstorable == {culprit.id}
    assert len(report.fences) == 500
    assert await table.db.fetchval("select count(*) from fleet.archive") == 499
    row = await table.db.fetchrow("select id, reason, error::text from fleet.buried")
    assert (row["id"], row["reason"]) == (culprit.id, "unstorable")
    assert "inside" not in row["error"], "the data itself is not quoted"
    assert sorted(ids) == sorted(report.fences)


async def test_a_locked_row_is_busy_not_lost_and_holds_nobody_up(table, dsn):
    ids = await table.enqueue("1", "2")
    claimed = await table.claim(limit=2)
    other = await asyncpg.connect(dsn)
    transaction = other.transaction()
    await transaction.start()
    await other.execute("select from fleet.task where id = $1 for update", ids[0])

    report = await table.settle(ALICE, *[(c, Released()) for c in claimed])
    assert report.busy == {ids[0]}
    assert set(report.fences) == {ids[1]}

    await transaction.rollback()
    await other.close()
    report = await table.settle(ALICE, (claimed[0], Released()))
    assert set(report.fences) == {ids[0]}


async def test_p04_a_silent_owners_tasks_are_found_and_run_elsewhere(table):
    await table.enqueue("1", "2", "3")
    mine = await table.claim(ALICE, limit=2)
    assert [c.id for c in await claims.held(table.db, ALICE)] == [c.id for c in mine]

    taken = await claims.held(table.db, ALICE)
    await table.settle(ALICE, *[(c, Lost(ERROR)) for c in taken])
    again = await table.claim(BOB, limit=3)
    assert [c.id for c in again][:2] == [c.id for c in mine], "ahead of the queue"
    assert [c.losses for c in again] == [1, 1, 0]
    assert [c.attempt for c in again] == [1, 1, 1], "a first loss is free"


async def test_f19_after_a_lost_reply_the_truth_is_in_the_row(table):
    await table.enqueue("1", "2", "3")
    held, moved, done = await table.claim(limit=3)
    await table.settle(ALICE, (moved, Advanced("two", "2")), (done, Completed("1")))
    assert (await standing(table.db, ALICE, held)).how == "held"
    assert await standing(table.db, ALICE, moved) == ("advanced", moved.fence + 1)
    assert (await standing(table.db, ALICE, done)).how == "over"
    assert (await standing(table.db, BOB, held)).how == "over"


async def test_p14_a_dropped_failure_leaves_no_letter_and_is_told_all_the_same(table):
    (task,) = await table.enqueue("1")
    claim = await table.claim_one()
    policy = Policy(on_failure="delete")
    await write(table.db, ALICE, [table.outcome(claim, Refused("fatal", ERROR), policy)])
    assert await table.state(task) == "nowhere"
    (told,) = await failed_after(table.db, Place(datetime(2000, 1, 1, tzinfo=UTC)))
    assert (told.task_id, told.outcome, told.final, told.error) == (task, "failed", True, ERROR)
