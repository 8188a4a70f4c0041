"""The client: a database that is away or cut off, poolers, and calls that share a statement."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from urllib.parse import urlsplit

import asyncpg
import pytest

from fleet import Context, Fleet, errors
from fleet.client import Client
from fleet.embedded import serve
from fleet.store.migrations import migrate
from tests.servers import wait_until
from tests.store.test_enqueue import moved


@pytest.fixture
def app(dsn: str) -> Fleet:
    app = Fleet(dsn)

    @app.job("resize", queue="images")
    async def resize(ctx: Context, image: int) -> None: ...

    return app


async def _nothing(ctx: Context) -> None: ...


class Cable:
    """A TCP proxy to the server that can be cut, and that answers some greetings itself."""

    def __init__(self, dsn: str, port: int, refuse: dict[bytes, bytes] | None = None) -> None:
        self._refuse = refuse or {}
        self._target = urlsplit(dsn)
        self._port = port
        self._ends: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> Cable:
        self._server = await asyncio.start_server(self._join, "127.0.0.1", self._port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cut()
        self._server.close()

    def cut(self) -> None:
        for end in self._ends:
            end.transport.abort()
        self._ends.clear()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        greeting = await reader.read(65_536)
        for sign, refusal in self._refuse.items():
            if sign in greeting:
                writer.write(b"E" + (len(refusal) + 4).to_bytes(4) + refusal)
                writer.close()
                return
        there = await asyncio.open_connection(self._target.hostname, self._target.port)
        there[1].write(greeting)
        self._ends += [writer, there[1]]
        await asyncio.gather(
            self._copy(reader, there[1]), self._copy(there[0], writer), return_exceptions=True
        )

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            writer.write(data)
        writer.close()


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(10):
        while not await condition():  # noqa: ASYNC110 -- what it waits for happens in the server
            await asyncio.sleep(0.01)


# -- where the database is away --------------------------------------------------------------------


async def test_a_database_that_is_away_is_named_without_its_password(unused_tcp_port):
    app = Fleet(f"postgresql://me:secret@127.0.0.1:{unused_tcp_port}/shop")
    app._opened = Client(app, budget=0.5)
    began = time.monotonic()
    with pytest.raises(errors.DatabaseUnavailable, match="is not available") as caught:
        await app.open()
    assert time.monotonic() - began < 2
    assert "secret" not in str(caught.value)
    assert not caught.value.in_doubt


async def test_a_server_that_accepts_and_says_nothing_is_not_waited_for(unused_tcp_port):
    async def silence(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with await asyncio.start_server(silence, "127.0.0.1", unused_tcp_port):
        app = Fleet(f"postgresql://me@127.0.0.1:{unused_tcp_port}/shop")
        app._opened = Client(app, budget=0.5)
        began = time.monotonic()
        with pytest.raises(errors.DatabaseUnavailable):
            await app.open()
        assert time.monotonic() - began < 2


async def test_a_wrong_database_is_said_at_once(dsn):
    began = time.monotonic()
    with pytest.raises(errors.DatabaseUnavailable, match="does not exist"):
        await Fleet(moved(dsn, path="/no_such_database")).open()
    assert time.monotonic() - began < 2


async def test_connections_that_the_server_closed_are_replaced_unnoticed(app, db):
    async with app:
        await app.jobs["resize"].enqueue(1)
        for _ in range(5):
            await db.execute(_END_CLIENTS)
            await app.jobs["resize"].enqueue(2)
            await app.jobs["resize"].enqueue(3, unique="three")
    assert await db.fetchval("select count(*) from fleet.task") == 7


_END_CLIENTS = """
select pg_terminate_backend(pid) from pg_stat_activity
 where application_name = 'fleet client' and datname = current_database()
"""


async def test_a_statement_that_the_server_aborted_is_sent_again(app, dsn, db):
    async with app:
        await app.jobs["resize"].enqueue(1)
        async with db.transaction():
            await db.execute("lock table fleet.task")
            call = asyncio.create_task(app.jobs["resize"].enqueue(2))
            other = await asyncpg.connect(dsn)
            await until(lambda: other.fetchval(_WAITS))
            await other.execute(_END_CLIENTS)
            await until(lambda: other.fetchval(_WAITS))
        await call
        await other.close()
    assert await db.fetchval("select count(*) from fleet.task") == 2


_WAITS = """
select count(*) > 0 from pg_stat_activity
 where application_name = 'fleet client' and wait_event_type = 'Lock'
   and datname = current_database()
"""


async def test_a_connection_that_breaks_under_the_call_leaves_it_in_doubt(dsn, db, unused_tcp_port):
    async with Cable(dsn, unused_tcp_port) as cable:
        app = Fleet(moved(dsn, netloc=f"fleet@127.0.0.1:{unused_tcp_port}"))
        job = app.job("resize")(_nothing)
        async with app:
            await job.enqueue()
            async with db.transaction():
                await db.execute("lock table fleet.task")
                call = asyncio.create_task(job.enqueue())
                await until(lambda: db.fetchval(_WAITS))
                cable.cut()
                with pytest.raises(errors.DatabaseUnavailable, match="unique= makes") as caught:
                    await call
            assert caught.value.in_doubt
            await job.enqueue()


async def test_f28_a_pooler_that_refuses_our_settings_gets_none(dsn, unused_tcp_port, caplog):
    refusal = b"SERROR\0C08P01\0Munsupported startup parameter: enable_seqscan\0\0"
    async with Cable(dsn, unused_tcp_port, refuse={b"enable_seqscan": refusal}):
        app = Fleet(
            moved(dsn, netloc=f"fleet@127.0.0.1:{unused_tcp_port}", query="sslmode=disable")
        )
        job = app.job("resize")(_nothing)
        async with app:
            handles = await asyncio.gather(job.enqueue(), job.enqueue(), job.enqueue(unique="x"))
            assert (await handles[0].status()).state == "ready"
            assert app._client._opened.writer._conn._stmt_cache.get_max_size() == 0
    assert "behind a pooler" in caplog.text


async def test_f28_statements_that_a_pooler_forgot_are_sent_without_preparing(app, db, caplog):
    job = app.jobs["resize"]
    async with app:
        writer = app._client._opened.writer
        await job.enqueue(1)
        await writer._conn.execute("deallocate all")
        await job.enqueue(2)
        await job.enqueue(3)
    assert "behind a pooler" in caplog.text
    assert await db.fetchval("select count(*) from fleet.task") == 3


async def test_somebodys_open_transaction_under_unique_holds_nobody_else_up(app, dsn, db):
    async with app, db.transaction():
        await app.jobs["resize"].enqueue(0, unique="held", conn=db)
        waiting = [
            asyncio.create_task(app.jobs["resize"].enqueue(n, unique="held")) for n in range(8)
        ]
        other = await asyncpg.connect(dsn)
        await until(lambda: other.fetchval(_WAITS))
        await other.close()

        assert (await app.jobs["resize"].enqueue(9)).created
        for call in waiting:
            call.cancel()
        await asyncio.wait(waiting)


# -- coalescing ------------------------------------------------------------------------------------


async def test_concurrent_calls_share_a_statement(app, db):
    async with app:
        await asyncio.gather(*(app.jobs["resize"].enqueue(n) for n in range(64)))
    rows = await db.fetch("select xmin::text, input::int from fleet.task order by id")
    assert len({row["xmin"] for row in rows}) == 1
    assert [row["input"] for row in rows] == list(range(64))


async def test_different_jobs_and_options_share_a_statement_too(app, db):
    other = app.job("other", queue="emails")(_nothing)
    moment = datetime(2100, 1, 1, tzinfo=UTC)
    async with app:
        handles = await asyncio.gather(
            app.jobs["resize"].enqueue(1),
            other.enqueue(delay=60),
            other.enqueue(priority=3, key="k"),
            app.jobs["resize"].enqueue(2, at=moment),
            other.enqueue(delay=60),
        )
    rows = await db.fetch("select *, xmin::text as txid from fleet.task order by id")
    assert [row["id"] for row in rows] == [handle.id for handle in handles]
    assert [row["job"] for row in rows] == ["resize", "other", "other", "resize", "other"]
    assert [row["state"] for row in rows] == [
        "ready",
        "deferred",
        "waiting",
        "deferred",
        "deferred",
    ]
    assert [row["priority"] for row in rows] == [0, 0, 3, 0, 0]
    assert len({row["txid"] for row in rows}) == 1


async def test_what_gathers_during_a_write_is_the_next_one(app, dsn, db):
    async with app:
        async with db.transaction():
            await db.execute("lock table fleet.task")
            first = asyncio.create_task(app.jobs["resize"].enqueue(0))
            other = await asyncpg.connect(dsn)
            await until(lambda: other.fetchval(_WAITS))
            await other.close()
            rest = [asyncio.create_task(app.jobs["resize"].enqueue(n)) for n in range(1, 20)]
        await asyncio.gather(first, *rest)
    assert await db.fetchval("select count(distinct xmin::text) from fleet.task") == 2


async def test_a_caller_who_gives_up_before_the_write_is_left_out(app, dsn, db):
    async with app:
        async with db.transaction():
            await db.execute("lock table fleet.task")
            first = asyncio.create_task(app.jobs["resize"].enqueue(0))
            other = await asyncpg.connect(dsn)
            await until(lambda: other.fetchval(_WAITS))
            await other.close()
            gone, kept = (asyncio.create_task(app.jobs["resize"].enqueue(n)) for n in (1, 2))
            await asyncio.sleep(0)
            gone.cancel()
        await asyncio.gather(first, kept)
    assert [row[0] for row in await db.fetch("select input::int from fleet.task order by id")] == [
        0,
        2,
    ]


async def test_closing_writes_what_is_pending(app, db):
    await app.open()
    calls = [asyncio.create_task(app.jobs["resize"].enqueue(n)) for n in range(10)]
    await asyncio.sleep(0)
    await app.close()
    await asyncio.gather(*calls)
    assert await db.fetchval("select count(*) from fleet.task") == 10


async def test_nested_uses_close_with_the_last(app):
    async with app:
        async with app:
            await app.jobs["resize"].enqueue(1)
        await app.jobs["resize"].enqueue(2)
    with pytest.raises(errors.NotOpen):
        await app.jobs["resize"].enqueue(3)
    async with app:
        await app.jobs["resize"].enqueue(4)


async def test_no_task_and_no_connection_stays_behind(app, db):
    before = asyncio.all_tasks()
    async with app:
        await app.jobs["resize"].enqueue(1)
    assert asyncio.all_tasks() == before
    await until(lambda: db.fetchval(f"select count(*) = 0 from ({_END_CLIENTS}) left_over"))


# -- embedded --------------------------------------------------------------------------------------


async def test_an_embedded_server_runs_as_long_as_the_application_is_open(tmp_path, monkeypatch):
    for name in ("FLEET_DATABASE_URL", "DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FLEET_EMBEDDED", "1")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(errors.SchemaOutdated):
        await Fleet().open()

    with serve(tmp_path) as server:
        conn = await asyncpg.connect(server.url)
        async for _ in migrate(conn):
            pass
        await conn.close()
    app = Fleet()
    job = app.job("resize")(_nothing)
    async with app:
        assert (await job.enqueue()).created
        assert server.pid is not None
    wait_until(lambda: server.pid is None)
