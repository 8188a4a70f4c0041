"""What a repeat under unique does, and names that are unique for a period (U07)."""

from __future__ import annotations

from dataclasses import replace

import asyncpg
import pytest

from fleet.lifecycle import Completed, Refused, Released
from fleet.model import Failure, Submission
from fleet.store import claims
from fleet.store.enqueue import children_json, insert, insert_one
from tests.store.conftest import ALICE, Table

ERROR = Failure(type="ValueError", message="bad")


def one(text: str = "1", **options) -> Submission:
    options = {"unique": "search-index", "unique_scope": "while_waiting"} | options
    return Submission(job="resize", step="one", queue="images", input=text, **options)


async def count(table: Table) -> int:
    return await table.db.fetchval("select count(*) from fleet.task")


async def due_in(table: Table, task: int) -> float:
    return await table.db.fetchval(
        "select extract(epoch from due_at - fleet.now())::float8 from fleet.task where id = $1",
        task,
    )


# ── replace ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("how", [{}, {"delay": 60.0}, {"key": "customer-7"}])
async def test_u07_replace_gives_a_waiting_task_the_new_input_and_nothing_else(table: Table, how):
    first = await insert_one(table.db, one('"old"', priority=3, **how))
    before = await table.row(first.id)

    again = await insert_one(table.db, one('"new"', priority=9, on_repeat="replace", delay=5.0))

    assert (again.id, again.created) == (first.id, False)
    after = await table.row(first.id)
    assert after.pop("input") == '"new"'
    assert before.pop("input") == '"old"'
    assert after == before
    assert await count(table) == 1


async def test_u07_keep_is_what_a_repeat_does_unless_told_otherwise(table: Table):
    first = await insert_one(table.db, one('"old"'))
    again = await insert_one(table.db, one('"new"'))
    assert (again.id, again.created) == (first.id, False)
    assert (await table.row(first.id))["input"] == '"old"'


async def test_u07_the_input_comes_with_the_step_it_is_for(table: Table):
    """During a deploy that renames a job's first step."""
    first = await insert_one(table.db, one('"old"'))
    await insert_one(table.db, replace(one('"new"', on_repeat="replace"), step="two"))
    row = await table.row(first.id)
    assert (row["step"], row["input"]) == ("two", '"new"')


@pytest.mark.parametrize("on_repeat", ["replace", "push_back"])
async def test_u07_a_task_that_has_started_is_left_alone(table: Table, on_repeat):
    first = await insert_one(table.db, one('"old"', unique_scope="while_live"))
    repeat = one('"new"', unique_scope="while_live", on_repeat=on_repeat, delay=60.0)
    claim = await table.claim_one()
    running = await table.row(first.id)

    again = await insert_one(table.db, repeat)
    assert (again.id, again.created) == (first.id, False)
    assert await table.row(first.id) == running

    await table.settle(ALICE, (claim, Released()))
    released = await table.row(first.id)
    assert not (await insert_one(table.db, repeat)).created
    assert await table.row(first.id) == released, "nor while it waits to go on"
    assert await count(table) == 1


async def test_u07_while_waiting_a_repeat_of_what_runs_is_a_task_of_its_own(table: Table):
    first = await insert_one(table.db, one('"old"'))
    await table.claim_one()
    again = await insert_one(table.db, one('"new"', on_repeat="replace"))
    assert again.created
    assert again.id != first.id


# ── push back ────────────────────────────────────────────────────────────────────────────────────


async def test_u07_push_back_defers_anew_until_the_repeats_stop(table: Table, fleet_clock):
    quiet = {"delay": 10.0, "on_repeat": "push_back"}
    first = await insert_one(table.db, one("1", **quiet))
    for n in range(2, 5):
        await fleet_clock.advance(9)
        assert await table.claim() == []
        assert not (await insert_one(table.db, one(str(n), **quiet))).created
    await fleet_clock.advance(9)
    assert await table.claim() == []
    await fleet_clock.advance(2)
    (claim,) = await table.claim()
    assert (claim.id, claim.input) == (first.id, "4")
    assert await count(table) == 1


async def test_u07_push_back_takes_a_ready_task_out_of_the_line(table: Table, fleet_clock):
    first = await insert_one(table.db, one("1"))
    await insert_one(table.db, one("2", delay=10.0, on_repeat="push_back"))
    row = await table.row(first.id)
    assert (row["state"], row["pos"], row["input"]) == ("deferred", None, "2")
    assert 0 < await due_in(table, first.id) <= 10
    await fleet_clock.advance(11)
    assert (await table.claim_one()).input == "2"


async def test_u07_push_back_may_bring_a_task_forward(table: Table):
    first = await insert_one(table.db, one("1", delay=3600.0))
    await insert_one(table.db, one("2", delay=1.0, on_repeat="push_back"))
    assert await due_in(table, first.id) <= 1


async def test_u07_push_back_of_a_task_that_waits_for_its_key(table: Table, fleet_clock):
    holder, later = await table.enqueue("1", "2", key="k")
    claim = await table.claim_one()
    mine = await insert_one(table.db, one("3", key="k"))
    await claims.grant_keys(table.db)

    await insert_one(table.db, one("4", key="k", delay=10.0, on_repeat="push_back"))
    row = await table.row(mine.id)
    assert (row["state"], row["waiting_for"]) == ("deferred", None)

    await table.settle(ALICE, (claim, Completed("1")))
    second = await table.claim_one()
    assert second.id == later
    await fleet_clock.advance(11)
    assert await table.claim() == [], "its turn comes when the key is free"
    await table.settle(ALICE, (second, Completed("1")))
    assert (await table.claim_one()).id == mine.id
    assert holder != mine.id


async def test_u07_push_back_of_a_task_that_has_its_key_keeps_it(table: Table, fleet_clock):
    mine = await insert_one(table.db, one("1", key="k"))
    await claims.grant_keys(table.db)
    (behind,) = await table.enqueue("2", key="k")
    await insert_one(table.db, one("3", key="k", delay=10.0, on_repeat="push_back"))
    assert await table.claim() == [], "strictly one after another"
    await fleet_clock.advance(11)
    first = await table.claim_one()
    assert (first.id, first.input) == (mine.id, "3")
    await table.settle(ALICE, (first, Completed("1")))
    assert (await table.claim_one()).id == behind


# ── for a period ─────────────────────────────────────────────────────────────────────────────────


def once_a_minute(text: str = "1", **options) -> Submission:
    return one(text, unique_scope="while_live", unique_for=60.0, **options)


async def test_u07_a_period_counts_from_the_enqueue_also_after_the_end(table: Table, fleet_clock):
    first = await insert_one(table.db, once_a_minute())
    await fleet_clock.advance(30)
    await table.settle(ALICE, (await table.claim_one(), Completed("1")))
    again = await insert_one(table.db, once_a_minute())
    assert (again.id, again.created) == (first.id, False)
    await fleet_clock.advance(31)
    assert (await insert_one(table.db, once_a_minute())).created


async def test_u07_a_period_that_is_over_is_over_also_while_the_task_waits(
    table: Table, fleet_clock
):
    first = await insert_one(table.db, once_a_minute())
    await fleet_clock.advance(61)
    second = await insert_one(table.db, once_a_minute())
    assert second.created
    assert [claim.id for claim in await table.claim(limit=5)] == [first.id, second.id]


async def test_u07_a_repeat_in_the_period_replaces_what_has_not_started(table: Table, fleet_clock):
    first = await insert_one(table.db, once_a_minute('"old"'))
    await insert_one(table.db, once_a_minute('"new"', on_repeat="replace"))
    claim = await table.claim_one()
    assert (claim.id, claim.input) == (first.id, '"new"')
    again = await insert_one(table.db, once_a_minute('"late"', on_repeat="replace"))
    assert (again.id, again.created) == (first.id, False)
    assert (await table.row(first.id))["input"] == '"new"'


async def test_u07_a_period_bounds_how_long_a_task_is_pushed_back(table: Table, fleet_clock):
    quiet = {"delay": 10.0, "on_repeat": "push_back"}
    first = await insert_one(table.db, once_a_minute("0", **quiet))
    for n in range(1, 8):
        await fleet_clock.advance(9)
        last = await insert_one(table.db, once_a_minute(str(n), **quiet))
    assert last.created, "after a minute the next one begins"
    await fleet_clock.advance(2)
    assert (await table.claim_one()).id == first.id, "and the first is pushed back no more"


async def test_u07_a_burial_and_a_revival_do_not_touch_the_period(table: Table):
    first = await insert_one(table.db, once_a_minute())
    await table.settle(ALICE, (await table.claim_one(), Refused("fatal", ERROR)))
    assert not (await insert_one(table.db, once_a_minute())).created
    await table.db.fetch("select fleet.revive($1)", first.id)
    assert not (await insert_one(table.db, once_a_minute())).created


async def test_u07_what_was_rolled_back_has_taken_no_period(table: Table):
    transaction = table.db.transaction()
    await transaction.start()
    await insert_one(table.db, once_a_minute())
    await transaction.rollback()
    assert (await insert_one(table.db, once_a_minute())).created


async def test_u07_periods_that_are_over_leave_the_table(table: Table, fleet_clock):
    await insert_one(table.db, once_a_minute())
    await table.db.fetch("select * from fleet.maintain()")
    assert await table.db.fetchval("select count(*) from fleet.slot") == 1
    await fleet_clock.advance(61)
    done = await table.db.fetch("select * from fleet.maintain()")
    assert ("deleted", "slot", 1) in [tuple(row) for row in done]


# ── many ways in ─────────────────────────────────────────────────────────────────────────────────


async def test_u07_a_mixture_keeps_its_order(table: Table):
    plain = Submission(job="resize", step="one", queue="images", input='"plain"')
    made = await insert(
        table.db, [once_a_minute("1"), plain, once_a_minute("2", on_repeat="replace")]
    )
    assert [m.created for m in made] == [True, True, False]
    assert (await table.row(made[0].id))["input"] == "2"


async def test_u07_what_a_step_enqueues_repeats_alike(table: Table):
    first = await insert_one(table.db, one("1"))
    children = children_json([one("2", on_repeat="push_back", delay=10.0), once_a_minute("3")])
    assert await table.db.fetchval("select fleet.spawn($1::text::jsonb)", children) == 2
    assert (await table.row(first.id))["input"] == "2"
    assert 0 < await due_in(table, first.id) <= 10
    assert not (await insert_one(table.db, once_a_minute())).created


async def test_u07_sql_takes_the_same(table: Table):
    call = """select fleet.enqueue('resize', $1::text::jsonb, queue => 'images', step => 'one',
        unique_key => 'x', unique_for => '1 min', on_repeat => 'push_back', delay => '10 s')"""
    first = await table.db.fetchval(call, "1")
    assert await table.db.fetchval(call, "2") == first
    assert (await table.row(first))["input"] == "2"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("unique_key => 'x', on_repeat => 'forget'", "on_repeat 'forget' is unknown"),
        ("unique_key => 'x', on_repeat => null", "on_repeat NULL is unknown"),
        ("on_repeat => 'replace'", "on_repeat without unique_key"),
        ("unique_for => '1 min'", "unique_for without unique_key"),
        ("unique_key => 'x', unique_for => '0 s'", "is not positive"),
        ("unique_key => 'x', unique_for => '10000000 years'", "past the year 9999"),
        (
            "unique_key => 'x', unique_for => '1 s', unique_scope => 'while_live'",
            "both unique_scope",
        ),
        ("unique_key => 'x', on_repeat => 'push_back'", "push_back without delay or at"),
    ],
)
async def test_u07_sql_refuses_what_makes_no_sense(table: Table, options, said):
    with pytest.raises(asyncpg.InvalidParameterValueError, match=said):
        await table.db.fetch(f"select fleet.enqueue('resize', queue => 'images', {options})")
    assert await count(table) == 0
