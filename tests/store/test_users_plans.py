"""Outcomes on connections that are not ours alone: never a scan of the table, whatever was cached.

Every connection has written its outcomes often while the table was all but empty, so that its
driver has prepared them and PostgreSQL has chosen a plan. Then the table grows, and nobody runs
ANALYZE. What was read is counted by the server itself.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

import asyncpg
import psycopg
import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine

from fleet.lifecycle import Advanced, Cancelled, Completed, Event, Failed, Refused, decide
from fleet.model import Failure
from fleet.policy import Policy
from fleet.store.connections import executor_for
from fleet.store.outcomes import Outcome, write_in_transaction
from fleet.store.standing import standing
from tests.store.conftest import ALICE, Table

ERROR: Final = Failure(type="ValueError", message="boom")
EVENTS: Final[dict[str, Event]] = {
    "finish": Completed("1"),
    "forget": Completed("1"),
    "advance": Advanced("two", "1"),
    "retry": Failed(ERROR),
    "bury": Refused("fatal", ERROR),
    "cancel": Cancelled(),
}
# Of this very transaction, so that nobody else's reading counts.
_READ: Final = """
select coalesce(sum(seq_tup_read), 0)::int as rows
  from pg_stat_xact_user_tables where schemaname = 'fleet' and relname = 'task'
"""
_GROW: Final = """
insert into fleet.task (queue, job, step, rank, state, pos)
select 'later', 'resize', 'one', 1, 'ready', nextval('fleet.position')
  from generate_series(1, 20000)
"""


@pytest.fixture(params=["asyncpg", "psycopg", "sqlalchemy-psycopg", "sqlalchemy-asyncpg"])
async def user(request, dsn: str) -> AsyncIterator[Any]:
    match request.param:
        case "asyncpg":
            conn = await asyncpg.connect(dsn)
            yield conn, conn.transaction
            await conn.close()
        case "psycopg":
            with psycopg.connect(dsn) as blocking:
                yield blocking, lambda: _Blocking(blocking)
        case "sqlalchemy-psycopg":
            engine = create_engine(dsn.replace("postgresql", "postgresql+psycopg", 1))
            with engine.connect() as blocking:
                yield blocking, lambda: _Blocking(blocking)
            engine.dispose()
        case "sqlalchemy-asyncpg":
            async_engine = create_async_engine(dsn.replace("postgresql", "postgresql+asyncpg", 1))
            async with async_engine.connect() as conn:
                yield conn, conn.begin
            await async_engine.dispose()


class _Blocking:
    """The transaction that a connection which blocks begins by itself."""

    def __init__(self, conn: Any) -> None:
        self._conn = conn

    async def start(self) -> None:
        """Nothing to do: the first statement starts it."""

    async def rollback(self) -> None:
        self._conn.rollback()


def outcome(table: Table, claim: Any, kind: str) -> Outcome:
    policy = Policy(on_success="delete" if kind == "forget" else "archive")
    return Outcome(claim, decide(claim, EVENTS[kind], policy, 0.5), "worker-1", 0.25, table.keep)


async def test_an_outcome_on_a_users_connection_never_scans_the_table(table: Table, user):
    conn, begin = user
    await table.db.execute("alter table fleet.task set (autovacuum_enabled = off)")
    await table.enqueue("1")
    claim = await table.claim_one()
    await table.db.execute("vacuum analyze fleet.task")

    async def read(kind: str) -> int:
        transaction = begin()
        await transaction.start()
        executor = executor_for(conn)
        before = (await executor.fetch(_READ))[0]["rows"]
        if kind == "look":
            assert (await standing(executor, ALICE, claim)).how == "held"
        else:
            assert await write_in_transaction(executor, ALICE, outcome(table, claim, kind))
        after = (await executor.fetch(_READ))[0]["rows"]
        await transaction.rollback()
        return after - before

    for kind in [*EVENTS, "look"]:
        for _ in range(16):  # psycopg prepares at the sixth, PostgreSQL chooses at its sixth
            await read(kind)
    await table.db.execute(_GROW)
    assert {kind: await read(kind) for kind in [*EVENTS, "look"]} == dict.fromkeys(
        [*EVENTS, "look"], 0
    )
