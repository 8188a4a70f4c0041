"""Enqueue: one, delayed, many, on nobody's transaction but its own; and all that may be wrong."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest
from opentelemetry import trace

from fleet import Context, Fleet, errors
from fleet.model import Submission
from fleet.store import enqueue as store
from fleet.store.enqueue import children_json, chunks, insert, insert_many, insert_one, pack

PLAIN = Submission(job="resize", step="one", queue="images", input="1")


@pytest.fixture
def app(dsn: str) -> Fleet:
    app = Fleet(dsn)

    @app.job("resize", queue="images")
    async def resize(ctx: Context, image: int) -> str:
        return f"{image}.png"

    return app


def moved(dsn: str, **parts: str) -> str:
    """Return the DSN with other parts: another port, another database."""
    return urlunsplit(urlsplit(dsn)._replace(**parts))


# -- what is wrong, first --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "error", "says"),
    [
        ({"job": "x'; drop table fleet.task; --"}, errors.InvalidName, "not allowed"),
        ({"job": ""}, errors.InvalidName, "not allowed"),
        ({"queue": "Images"}, errors.InvalidName, "queue name"),
        ({"queue": "i" * 64}, errors.InvalidName, "63 characters"),
        ({"priority": 10_001}, errors.InvalidOption, "-10000 to 10000"),
        ({"delay": -1.0}, errors.InvalidOption, "negative"),
        ({"delay": 3e11}, errors.InvalidOption, "9999"),
        ({"delay": 1.0, "at": datetime(2030, 1, 1, tzinfo=UTC)}, errors.InvalidOption, "both"),
        ({"key": ""}, errors.InvalidOption, "key"),
        ({"key": "k" * 256}, errors.InvalidOption, "key"),
        ({"step": "s" * 64}, errors.InvalidName, "step name"),
        ({"input": '"\\u0000"'}, errors.NotEncodable, "Unicode"),
        ({"input": "{nonsense"}, errors.NotEncodable, "json"),
        ({"input": '"' + "x" * 1_572_864 + '"'}, errors.PayloadTooLarge, "1572864"),
    ],
    ids=lambda value: str(value)[:30] if isinstance(value, dict) else "",
)
async def test_u04_the_database_refuses_what_python_let_pass(app, db, wrong, error, says):
    job = app.jobs["resize"]
    async with app:
        for unique in (None, "once"):
            with pytest.raises(error, match=says):
                await app._client.enqueue(job, replace(PLAIN, unique=unique, **wrong))
        with pytest.raises(error, match=says):
            await app._client.enqueue_many(job, [PLAIN, replace(PLAIN, **wrong)])
        assert await db.fetchval("select count(*) from fleet.task") == 0


async def test_u04_only_the_culprit_of_a_batch_is_told(app, db):
    job = app.jobs["resize"]
    async with app:
        told = await asyncio.gather(
            *(
                app._client.enqueue(job, replace(PLAIN, input="{" if n == 13 else str(n)))
                for n in range(64)
            ),
            return_exceptions=True,
        )

    assert isinstance(told.pop(13), errors.NotEncodable)
    assert [handle.id for handle in told] == sorted(handle.id for handle in told)
    assert await db.fetchval("select count(*) from fleet.task") == 63


async def test_outside_an_open_application_it_says_what_to_do(app):
    with pytest.raises(errors.NotOpen, match="async with app"):
        await app.jobs["resize"].enqueue(1)
    async with app:
        pass
    with pytest.raises(errors.NotOpen):
        await app.jobs["resize"].enqueue(1)


async def test_another_event_loop_is_told_so(app):
    async with app:
        with pytest.raises(errors.NotOpen, match="another event loop"):
            await asyncio.to_thread(asyncio.run, app.jobs["resize"].enqueue(1))


async def test_a_database_without_the_schema_names_the_command(dsn):
    conn = await asyncpg.connect(dsn)
    await conn.execute("drop schema fleet cascade")
    with pytest.raises(errors.SchemaOutdated, match="fleet migrate"):
        await Fleet(dsn).open()

    app = Fleet(dsn)
    job = app.job("resize")(_nothing)
    async with conn.transaction():
        with pytest.raises(errors.SchemaOutdated, match="fleet migrate"):
            await job.enqueue(conn=conn)
    await conn.close()


async def test_an_older_schema_is_refused_and_a_newer_one_taken(dsn, db):
    await db.execute("insert into fleet.migration values (1000, 'future', 'x')")
    async with Fleet(dsn):
        pass
    await db.execute("delete from fleet.migration where version > 2")
    with pytest.raises(errors.SchemaOutdated, match="version 2"):
        await Fleet(dsn).open()


async def _nothing(ctx: Context) -> None: ...


# -- what is right ---------------------------------------------------------------------------------


async def test_u04_one_task_says_what_was_asked(app, db):
    async with app:
        handle = await app.jobs["resize"].enqueue(7, priority=5, key="customer-7")
    row = await db.fetchrow("select * from fleet.task")
    assert (row["id"], handle.job, handle.created) == (handle.id, "resize", True)
    assert (row["job"], row["step"], row["queue"]) == ("resize", "resize", "images")
    assert (row["input"], row["priority"], row["key"], row["state"]) == (
        "7",
        5,
        "customer-7",
        "waiting",
    )


async def test_u04_a_delay_counts_from_the_databases_clock(app, db):
    async with app:
        await app.jobs["resize"].enqueue(1, delay=60)
    row = await db.fetchrow("select state, due_at - enqueued_at as delay from fleet.task")
    assert (row["state"], row["delay"]) == ("deferred", timedelta(seconds=60))


async def test_u04_a_day_has_24_hours_also_where_the_clocks_change(app, db):
    await db.execute("set time zone 'Europe/Berlin'")
    half_a_year = 182 * 86_400
    async with db.transaction():
        await app.jobs["resize"].enqueue(1, delay=half_a_year, conn=db)
        await app.jobs["resize"].enqueue_many([1, 2], delay=half_a_year, conn=db)
        await app.jobs["resize"].enqueue(3, delay=half_a_year, unique="x", conn=db)
    waits = await db.fetch("select extract(epoch from due_at - enqueued_at)::int from fleet.task")
    assert [wait[0] for wait in waits] == [half_a_year] * 4


async def test_u04_a_moment_is_kept(app, db):
    moment = datetime(2100, 5, 17, 12, 30, tzinfo=UTC)
    async with app:
        await app.jobs["resize"].enqueue(1, at=moment)
        await app.jobs["resize"].enqueue(2, at=moment, unique="two")
    assert [row[0] for row in await db.fetch("select due_at from fleet.task")] == [moment] * 2


async def test_u04_many_come_back_in_order_in_statements_of_a_thousand(app, db):
    async with app:
        handles = await app.jobs["resize"].enqueue_many(range(2_500))
    rows = await db.fetch("select id, input::int from fleet.task order by id")
    assert [tuple(row) for row in rows] == [(h.id, n) for n, h in enumerate(handles)]


async def test_u04_many_are_all_or_none(app, db):
    client, job = app._client, app.jobs["resize"]
    async with app:
        with pytest.raises(errors.NotEncodable):
            await client.enqueue_many(job, [*[PLAIN] * 1_500, replace(PLAIN, input="{")])
        assert await client.enqueue_many(job, []) == []
    assert await db.fetchval("select count(*) from fleet.task") == 0


async def test_r14_a_delayed_batch_on_the_callers_transaction(app, db):
    with pytest.raises(RuntimeError, match="changed my mind"):
        async with db.transaction():
            await app.jobs["resize"].enqueue_many(range(3), delay=5, conn=db)
            raise RuntimeError("changed my mind")
    assert await db.fetchval("select count(*) from fleet.task") == 0

    async with db.transaction():
        handles = await app.jobs["resize"].enqueue_many(range(3), delay=5, conn=db)
    rows = await db.fetch("select id, state from fleet.task order by id")
    assert [tuple(row) for row in rows] == [(handle.id, "deferred") for handle in handles]


async def test_a_codec_of_the_users_does_not_encode_twice(app, db):
    await db.set_type_codec("jsonb", encoder=json.dumps, decoder=json.loads, schema="pg_catalog")
    async with db.transaction():
        await app.jobs["resize"].enqueue(1, conn=db)
        await app.jobs["resize"].enqueue_many([1, 1], conn=db)
    assert [row[0] for row in await db.fetch("select input from fleet.task")] == [1, 1, 1]


async def test_p03_plain_sql_schedules_a_task(app, db):
    async with app:
        task = await db.fetchval(
            "select fleet.enqueue('resize', '7', queue => 'images', delay => '1 min')"
        )
        status = await app.handle(task).status()
    assert (status.state, status.job, status.queue) == ("deferred", "resize", "images")


async def test_p03_an_unregistered_name_is_refused_in_sql(db):
    with pytest.raises(asyncpg.UndefinedObjectError, match="no job 'nobody' is registered"):
        await db.fetchval("select fleet.enqueue('nobody')")


async def test_a_repeat_under_unique_returns_the_existing_handle(app, db):
    async with app:
        handles = await asyncio.gather(
            *(app.jobs["resize"].enqueue(n, unique="order-43") for n in range(10))
        )
    assert len({handle.id for handle in handles}) == 1
    assert [handle.created for handle in handles].count(True) == 1
    assert await db.fetchval("select count(*) from fleet.task") == 1


# -- roles, traces, children -----------------------------------------------------------------------


async def test_a_role_that_may_only_execute_the_functions_can_enqueue(dsn, db):
    await db.execute("drop role if exists enqueuer")
    await db.execute("""
        create role enqueuer login;
        grant usage on schema fleet to enqueuer;
        grant execute on function fleet.enqueue_many, fleet.enqueue_one to enqueuer;
    """)
    host = urlsplit(dsn).netloc.rpartition("@")[2]
    app = Fleet(moved(dsn, netloc=f"enqueuer@{host}"))
    job = app.job("resize")(_nothing)
    try:
        async with app:
            handle = await job.enqueue()
            await job.enqueue(unique="once")
            await job.enqueue_many([None, None])
            with pytest.raises(errors.DatabaseError, match="fleet grant"):
                await handle.status()
            with pytest.raises(errors.DatabaseError, match="fleet grant"):
                await handle.result(timeout=5)
    finally:
        await db.execute("drop owned by enqueuer; drop role enqueuer")


async def test_a_task_belongs_to_the_trace_it_was_enqueued_in(app, db):
    span = trace.NonRecordingSpan(
        trace.SpanContext(0xABC, 0xDEF, is_remote=False, trace_flags=trace.TraceFlags(1))
    )
    async with app:
        with trace.use_span(span):
            await app.jobs["resize"].enqueue(1)
            await app.jobs["resize"].enqueue_many([2, 3])
            await app.jobs["resize"].enqueue(4, unique="four")
        await app.jobs["resize"].enqueue(5)
    traces = [row[0] for row in await db.fetch("select trace from fleet.task order by id")]
    assert traces == [f"00-{0xABC:032x}-{0xDEF:016x}-01"] * 4 + [None]


async def test_children_are_spawned_as_they_would_be_enqueued(db):
    moment = datetime(2100, 1, 1, tzinfo=UTC)
    children = [
        replace(PLAIN, input='{"a":"é"}', delay=86_400.0, key="k", trace="t"),
        replace(PLAIN, input="2"),
        replace(PLAIN, input="3", unique="three", at=moment, unique_scope="while_waiting"),
        replace(PLAIN, input="4", unique="three"),
    ]
    assert children_json([]) is None
    assert await db.fetchval("select fleet.spawn($1::jsonb)", children_json(children)) == 4
    rows = await db.fetch("select *, due_at - enqueued_at as delay from fleet.task order by id")
    assert [row["input"] for row in rows] == ['{"a": "é"}', "2", "3"]
    assert (rows[0]["delay"], rows[0]["key"], rows[0]["trace"]) == (timedelta(days=1), "k", "t")
    assert (rows[2]["due_at"], rows[2]["unique_slot"]) == (moment, "three")


async def test_a_mixture_is_written_in_one_go_and_told_in_order(db):
    mixed = [PLAIN, replace(PLAIN, unique="a"), PLAIN, replace(PLAIN, unique="a")]
    first, unique, third, again = await insert(db, mixed)
    assert third.id == first.id + 1
    assert (unique.id, again.created) == (again.id, False)
    assert await insert_many(db, []) == []
    assert (await insert_one(db, PLAIN)).created


# -- packing ---------------------------------------------------------------------------------------


def test_columns_that_nobody_uses_are_not_sent():
    packed = pack([PLAIN, PLAIN])
    assert (packed.job, packed.which, packed.key, packed.trace, packed.delay, packed.at) == (
        ["resize"],
        None,
        None,
        None,
        None,
        None,
    )


def test_what_is_shared_stands_once():
    packed = pack([PLAIN, replace(PLAIN, priority=2), PLAIN, replace(PLAIN, key="k")])
    assert (packed.priority, packed.which) == ([0, 2], [1, 2, 1, 1])
    assert packed.key == [None, None, None, "k"]


def test_large_inputs_make_small_statements(monkeypatch):
    monkeypatch.setattr(store, "CHUNK_SIZE", 10)
    sizes = [3, 3, 3, 3, 25, 1, 1]
    cut = [
        [len(s.input) for s in chunk]
        for chunk in chunks([replace(PLAIN, input="x" * n) for n in sizes])
    ]
    assert cut == [[3, 3, 3], [3], [25], [1, 1]]


def test_a_chunk_has_at_most_a_thousand():
    assert [len(chunk) for chunk in chunks([PLAIN] * 2_001)] == [1_000, 1_000, 1]
    assert list(chunks([])) == []
