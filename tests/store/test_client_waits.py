"""The client's five seconds: calls that meet a lock, and calls that find every connection taken."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from fleet import Context, Fleet, errors
from fleet.client import Client
from fleet.store import results
from tests.store.test_client import until


@pytest.fixture
def app(dsn: str) -> Fleet:
    app = Fleet(dsn)

    @app.job("resize", queue="images")
    async def resize(ctx: Context, image: int) -> None: ...

    return app


@asynccontextmanager
async def locked(db: Any) -> AsyncIterator[None]:
    async with db.transaction():
        await db.execute("lock table fleet.task")
        yield


async def test_no_attempt_begins_when_the_time_of_the_call_is_over(app, db):
    app._opened = Client(app, budget=0.5)
    attempts = 0

    async def status(conn: Any) -> Any:
        nonlocal attempts
        attempts += 1
        return await results.status(conn, handle.id)

    async with app:
        handle = await app.jobs["resize"].enqueue(1)
        async with locked(db):
            with pytest.raises(errors.DatabaseUnavailable, match=r"no reply within 0\.5s"):
                await app._opened._opened.others.run(status, repeatable=True)
        assert attempts == 1
        assert (await handle.status()).state == "ready", "and the client goes on"


@pytest.mark.parametrize("call", ["status", "cancel", "result"])
async def test_calls_of_a_handle_end_while_the_table_is_locked(app, db, call):
    app._opened = Client(app, budget=0.5)
    async with app:
        handle = await app.jobs["resize"].enqueue(1)
        async with locked(db):
            with pytest.raises(errors.DatabaseUnavailable) as caught:
                await (handle.result(timeout=0.1) if call == "result" else getattr(handle, call)())
        assert not caught.value.in_doubt


async def test_the_time_of_a_call_is_that_of_all_its_statements(app):
    app._opened = Client(app, budget=0.5)
    statements = 0

    async def chatty(conn: Any) -> None:
        nonlocal statements
        for statements in range(1, 20):  # noqa: B007 -- counted for the test
            await conn.execute("select pg_sleep(0.2)")

    async with app:
        with pytest.raises(errors.DatabaseUnavailable):
            await app._opened._opened.others.run(chatty, repeatable=True)
    assert statements > 1


async def test_a_client_whose_connections_are_all_busy_says_so(app):
    app._opened = Client(app, budget=0.5, connections=2)
    done, holding = asyncio.Event(), 0

    async def hold(conn: Any) -> None:
        nonlocal holding
        holding += 1
        await done.wait()

    async def all_held() -> bool:
        return holding == 2

    async with app, asyncio.TaskGroup() as calls:
        handle = await app.jobs["resize"].enqueue(1)
        for _ in range(2):
            calls.create_task(app._opened._opened.others.run(hold))
        await until(all_held)
        with pytest.raises(errors.DatabaseUnavailable, match="all 2 connections") as caught:
            await handle.status()
        assert "is not available" not in str(caught.value)
        assert not caught.value.in_doubt
        done.set()
    assert holding == 2


async def test_a_connection_given_back_is_not_counted_as_busy(app):
    app._opened = Client(app, budget=0.5, connections=1)
    async with app:
        handle = await app.jobs["resize"].enqueue(1)
        for _ in range(3):
            assert (await handle.status()).state == "ready"
        with pytest.raises(errors.TaskNotFound):
            await app.handle(handle.id + 1).status()
        assert await handle.cancel() == "cancelled"
