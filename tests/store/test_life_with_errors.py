"""What is kept of a life that goes wrong, and how it is brought back."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, TypedDict

import msgspec
import pydantic
import pytest

from fleet import Context, Fatal, Fleet, Job, Retry, TaskBuried
from fleet.testing import Clock, drain
from tests.store.histories import history


@dataclass
class Order:
    order_id: int


@pytest.fixture
def app(dsn: str) -> Fleet:
    return Fleet(dsn)


async def test_u06_every_attempt_is_kept_with_its_error_its_times_and_who_ran_it(
    app, db, fleet_clock: Clock
):
    @app.job("flaky")
    async def flaky(ctx: Context) -> str:
        if ctx.attempt < 3:
            raise ValueError(f"try {ctx.attempt}")
        return "ok"

    async with app:
        handle = await flaky.enqueue()
        await drain(app, clock=fleet_clock)
    rows = await db.fetch(
        "select * from fleet.attempt where task_id = $1 order by fence", handle.id
    )
    assert [r["attempt"] for r in rows] == [1, 2]
    assert [r["fence"] for r in rows] == [1, 2]
    assert all(r["started_at"] <= r["ended_at"] and r["worker"] for r in rows)
    assert ["try 1" in r["error"] for r in rows] == [True, False]
    final = await db.fetchrow("select * from fleet.archive where id = $1", handle.id)
    assert (final["attempt"], final["failures"], final["outcome"]) == (3, 2, "succeeded")
    assert final["started_at"] <= final["finished_at"]


class Naughty(Exception):
    pass


@pytest.mark.parametrize(
    ("error", "reason", "kind"),
    [
        (Naughty("the reason\0why"), "exhausted", f"{__name__}.Naughty"),
        (Fatal("no use"), "fatal", "Fatal"),
        (TimeoutError("of the step's own"), "exhausted", "TimeoutError"),
    ],
)
async def test_u09_message_type_and_traceback_are_kept(app, db, error, reason, kind):
    @app.job("bad", retry=Retry(max_attempts=1))
    async def bad(ctx: Context) -> None:
        raise error

    async with app:
        handle = await bad.enqueue()
        await drain(app)
        with pytest.raises(TaskBuried) as told:
            await handle.result(timeout=0)
    assert str(error).split("\0")[0] in str(told.value)
    row = await db.fetchrow("select reason, error::text from fleet.buried where id = $1", handle.id)
    kept = msgspec.json.decode(row["error"])
    assert row["reason"] == reason
    assert kept["type"] == kind
    assert kept["message"] == str(error).replace("\0", "\\0")
    assert "raise error" in kept["traceback"]


async def test_u09_a_step_that_runs_too_long_is_timed_out(app, db):
    import asyncio

    @app.job("slow", retry=Retry(max_attempts=2, initial=0, jitter=0), timeout=0.05)
    async def slow(ctx: Context) -> None:
        await asyncio.Event().wait()

    async with app:
        handle = await slow.enqueue()
        await drain(app)
    assert await history(db, handle.id) == [("slow", 1, "timed_out")]
    error = await db.fetchval("select error->>'message' from fleet.buried where id = $1", handle.id)
    assert "timeout of 0.05s" in error


class Address(TypedDict):
    street: str


class Struct(msgspec.Struct):
    n: int


class Model(pydantic.BaseModel):
    n: int


@pytest.mark.parametrize(
    ("annotation", "stored", "path"),
    [
        (Order, '{"order_id": "secret-value"}', "$.order_id"),
        (Order, "{}", "order_id"),
        (Address, '{"street": 5}', "$.street"),
        (Struct, '{"n": "secret-value"}', "$.n"),
        (Model, '{"n": "secret-value"}', "$.n"),
        (list[int], '[1, 2, "secret-value"]', "$[2]"),
    ],
)
async def test_u10_input_that_does_not_decode_is_buried_with_the_path_and_can_be_revived(
    app, db, annotation, stored, path
):
    ran: list[Any] = []

    async def step(ctx: Context, value) -> None:
        ran.append(value)

    step.__annotations__["value"] = annotation
    app.job("typed")(step)
    task = await db.fetchval("select fleet.enqueue('typed', $1, queue => 'default')", stored)
    await drain(app)

    row = await db.fetchrow("select reason, error::text from fleet.buried where id = $1", task)
    assert row["reason"] == "undecodable"
    assert path in row["error"]
    assert "secret-value" not in row["error"], "errors name path and type, never values"
    assert not ran

    right = {
        Order: '{"order_id": 1}',
        Address: '{"street": "x"}',
        Struct: '{"n": 1}',
        Model: '{"n": 1}',
    }.get(annotation, "[1]")
    await db.fetchval("select fleet.revive($1, input => $2)", task, right)
    assert (await drain(app)).succeeded == [task]
    assert len(ran) == 1
    attempt = await db.fetchval("select attempt from fleet.archive where id = $1", task)
    assert attempt == 2, "the buried one was the first, although it counted as no failure"


async def test_u12_u_p09_a_buried_task_resumes_at_the_step_that_failed(app, db, fleet_clock: Clock):
    broken = True
    chain: Job[None, str] = app.job("chain")
    calls: list[str] = []

    @chain.step
    async def first(ctx: Context) -> str:
        calls.append("first")
        return "from first"

    @chain.step(retry=Retry(max_attempts=2, initial=0, jitter=0))
    async def second(ctx: Context, word: str) -> str:
        calls.append(f"second {ctx.attempt}")
        if broken:
            raise RuntimeError("not yet")
        return word

    async with app:
        handle = await chain.enqueue()
        await drain(app)
        broken = False
        assert await db.fetchval("select fleet.revive($1)", handle.id) == handle.id
        await drain(app)
        assert await handle.result(timeout=0) == "from first"
    assert calls == ["first", "second 1", "second 2", "second 3"], "a revival goes on counting"
    fences = await db.fetch("select fence from fleet.attempt where task_id = $1", handle.id)
    assert sorted(r["fence"] for r in fences) == [1, 2, 3], "also the one that buried it"
    assert await db.fetchval("select fence from fleet.archive where id = $1", handle.id) == 4


async def test_p09_u12_revive_from_another_step(app, db):
    calls: list[str] = []
    chain: Job[None, None] = app.job("chain")

    @chain.step
    async def first(ctx: Context) -> int:
        calls.append(ctx.idempotency_key)
        return 1

    @chain.step
    async def second(ctx: Context, n: int) -> None:
        if len(calls) == 1:
            raise Fatal("broken")

    async with app:
        handle = await chain.enqueue()
        await drain(app)
        await db.fetchval("select fleet.revive($1, step => 'first')", handle.id)
        assert (await drain(app)).succeeded == [handle.id]
    assert len(set(calls)) == 2, "a step entered anew has a new idempotency key"


async def test_inputs_never_reach_the_log(app, db, caplog):
    @app.job("secretive", retry=Retry(max_attempts=1))
    async def secretive(ctx: Context, value: dict) -> None:
        ctx.log.info("working", extra={"extra_field": 1})
        raise RuntimeError("failed")

    with caplog.at_level(logging.DEBUG, logger="fleet"):
        async with app:
            await secretive.enqueue({"password": "canary-7f3a"})
            await drain(app)
    assert "canary-7f3a" not in caplog.text
    (record,) = [r for r in caplog.records if r.message == "working"]
    assert (record.job, record.step, record.attempt, record.extra_field) == (
        "secretive",
        "secretive",
        1,
        1,
    )
