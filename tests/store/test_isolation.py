"""Callers at REPEATABLE READ and SERIALIZABLE, whose snapshot is older than what they meet.

Either it is right, or PostgreSQL says 40001 and the caller's next try is right. Nothing is lost,
and nobody is stuck afterwards.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from fleet import Context, Fleet, ReviveRefused, TaskNotFound
from fleet.lifecycle import Completed, Refused, Released
from fleet.model import Failure, Submission, TaskId
from fleet.store import beats, claims, results, tasks
from fleet.store.enqueue import insert_one
from fleet.store.outcomes import write_in_transaction
from tests.store.conftest import ALICE, Table
from tests.store.test_client import until

ERROR = Failure(type="ValueError", message="boom")
TASK = {"job": "resize", "step": "one", "queue": "images", "input": "1"}


class Caller:
    """An application's connection; ``begin`` takes its snapshot, and the world goes on."""

    def __init__(self, conn: asyncpg.Connection, isolation: str) -> None:
        self.conn = conn
        self._isolation = isolation

    async def begin(self) -> None:
        self._transaction = self.conn.transaction(isolation=self._isolation)
        await self._transaction.start()
        await self.conn.fetch("select count(*) from fleet.task")

    async def commit(self) -> None:
        await self._transaction.commit()

    async def again(self) -> None:
        """Roll back and begin afresh, as a caller does after 40001."""
        await self._transaction.rollback()
        await self.begin()

    async def enqueue(self, **options) -> tuple[TaskId, bool]:
        return await insert_one(self.conn, Submission(**TASK | options))


@pytest.fixture(params=["repeatable_read", "serializable"])
async def caller(request, dsn: str) -> AsyncIterator[Caller]:
    conn = await asyncpg.connect(dsn)
    yield Caller(conn, request.param)
    await conn.close()


async def bury(table: Table, **options) -> TaskId:
    (task,) = await table.enqueue("1", **options)
    await table.settle(ALICE, (await table.claim_one(), Refused("fatal", ERROR)))
    assert await table.state(task) == "buried"
    return task


# ── enqueue ──────────────────────────────────────────────────────────────────────────────────────


async def test_a_plain_task_is_written_whatever_the_snapshot(table: Table, caller: Caller):
    await caller.begin()
    (other,) = await table.enqueue("1")
    task, created = await caller.enqueue()
    assert created
    await caller.commit()
    assert {c.id for c in await table.claim(limit=2)} == {other, task}


async def test_the_public_call_writes_on_such_a_connection_too(dsn, table: Table, caller: Caller):
    app = Fleet(dsn)

    @app.job("resize", queue="images")
    async def one(ctx: Context, n: int) -> None: ...

    await caller.begin()
    await table.enqueue("1")
    handle = await one.enqueue(2, conn=caller.conn)
    more = await one.enqueue_many([3, 4], conn=caller.conn)
    await caller.commit()
    states = [await table.state(h.id) for h in [handle, *more]]
    assert states == ["ready"] * 3


async def test_a_key_that_was_let_go_since_the_snapshot_is_granted(table: Table, caller: Caller):
    await table.enqueue("1", key="k")
    first = await table.claim_one()
    await caller.begin()
    await table.settle(ALICE, (first, Completed("1")))
    task, _ = await caller.enqueue(key="k")
    await caller.commit()
    assert (await table.claim_one()).id == task


async def test_a_key_that_was_taken_since_the_snapshot_is_waited_for(table: Table, caller: Caller):
    await caller.begin()
    await table.enqueue("1", key="k")
    first = await table.claim_one()
    task, _ = await caller.enqueue(key="k")
    await caller.commit()
    assert await table.claim() == []
    await table.settle(ALICE, (first, Completed("1")))
    assert (await table.claim_one()).id == task


async def test_a_slot_that_was_taken_since_the_snapshot_is_a_serialization_failure(
    table: Table, caller: Caller
):
    await caller.begin()
    (holder,) = await table.enqueue("1", unique="u")
    with pytest.raises(asyncpg.SerializationError):
        await caller.enqueue(unique="u")
    await caller.again()
    assert await caller.enqueue(unique="u") == (holder, False)
    await caller.commit()


async def test_a_slot_that_was_freed_since_the_snapshot_is_taken(table: Table, caller: Caller):
    await table.enqueue("1", unique="u")
    await caller.begin()
    await table.settle(ALICE, (await table.claim_one(), Completed("1")))
    task, created = await caller.enqueue(unique="u")
    assert created
    await caller.commit()
    assert (await table.claim_one()).id == task


@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_a_slot_that_an_open_transaction_holds_is_decided_by_its_end(
    dsn, table: Table, caller: Caller, end
):
    other = await asyncpg.connect(dsn)
    transaction = other.transaction()
    await transaction.start()
    held = await insert_one(other, Submission(**TASK, unique="u"))
    await caller.begin()
    waiting = asyncio.create_task(caller.enqueue(unique="u"))
    pid = caller.conn.get_server_pid()
    await until(lambda: table.db.fetchval("select cardinality(pg_blocking_pids($1)) > 0", pid))
    await getattr(transaction, end)()
    if end == "commit":
        with pytest.raises(asyncpg.SerializationError):
            await waiting
        await caller.again()
        assert await caller.enqueue(unique="u") == (held.id, False)
    else:
        _, created = await waiting
        assert created
    await caller.commit()
    await other.close()
    assert len(await table.claim(limit=2)) == 1


async def test_two_callers_at_once_do_not_fail_for_each_other(dsn, table: Table, caller: Caller):
    conn = await asyncpg.connect(dsn)
    other = Caller(conn, caller._isolation)
    for one in (caller, other):
        one._transaction = one.conn.transaction(isolation=one._isolation)
        await one._transaction.start()  # nothing is read but what an enqueue itself reads
    made = set()
    for name, one in (("a", caller), ("b", other)):
        for options in ({}, {"key": name}, {"unique": name}, {"key": "both"}):
            made.add((await one.enqueue(**options))[0])
    await caller.commit()
    await other.commit()
    await conn.close()
    # One of the two behind the key of both comes later.
    assert len({c.id for c in await table.claim(limit=10)} & made) == 7


# ── cancel ───────────────────────────────────────────────────────────────────────────────────────


async def test_cancelling_what_was_claimed_since_the_snapshot(table: Table, caller: Caller):
    (task,) = await table.enqueue("1")
    await caller.begin()
    claim = await table.claim_one()
    with pytest.raises(asyncpg.SerializationError):
        await results.cancel(caller.conn, task)
    await caller.again()
    assert await results.cancel(caller.conn, task) == "requested"
    await caller.commit()
    assert await results.is_to_be_cancelled(table.db, task)
    assert (await table.settle(ALICE, (claim, Completed("1")))).fences, "the claim is untouched"


async def test_cancelling_what_ended_since_the_snapshot(table: Table, caller: Caller):
    (task,) = await table.enqueue("1")
    await caller.begin()
    await table.settle(ALICE, (await table.claim_one(), Completed("1")))
    with pytest.raises(asyncpg.SerializationError):
        await results.cancel(caller.conn, task)
    await caller.again()
    assert await results.cancel(caller.conn, task) == "ended"
    await caller.commit()


async def test_cancelling_what_was_put_back_since_the_snapshot(table: Table, caller: Caller):
    (task,) = await table.enqueue("1")
    claim = await table.claim_one()
    await caller.begin()
    await table.settle(ALICE, (claim, Released()))
    assert await results.cancel(caller.conn, task) == "requested"
    await caller.commit()
    await results.cancel_leftovers(table.db)
    assert await table.state(task) == "cancelled", "the next beat carries the wish out"


async def test_cancelling_what_came_after_the_snapshot(table: Table, caller: Caller):
    await caller.begin()
    (task,) = await table.enqueue("1")
    with pytest.raises(TaskNotFound):
        await results.cancel(caller.conn, task)
    await caller.commit()
    assert await table.state(task) == "ready"


async def test_cancelling_a_holder_hands_its_key_on(table: Table, caller: Caller):
    (first,) = await table.enqueue("1", key="k")
    await claims.grant_keys(table.db)
    await caller.begin()
    (second,) = await table.enqueue("2", key="k")
    await claims.grant_keys(table.db)
    assert await results.cancel(caller.conn, first) == "cancelled"
    await caller.commit()
    assert (await table.claim_one()).id == second


# ── revive ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("options", [{}, {"key": "k"}], ids=["plain", "keyed"])
async def test_reviving_on_an_old_snapshot(table: Table, caller: Caller, options):
    task = await bury(table, **options)
    await caller.begin()
    (other,) = await table.enqueue("2", **options)
    await tasks.revive(caller.conn, task)
    await caller.commit()
    ran = []
    while claimed := await table.claim():
        ran += [claim.id for claim in claimed]
        await table.settle(ALICE, *[(claim, Completed("1")) for claim in claimed])
    assert set(ran) == {task, other}


async def test_reviving_what_somebody_revived_since_the_snapshot(table: Table, caller: Caller):
    task = await bury(table)
    await caller.begin()
    await tasks.revive(table.db, task)
    with pytest.raises(asyncpg.SerializationError):
        await tasks.revive(caller.conn, task)
    await caller.again()
    with pytest.raises(ReviveRefused, match="is live"):
        await tasks.revive(caller.conn, task)
    assert [claim.id for claim in await table.claim(limit=2)] == [task]


async def test_reviving_into_a_slot_that_was_taken_since_the_snapshot(table: Table, caller: Caller):
    task = await bury(table, unique="u")
    await caller.begin()
    (holder,) = await table.enqueue("2", unique="u")
    with pytest.raises(asyncpg.SerializationError):
        await tasks.revive(caller.conn, task)
    await caller.again()
    with pytest.raises(ReviveRefused, match=f"held by task {holder}"):
        await tasks.revive(caller.conn, task)
    await caller.again()
    await caller.commit()
    assert await table.state(task) == "buried", "nothing is lost"


# ── outcomes ─────────────────────────────────────────────────────────────────────────────────────


async def test_an_outcome_after_the_row_has_moved_fails_and_can_be_written_again(
    table: Table, caller: Caller
):
    (task,) = await table.enqueue("1")
    claim = await table.claim_one()
    await caller.begin()
    await beats.note_progress(table.db, ALICE, [[claim.id, claim.fence, 0.5, "half"]])
    outcome = table.outcome(claim, Completed("1"))
    with pytest.raises(asyncpg.SerializationError):
        await write_in_transaction(caller.conn, ALICE, outcome)
    assert await table.state(task) == "running"
    await caller.again()
    assert await write_in_transaction(caller.conn, ALICE, outcome) is not None
    await caller.commit()
    assert await table.state(task) == "succeeded"
