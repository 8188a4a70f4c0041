"""unique: at most one live task a name, and when its slot is free again."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from fleet.lifecycle import Completed, Failed, Refused
from fleet.model import Failure, Submission
from fleet.store.enqueue import insert_one
from tests.store.conftest import ALICE, Table

ERROR = Failure(type="ValueError", message="bad")


def once(scope: str = "while_live", **options) -> Submission:
    options = {"job": "resize", "step": "one", "queue": "images", "input": "1"} | options
    return Submission(unique="order-43", unique_scope=scope, **options)


async def test_a_repeat_finds_the_first(table: Table):
    first = await insert_one(table.db, once())
    again = await insert_one(table.db, once(input="2"))
    assert (first.created, again.created) == (True, False)
    assert first.id == again.id
    other_job = await insert_one(table.db, once(job="other"))
    assert other_job.created, "the scope of a unique name is its job"


async def test_while_live_keeps_its_slot_until_the_end(table: Table, fleet_clock):
    first = await insert_one(table.db, once())
    claim = await table.claim_one()
    await table.settle(ALICE, (claim, Failed(ERROR)))
    assert not (await insert_one(table.db, once())).created, "also while it is retried"
    await fleet_clock.advance(60)
    await table.settle(ALICE, (await table.claim_one(), Completed("1")))
    assert (await insert_one(table.db, once())).id != first.id


async def test_while_waiting_gives_its_slot_up_at_the_first_claim(table: Table):
    await insert_one(table.db, once("while_waiting"))
    assert not (await insert_one(table.db, once("while_waiting"))).created
    await table.claim_one()
    assert (await insert_one(table.db, once("while_waiting"))).created


async def test_burial_frees_the_slot_and_a_revival_rejoins_or_names_the_holder(table: Table):
    first = await insert_one(table.db, once())
    await table.settle(ALICE, (await table.claim_one(), Refused("fatal", ERROR)))
    second = await insert_one(table.db, once())
    assert second.created

    with pytest.raises(asyncpg.UniqueViolationError, match=f"held by task {second.id}"):
        await table.db.fetch("select fleet.revive($1)", first.id)
    assert await table.state(first.id) == "buried", "nothing was changed"

    await table.settle(ALICE, (await table.claim_one(), Completed("1")))
    await table.db.fetch("select fleet.revive($1)", first.id)
    assert (await insert_one(table.db, once())).id == first.id


async def test_callers_at_the_same_moment_agree_on_one(dsn: str, table: Table):
    async def call() -> tuple[int, bool]:
        conn = await asyncpg.connect(dsn)
        try:
            return await insert_one(conn, once())
        finally:
            await conn.close()

    results = await asyncio.gather(*[call() for _ in range(12)])
    assert len({r.id for r in results}) == 1
    assert sum(r.created for r in results) == 1
