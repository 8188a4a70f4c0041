"""The end of a transactional step when the way to the server breaks, or somebody is in its way.

What the runner reports is the truth: the step's effects and its outcome are there, or neither.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator
from typing import Literal, TypeAlias
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest

from fleet import Context, Fleet, Job, Retry
from fleet.lifecycle import Advance, Bury, Finish, PutBack
from fleet.store.outcomes import write
from fleet.worker import line
from fleet.worker.runner import Attempt, Runner
from fleet.worker.transactions import Transactions
from tests.store.conftest import ALICE, Table

Where: TypeAlias = Literal["before", "after"]
How: TypeAlias = Literal["reset", "silence"]

LIMIT = 60  # of a test that would otherwise hang


class Way:
    """A proxy that breaks one connection at a statement, before or after it has been served.

    It resets the connection, or goes on to take what comes and gives no answer, as a pooler does
    that has lost its server.
    """

    def __init__(self, dsn: str) -> None:
        self._to = urlsplit(dsn)
        self._cut: tuple[bytes, Where, How] | None = None
        self.cuts = 0

    def cut(self, at: bytes, where: Where, how: How) -> None:
        self._cut = at, where, how

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._come, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        yield urlunsplit(self._to._replace(netloc=f"{self._to.username}@127.0.0.1:{port}"))
        server.close()

    async def _come(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, to_it = await asyncio.open_connection(self._to.hostname, self._to.port)
        answers = asyncio.create_task(self._pass(there, writer))
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                if self._cut is None or self._cut[0] not in data:
                    to_it.write(data)
                    continue
                (_, where, how), self._cut = self._cut, None
                self.cuts += 1
                answers.cancel()
                await asyncio.wait([answers])
                if where == "after":
                    to_it.write(data)
                    await there.read(65536)
                if how == "reset":
                    break
                while await reader.read(65536):
                    pass  # until the user hangs up
                break
        answers.cancel()
        for transport in (writer.transport, to_it.transport):
            transport.abort()

    @staticmethod
    async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)


@pytest.fixture
async def app(dsn: str, db: asyncpg.Connection) -> Fleet:
    await db.execute("create table ledger (note text)")
    return Fleet(dsn)


@pytest.fixture
def way(dsn: str) -> Way:
    return Way(dsn)


@pytest.fixture
async def pool(way: Way) -> AsyncIterator[Transactions]:
    async with way.open() as url:
        made = Transactions(url, ALICE, limit=2, patience=20.0)
        yield made
        made.close()


@pytest.fixture
async def runner(app: Fleet, pool: Transactions) -> AsyncIterator[Runner]:
    made = Runner(app, ALICE, "worker-1", connect=pool.connect, look=pool.look)
    yield made
    made.close()


def pays(app: Fleet, *, steps: int = 1) -> Job[int, int]:
    job: Job[int, int] = app.job("resize", queue="images", retry=Retry(max_attempts=1))

    @job.step(transactional=True)
    async def one(ctx: Context, n: int) -> int:
        await ctx.tx.execute("insert into ledger values ('paid')")
        return n

    if steps == 2:

        @job.step
        async def two(ctx: Context, n: int) -> int:
            return n

    return job


async def attempt_of(runner: Runner, table: Table) -> Attempt:
    async with asyncio.timeout(LIMIT):
        return await runner.run(await table.claim_one())


async def ledger(db: asyncpg.Connection) -> list[str]:
    return [row["note"] for row in await db.fetch("select note from ledger")]


def released(attempt: Attempt) -> str:
    """What a release that costs nothing gives as its reason."""
    transition = attempt.outcome.transition
    assert isinstance(transition, PutBack)
    assert (transition.outcome, transition.failures) == ("released", 0)
    assert attempt.fence is None, "nothing is written"
    assert transition.error is not None
    return transition.error.type.rpartition(".")[2]


async def runs_again(runner: Runner, table: Table, attempt: Attempt) -> None:
    """The release is written, as the supervisor would, and the next attempt does it all."""
    report = await write(table.db, ALICE, [attempt.outcome])
    assert not report.lost
    again = await attempt_of(runner, table)
    assert isinstance(again.outcome.transition, Finish)
    assert again.fence is not None


# ── F19: the connection breaks at COMMIT ─────────────────────────────────────────────────────────

cuts = pytest.mark.parametrize("how", ["reset", "silence"])


@pytest.fixture
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line, "ANSWER", 2.0)


@cuts
@pytest.mark.usefixtures("_short")
async def test_f19_a_commit_that_never_arrived_is_told_and_the_step_runs_again(
    app, db, way, runner, table: Table, how
):
    pays(app)
    (task,) = await table.enqueue("1")
    way.cut(b"COMMIT;", "before", how)
    attempt = await attempt_of(runner, table)

    assert way.cuts == 1
    assert released(attempt) == "LostCommit"
    assert await table.state(task) == "running"
    assert await ledger(db) == []
    await runs_again(runner, table, attempt)
    assert await table.state(task) == "succeeded"
    assert await ledger(db) == ["paid"]


@cuts
@pytest.mark.usefixtures("_short")
async def test_f19_a_commit_whose_answer_was_lost_counts(app, db, way, runner, table: Table, how):
    pays(app)
    (task,) = await table.enqueue("1")
    way.cut(b"COMMIT;", "after", how)
    attempt = await attempt_of(runner, table)

    assert way.cuts == 1
    assert isinstance(attempt.outcome.transition, Finish)
    assert attempt.fence is not None, "it is written already"
    assert await table.state(task) == "succeeded"
    assert await ledger(db) == ["paid"]


@pytest.mark.parametrize("where", ["before", "after"])
async def test_f19_a_job_goes_on_with_its_next_step_only_if_the_commit_happened(
    app, db, way, runner, table: Table, where
):
    pays(app, steps=2)
    (task,) = await table.enqueue("1")
    way.cut(b"COMMIT;", where, "reset")
    attempt = await attempt_of(runner, table)

    row = await table.row(task)
    if where == "before":
        assert released(attempt) == "LostCommit"
        assert (row["step"], await ledger(db)) == ("one", [])
        return
    assert isinstance(attempt.outcome.transition, Advance)
    assert attempt.fence == row["fence"]
    assert (row["step"], await ledger(db)) == ("two", ["paid"])


@cuts
@pytest.mark.parametrize("where", ["before", "after"])
@pytest.mark.parametrize("at", [b"BEGIN;", b"lock_timeout", b"fleet.task"])
@pytest.mark.usefixtures("_short")
async def test_f19_a_cut_before_commit_undoes_the_step(
    app, db, way, runner, table: Table, how, where, at
):
    pays(app)
    (task,) = await table.enqueue("1")
    way.cut(at, where, how)  # around the step: its beginning, and what Fleet says at its end
    attempt = await attempt_of(runner, table)

    assert way.cuts == 1
    assert released(attempt) == "ConnectionDoesNotExistError"
    assert await table.state(task) == "running"
    assert await ledger(db) == []


@pytest.mark.usefixtures("_short")
async def test_f19_a_look_that_gets_no_answer_is_taken_again(
    app, db, way, runner, table: Table, monkeypatch
):
    monkeypatch.setattr("fleet.worker.transactions.LOOK", 2.0)
    pays(app)
    (task,) = await table.enqueue("1")
    look = runner._look

    async def unheard(claim):
        way.cut(b"skip locked", "before", "silence")
        return await look(claim)

    runner._look = unheard
    way.cut(b"COMMIT;", "after", "reset")
    attempt = await attempt_of(runner, table)
    assert way.cuts == 2
    assert isinstance(attempt.outcome.transition, Finish)
    assert await table.state(task) == "succeeded"


async def test_f19_the_kernel_watches_the_connections_of_steps(pool):
    async with pool.connect() as conn:
        sock = conn._transport.get_extra_info("socket")
        with socket.socket(fileno=os.dup(sock.fileno())) as same:
            assert same.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert same.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 5_000


# ── somebody's open transaction in the way ───────────────────────────────────────────────────────


async def test_a_child_whose_unique_name_is_held_lets_the_step_go_at_no_cost(
    app, db, dsn, runner, table: Table
):
    job: Job[int, int] = app.job("resize", queue="images", retry=Retry(max_attempts=1))

    @app.job("told", queue="elsewhere")
    async def told(ctx: Context, n: int) -> None: ...

    @job.step(transactional=True)
    async def one(ctx: Context, n: int) -> int:
        await ctx.tx.execute("insert into ledger values ('paid')")
        ctx.enqueue(told, n, unique="u")
        return n

    (task,) = await table.enqueue("1")
    holder = await asyncpg.connect(dsn)
    try:
        async with app:
            await holder.execute("begin")
            await told.enqueue(7, unique="u", conn=holder)
            attempt = await attempt_of(runner, table)
            assert released(attempt) == "Blocked"
            assert "open transaction" in attempt.outcome.transition.error.message
            assert await ledger(db) == []
            await holder.execute("rollback")
    finally:
        await holder.close()
    await runs_again(runner, table, attempt)
    assert await table.state(task) == "succeeded"
    assert await ledger(db) == ["paid"]


async def test_a_lock_that_a_deferred_trigger_waits_for_lets_the_step_go_at_no_cost(
    app, db, dsn, runner, table: Table
):
    await db.execute(
        """
        create function wait() returns trigger language plpgsql as
        $$ begin perform pg_advisory_xact_lock(4711); return null; end $$;
        create constraint trigger waits after insert on ledger
        deferrable initially deferred for each row execute function wait();
        """
    )
    pays(app)
    await table.enqueue("1")
    await db.execute("select pg_advisory_lock(4711)")
    attempt = await attempt_of(runner, table)
    assert released(attempt) == "Blocked"
    await db.execute("select pg_advisory_unlock(4711)")
    await runs_again(runner, table, attempt)
    assert await ledger(db) == ["paid"]


async def test_a_lock_that_the_step_itself_could_not_have_is_its_failure(
    app, db, runner, table: Table
):
    job: Job[int, int] = app.job("resize", queue="images", retry=Retry(max_attempts=1))

    @job.step(transactional=True)
    async def one(ctx: Context, n: int) -> int:
        await ctx.tx.execute("lock table ledger nowait")
        return n

    await table.enqueue("1")
    claim = await table.claim_one()
    async with asyncio.timeout(LIMIT), db.transaction():
        await db.execute("lock table ledger")
        attempt = await runner.run(claim)
    assert isinstance(attempt.outcome.transition, Bury)
    assert attempt.outcome.transition.error.type.endswith(".LockNotAvailableError")
