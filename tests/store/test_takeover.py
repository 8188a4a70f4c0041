"""A silent owner is taken over in two rounds, so that nothing it claimed late is stranded (P04)."""

from __future__ import annotations

import pytest

from fleet.model import OwnerId
from fleet.policy import Policy
from fleet.store import beats, claims
from supervisor.sweep import Watch, take_over
from tests.store.conftest import Table


@pytest.fixture
async def silent(db) -> OwnerId:
    return await beats.register(db, "host-a", 1, 15.0)


async def swept(table: Table, owner: OwnerId) -> bool:
    return await take_over(table.db, owner, lambda _: Policy(), "host-b")


async def owners(db) -> list[int]:
    return [row["id"] for row in await db.fetch("select id from fleet.owner")]


async def test_p04_who_was_taken_over_claims_and_renews_no_more(table: Table, silent: OwnerId):
    (held,) = await table.enqueue("1")
    await table.claim(silent)
    assert await swept(table, silent)
    assert await table.state(held) == "ready"

    assert await table.claim(silent, limit=9) == []
    assert await beats.beat(table.db, silent, "running", [], ["images"]) is None
    assert await owners(table.db) == [silent], "remembered, for who comes late"


async def test_p04_what_a_claim_under_way_took_is_found_in_the_second_round(
    table: Table, silent: OwnerId
):
    assert await swept(table, silent)
    (late,) = await table.enqueue("1")
    await table.db.execute("update fleet.owner set state = 'running'")  # as its snapshot saw it
    await table.claim(silent)
    await table.db.execute("update fleet.owner set state = 'taken'")

    assert await swept(table, silent)
    assert await table.state(late) == "ready"
    assert await owners(table.db) == []


async def test_p04_what_a_forgotten_owner_holds_is_found_all_the_same(table: Table):
    (task,) = await table.enqueue("1")
    await table.claim(OwnerId(999))
    assert await claims.orphaned(table.db) == [999]
    assert await swept(table, OwnerId(999))
    assert await table.state(task) == "ready"
    assert await claims.orphaned(table.db) == []


def test_p04_the_second_round_comes_a_lease_after_the_first():
    watch = Watch()
    assert watch.silent({7: (1, 15.0)}, 100.0, 0) == []
    assert watch.silent({7: (1, 15.0)}, 115.0, 0) == [7]
    assert watch.silent({7: (1, 15.0)}, 116.0, 0) == [7], "until it is done"
    watch.dealt_with(7, 116.0)
    assert watch.silent({7: (1, 15.0)}, 120.0, 0) == []
    assert watch.silent({7: (1, 15.0)}, 131.0, 0) == [7]
