"""Limits hold across hosts, and let go by themselves: the database's half."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from fleet.lifecycle import Advanced, Completed, Failed, Lost, Released, Snoozed
from fleet.limits import Limits, Rate
from fleet.model import Failure, OwnerId
from fleet.store import claims
from tests.store.conftest import ALICE, BOB, Table

KNOWN = ["resize/one", "resize/two", "resize/"]
ERROR = Failure(type="ValueError", message="bad")


async def claim(
    table: Table,
    most: int | None = None,
    rate: Rate | None = None,
    *,
    owner: OwnerId = ALICE,
    wanted: int = 100,
    job: bool = False,
) -> claims.Gated:
    limits = Limits(most, rate)
    which = {"job": "resize", "of_job": limits} if job else {"of_queue": limits}
    return await claims.claim_limited(table.db, owner, "images", wanted, KNOWN, **which)


@pytest.mark.parametrize("job", [False, True], ids=["queue", "job"])
async def test_no_more_run_than_the_limit_whoever_claims(table: Table, job: bool):
    await table.enqueue(*["1"] * 20)
    mine = await claim(table, 5, wanted=3, job=job)
    assert (len(mine.claims), mine.room, mine.wait) == (3, 3, None)
    theirs = await claim(table, 5, owner=BOB, job=job)
    assert (len(theirs.claims), theirs.room) == (2, 2)
    assert await claim(table, 5, job=job) == ([], 0, None)


@pytest.mark.parametrize(
    "event",
    [Completed("1"), Failed(ERROR), Released(), Snoozed(60), Lost(ERROR)],
    ids=lambda event: type(event).__name__,
)
async def test_whatever_ends_a_claim_makes_room(table: Table, event):
    await table.enqueue(*["1"] * 3)
    (held,) = (await claim(table, 1)).claims
    assert (await claim(table, 1)).claims == []
    await table.settle(ALICE, (held, event))
    assert len((await claim(table, 1)).claims) == 1


async def test_what_is_given_back_or_deleted_by_hand_makes_room(table: Table):
    await table.enqueue(*["1"] * 3)
    (held,) = (await claim(table, 1)).claims
    await claims.unclaim(table.db, ALICE, [held])
    (held,) = (await claim(table, 1)).claims
    await table.db.execute("delete from fleet.task where id = $1", held.id)
    assert len((await claim(table, 1)).claims) == 1


async def test_a_next_step_keeps_its_place(table: Table):
    await table.enqueue("1", "2")
    (held,) = (await claim(table, 1)).claims
    await table.settle(ALICE, (held, Advanced("two", "2")))
    assert (await claim(table, 1)).claims == []


async def test_the_limit_of_a_queue_and_of_its_job_hold_together(table: Table):
    await table.enqueue(*["1"] * 9)
    got = await claims.claim_limited(
        table.db,
        ALICE,
        "images",
        9,
        KNOWN,
        of_queue=Limits(4),
        job="resize",
        of_job=Limits(2),
    )
    assert (len(got.claims), got.room) == (2, 2)
    assert len((await claim(table, 4)).claims) == 2, "the queue has room for two of other jobs"


async def test_what_ran_before_there_was_a_limit_counts_once_it_is_said(table: Table):
    await table.enqueue(*["1"] * 5)
    running = await table.claim(limit=3)
    await claims.count_in(table.db, ALICE, [c.id for c in running])
    assert (await claim(table, 3)).room == 0
    assert (await claim(table, 4)).room == 1


async def test_a_rate_is_spent_by_claims_and_comes_back_with_time(table: Table, fleet_clock):
    await table.enqueue(*["1"] * 50)
    rate = Rate(10, 1.0)
    first = await claim(table, rate=rate)
    assert (len(first.claims), first.room) == (10, 10)
    nothing = await claim(table, rate=rate)
    assert nothing.claims == []
    assert nothing.wait == pytest.approx(0.1, abs=0.02)
    await fleet_clock.advance(0.5)
    assert len((await claim(table, rate=rate)).claims) == 5
    await fleet_clock.advance(3600)
    assert len((await claim(table, rate=rate)).claims) == 10, "no more than a second's worth"


async def test_f24_a_clock_that_is_set_back_gives_nothing_and_takes_nothing(
    table: Table, fleet_clock
):
    await table.enqueue(*["1"] * 50)
    await claim(table, rate=Rate(10, 1.0))
    await table.db.execute("update fleet.gate set filled_at = filled_at + interval '1 hour'")
    assert (await claim(table, rate=Rate(10, 1.0))).claims == []
    await fleet_clock.advance(1)
    assert len((await claim(table, rate=Rate(10, 1.0))).claims) == 10


async def test_a_burst_may_be_larger_than_a_second(table: Table, fleet_clock):
    await table.enqueue(*["1"] * 50)
    rate = Rate(3600, 3600.0, burst=20)
    assert len((await claim(table, rate=rate)).claims) == 20
    await fleet_clock.advance(2)
    assert len((await claim(table, rate=rate)).claims) == 2


async def test_what_is_not_claimed_costs_no_token(table: Table):
    rate = Rate(1, 3600.0)
    assert await claim(table, rate=rate) == ([], 1, None)
    await table.enqueue("1")
    assert len((await claim(table, rate=rate)).claims) == 1


async def test_u07_hosts_that_claim_at_once_stay_below_the_limit(table: Table, dsn: str):
    """Counted with an older snapshot, 20 ran under a limit of 10."""
    await table.enqueue(*["1"] * 400)
    hosts = [await asyncpg.connect(dsn, server_settings=claims.SETTINGS) for _ in range(6)]
    most: list[int] = []

    async def host(conn: asyncpg.Connection, owner: int) -> int:
        here, ended = Table(conn, table.policy), 0
        while await conn.fetchval("select count(*) from fleet.task"):
            got = await claim(here, 10, owner=OwnerId(owner), wanted=7)
            most.append(
                await conn.fetchval("select count(*) from fleet.task where state = 'running'")
            )
            await here.settle(OwnerId(owner), *[(c, Completed("1")) for c in got.claims])
            ended += len(got.claims)
        return ended

    async with asyncio.timeout(60):
        ended = await asyncio.gather(*(host(c, 2000 + n) for n, c in enumerate(hosts)))
    for conn in hosts:
        await conn.close()
    assert sum(ended) == 400
    assert max(most) <= 10
    assert max(most) > 7, "more than one host at a time"


async def test_a_queue_without_a_limit_touches_no_gate(table: Table):
    await table.enqueue("1")
    await table.claim_one()
    assert await table.db.fetchval("select count(*) from fleet.gate") == 0
    assert await table.db.fetchval("select counted from fleet.task") is False
