"""The bad inputs of the fault list, given in SQL: a clear error or a buried task, nothing lost.

What Python refuses before it reaches SQL is tested in tests/unit and with the client.
"""

from __future__ import annotations

import asyncpg
import pytest

from fleet import Context, Fleet, errors
from fleet.lifecycle import Completed
from fleet.model import MAX_PAYLOAD, OwnerId
from fleet.store import claims
from fleet.testing import drain
from tests.store.conftest import ALICE, Table

NAMES = [
    "",
    "x'; drop table fleet.task; --",
    "Upper",
    "ünïcode",
    "a" * 64,
    "-dash",
    "1st",
    "with space",
    "new\nline",
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("where", ["job", "queue"])
async def test_names_are_refused_with_the_rule(db, name, where):
    args = {"job": "fine", "queue": "fine"} | {where: name}
    refused = pytest.raises(asyncpg.InvalidParameterValueError, match=f"(?s){where} name .* is not")
    with refused:
        await db.fetch("select fleet.enqueue($1, '1', queue => $2)", args["job"], args["queue"])
    with pytest.raises(asyncpg.InvalidParameterValueError, match="is not allowed"):
        await db.fetch(
            "select fleet.enqueue_many('{1}', array[$1], '{s}', array[$2], '{0}', null, null, null,"
            " null, null)",
            args["job"],
            args["queue"],
        )
    assert await db.fetchval("select count(*) from fleet.task") == 0


@pytest.mark.parametrize("name", ["weird step!", "a" * 64, "1st", "größe", "new\nline", "-dash"])
async def test_step_names_are_refused_with_the_rule(db, name):
    refused = r"step name (.|\s)* is not allowed"
    with pytest.raises(asyncpg.InvalidParameterValueError, match=f"fleet.enqueue: {refused}"):
        await db.fetch("select fleet.enqueue('fine', '1', queue => 'fine', step => $1)", name)
    with pytest.raises(asyncpg.InvalidParameterValueError, match=f"fleet.enqueue: {refused}"):
        await db.fetch(
            "select fleet.enqueue_many('{1,2}', '{j,j}', array['fine', $1], '{q,q}', '{0,0}', null,"
            " null, '{1,2}', null, null)",
            name,
        )
    await db.execute(
        "insert into fleet.buried (id, fence, buried_at, keep_until, enqueued_at, ready_at, visit,"
        " attempt, failures, crashes, losses, releases, prior, priority, reason, queue, job, step,"
        " input, error)"
        " values (7, 1, now(), now(), now(), now(), 1, 1, 0, 0, 0, 0, 0, 0, 'fatal', 'q', 'j', 's',"
        " '1', '{}')"
    )
    with pytest.raises(
        asyncpg.InvalidParameterValueError, match=f"fleet.revive: {refused}"
    ) as told:
        await db.fetch("select fleet.revive(7, step => $1)", name)
    assert "letter" in told.value.hint
    assert await db.fetchval("select count(*) from fleet.task") == 0
    assert await db.fetchval("select count(*) from fleet.buried") == 1


async def test_a_step_that_is_not_named_is_the_first(db):
    await db.fetch("select fleet.enqueue('fine', '1', queue => 'fine', step => '')")
    await db.fetch(
        "select fleet.enqueue_many('{1}', '{j}', array[''], '{q}', '{0}', null, null, null, null,"
        " null)"
    )
    assert await db.fetchval("select count(*) from fleet.task where step = ''") == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("delay => '-1 s'", "negative"),
        ("delay => '9000 years'", "year 9999"),
        ("delay => '178000000 years'", "year 9999"),
        ("at => '10000-01-01'", "year 9999"),
        ("at => 'infinity'", "year 9999"),
        ("at => '-infinity'", "year 9999"),
        ("at => '2030-01-01', delay => '1 s'", "both delay and at"),
        ("priority => 10001", "priority 10001 is out of bounds"),
        ("priority => -10001", "out of bounds"),
        ("key => ''", "key must have 1 to 255"),
        ("key => repeat('k', 256)", "key must have 1 to 255"),
        ("unique_key => ''", "unique_key must have"),
        ("unique_scope => 'sometimes'", "unique_scope sometimes is unknown"),
    ],
)
async def test_options_are_refused_with_what_would_be_right(db, options, message):
    with pytest.raises(asyncpg.InvalidParameterValueError, match=message):
        await db.fetch(f"select fleet.enqueue('fine', '1', queue => 'fine', {options})")
    assert await db.fetchval("select count(*) from fleet.task") == 0


async def test_p03_an_unregistered_name_is_refused_unless_a_queue_is_given(db):
    with pytest.raises(asyncpg.UndefinedObjectError, match="no job 'ghost' is registered") as told:
        await db.fetch("select fleet.enqueue('ghost', '1')")
    assert "fleet register" in told.value.hint
    assert await db.fetchval("select fleet.enqueue('ghost', '1', queue => 'q')") > 0


@pytest.mark.parametrize("document", [r'"nul \u0000"', r'"\ud800"', "NaN", "{", ""])
async def test_what_is_no_json_is_refused_by_the_type(db, document):
    with pytest.raises(asyncpg.DataError):
        await db.fetch("select fleet.enqueue('fine', $1::text::jsonb, queue => 'fine')", document)


LIMIT = 1_572_864  # as PostgreSQL prints it: a mebibyte of compact JSON, and its spaces
ONE = "select fleet.enqueue('fine', $1::text::jsonb, queue => 'fine')"
MANY = (
    "select fleet.enqueue_many(array[$1::text], '{j}', '{s}', '{q}', '{0}', null, null, null,"
    " null, null)"
)


@pytest.mark.parametrize("query", [ONE, MANY], ids=["one", "many"])
async def test_a_payload_one_byte_too_large_is_refused_and_one_that_fits_is_not(db, query):
    fits = '"' + "x" * (LIMIT - 2) + '"'
    await db.fetch(query, fits)
    await db.fetch(query, "[" + "1," * (MAX_PAYLOAD // 2 - 1) + "1]")  # what Python lets through
    await db.fetch(query, '{"spaces":' + " " * LIMIT + "1}")  # are not stored
    with pytest.raises(asyncpg.InvalidParameterValueError, match=f"limit is {LIMIT}"):
        await db.fetch(query, fits[:-1] + 'x"')


@pytest.mark.parametrize("query", [ONE, MANY], ids=["one", "many"])
async def test_a_few_bytes_that_become_gigabytes_are_refused_and_harm_no_claim(db, query):
    for document in ("[" + "1e131071," * 20 + "1]", "[" + "1e131071," * 10_000 + "1]"):
        with pytest.raises((asyncpg.CheckViolationError, asyncpg.ProgramLimitExceededError)):
            await db.fetch(query, document)
    await db.fetch(query, "1e131071")
    queue = "fine" if query == ONE else "q"
    (claim,) = await claims.claim(db, OwnerId(1), queue, 9, ["fine/", "j/s"])
    assert len(claim.input) == 131_072


async def test_numbers_that_become_too_large_are_refused_in_python_with_a_word(dsn):
    app = Fleet(dsn)

    @app.job("floats")
    async def floats(ctx: Context, numbers: list) -> None: ...

    with pytest.raises(errors.PayloadTooLarge):
        async with app:
            await floats.enqueue([1e300] * 10_000)


ROWS = {
    "a state nobody knows": "state = 'dancing'",
    "running without an owner": "state = 'running'",
    "deferred without a time": "state = 'deferred', pos = null",
    "waiting for nothing": "state = 'waiting', pos = null",
    "ready without a place": "pos = null",
    "a name that is not allowed": "queue = 'DROP TABLE'",
    "a job that is not allowed": "job = 'x''; --'",
    "a rank of another priority": "rank = 77",
    "a step name without end": "step = repeat('s', 64)",
    "an empty key": "key = ''",
}


@pytest.mark.parametrize("nonsense", ROWS.values(), ids=ROWS.keys())
async def test_a_row_written_by_hand_with_nonsense_in_it_is_refused(db, nonsense):
    await db.fetch("select fleet.enqueue('fine', '1', queue => 'fine')")
    with pytest.raises(asyncpg.CheckViolationError):
        await db.execute(f"update fleet.task set {nonsense}")


async def test_nonsense_that_no_check_can_see_is_buried_and_holds_nothing_up(dsn, db):
    app = Fleet(dsn)

    @app.job("fine")
    async def fine(ctx: Context, n: int) -> int:
        return n

    insert = (
        "insert into fleet.task (queue, job, step, state, pos, rank, input, key, trace)"
        " values ('default', 'fine', $1, 'ready', $2, 1, $3::text::jsonb, null, $4)"
    )
    await db.execute(insert, "fine", -5, '{"deep": ' * 500 + "1" + "}" * 500, "no trace at all")
    await db.execute(insert, "", 0, "7", None)
    await db.execute(insert, "gone-step", 1, "7", None)
    await db.execute(insert, "fine", 2, '"text"', None)
    drained = await drain(app)
    assert len(drained.buried) == 2
    assert len(drained.succeeded) == 1
    left = await db.fetchrow("select step, state from fleet.task")
    assert tuple(left) == ("gone-step", "ready"), "an unknown step waits for who knows it"


async def test_revive_says_why_it_cannot(db):
    with pytest.raises(asyncpg.NoDataFoundError, match="no buried task 4711"):
        await db.fetch("select fleet.revive(4711)")
    live = await db.fetchval("select fleet.enqueue('fine', '1', queue => 'fine')")
    with pytest.raises(asyncpg.ObjectNotInPrerequisiteStateError, match="is live"):
        await db.fetch("select fleet.revive($1)", live)


COUNTS = {
    "a fence past every claim": "fence = 9223372036854775807",
    "attempts without end": "prior = 2147483647",
    "fewer than no failures": "failures = -1",
    "due when time ends": "state = 'deferred', pos = null, due_at = 'infinity'",
    "due after every calendar": "state = 'deferred', pos = null, due_at = '200000-01-01'",
    "ready before there was time": "ready_at = '-infinity'",
}


@pytest.mark.parametrize("nonsense", COUNTS.values(), ids=COUNTS.keys())
async def test_counts_and_times_that_would_stop_a_host_are_refused(db, nonsense):
    await db.fetch(ONE, "1")
    with pytest.raises(asyncpg.CheckViolationError):
        await db.execute(f"update fleet.task set {nonsense}")


async def test_a_row_that_cannot_even_be_buried_takes_nobody_with_it(table: Table):
    await table.enqueue("1", "2", "3")
    held = await table.claim(limit=3)
    await table.db.execute(
        f"alter table fleet.archive add check (id <> {held[1].id});"
        f"alter table fleet.buried add check (id <> {held[1].id})"
    )
    report = await table.settle(ALICE, *[(claim, Completed("1")) for claim in held])
    assert set(report.fences) == {held[0].id, held[2].id}
    assert report.busy == {held[1].id}


async def test_a_trace_that_is_none_is_refused_without_showing_the_input(db):
    with pytest.raises(asyncpg.InvalidParameterValueError, match="traceparent has 600") as told:
        await db.fetch(
            "select fleet.enqueue('j', '\"canary\"', 'q', traceparent => repeat('t', 600))"
        )
    assert "canary" not in str(told.value) + str(told.value.detail)
