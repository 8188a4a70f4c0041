"""drain_sync on a connection that blocks: in the calling thread, inside the test's transaction."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
import unittest

import psycopg
import pytest
import sqlalchemy
import sqlalchemy.orm

from fleet import Context, Fleet, FleetError, Job, Retry
from fleet import django as fleet_django
from fleet.testing import drain_sync


@pytest.fixture
def app(dsn: str):
    app = Fleet(dsn)
    yield app
    app.sync.close()


# -- Django ----------------------------------------------------------------------------------------


def test_a_django_test_case_drains_inside_its_own_transaction(app, dsn, django_db):
    from django.db import connection, transaction
    from django.test import TestCase

    orders: Job[int, int] = app.job("orders")

    @orders.step
    def pay(ctx: Context, order: int) -> int:
        with connection.cursor() as cursor:
            cursor.execute("update orders set paid = true where id = %s returning id", [order])
            assert cursor.fetchone() == (order,), "the step sees what the test has not committed"
        ctx.enqueue(audit, order)
        return order

    @orders.step
    async def notify(ctx: Context, order: int) -> int:
        await asyncio.sleep(0)
        return order

    @app.job("audit")
    def audit(ctx: Context, order: int) -> None:
        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute("insert into orders values (%s, true)", [order + 100])
            ctx.finish(None, conn=connection)

    with connection.cursor() as cursor:
        cursor.execute("create table orders (id int, paid bool)")

    class Orders(TestCase):
        databases = ("default",)

        def test_an_order_is_paid(self):
            with connection.cursor() as cursor:
                cursor.execute("insert into orders values (1, false)")
            handle = fleet_django.enqueue(orders, 1)

            done = drain_sync(app, conn=connection)

            self.assertEqual((done.attempts, len(done.succeeded)), (3, 2))
            self.assertIn(handle.id, done.succeeded)
            with connection.cursor() as cursor:
                cursor.execute("select id, paid from orders order by id")
                self.assertEqual(cursor.fetchall(), [(1, True), (101, True)])

    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(Orders).run(result)
    assert (result.testsRun, result.errors, result.failures) == (1, [], [])

    with psycopg.connect(dsn) as other:
        for table in ("orders", "fleet.task", "fleet.archive", "fleet.attempt", "fleet.owner"):
            assert other.execute(f"select count(*) from {table}").fetchone() == (0,), table


def test_a_failing_step_under_django_is_put_back(app, django_db):
    from django.db import connection, transaction

    @app.job("fails", retry=Retry(max_attempts=2, initial=0, jitter=0))
    def fails(ctx: Context) -> None:
        raise StopIteration

    with transaction.atomic():
        handle = fleet_django.enqueue(fails)
        done = drain_sync(app, conn=connection)
        transaction.set_rollback(True)

    assert (done.put_back, done.buried) == ([handle.id], [handle.id])


def test_an_async_step_reaches_the_tests_connection_the_way_django_says(app, django_db):
    from asgiref.sync import sync_to_async
    from django.db import connection, transaction

    def count() -> int:
        with connection.cursor() as cursor:
            cursor.execute("select count(*) from notes")
            return cursor.fetchone()[0]

    @app.job("counts")
    async def counts(ctx: Context) -> int:
        return await sync_to_async(count)()

    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("create table notes (n int)")
            cursor.execute("insert into notes values (1), (2)")
        fleet_django.enqueue(counts)
        assert len(drain_sync(app, conn=connection).succeeded) == 1
        with connection.cursor() as cursor:
            cursor.execute("select result::text from fleet.archive")
            assert cursor.fetchone() == ("2",)
        transaction.set_rollback(True)


# -- any of them -----------------------------------------------------------------------------------


def test_everything_on_the_connection_happens_in_the_calling_thread(app, dsn):
    threads: dict[str, int] = {}

    @app.job("plain")
    def plain(ctx: Context) -> None:
        ctx.progress(0.5)
        threads["def"] = threading.get_ident()
        with pytest.raises(RuntimeError, match="no running event loop"):
            asyncio.get_running_loop()
        conn.execute("insert into notes values (1)")

    @app.job("awaits")
    async def awaits(ctx: Context) -> None:
        threads["async"] = threading.get_ident()

    with psycopg.connect(dsn) as conn:
        conn.execute("create table notes (n int)")
        app.sync.enqueue(plain, conn=conn)
        app.sync.enqueue(awaits, conn=conn)
        assert len(drain_sync(app, conn=conn).succeeded) == 2
        assert conn.execute("select count(*) from notes").fetchone() == (1,)
        conn.rollback()
    assert threads["def"] == threading.get_ident() != threads["async"]


def test_a_session_of_sqlalchemy(app, dsn):
    @app.job("double")
    def double(ctx: Context, n: int) -> int:
        return session.execute(sqlalchemy.text("select 2 * :n"), {"n": n}).scalar_one()

    engine = sqlalchemy.create_engine(dsn.replace("postgresql:", "postgresql+psycopg:"))
    with sqlalchemy.orm.Session(engine) as session:
        app.sync.enqueue(double, 21, conn=session)
        assert len(drain_sync(app, conn=session).succeeded) == 1
        found = session.execute(sqlalchemy.text("select result::text from fleet.archive"))
        assert found.scalar_one() == "42"
        session.rollback()
    engine.dispose()


def test_a_def_step_over_its_time_is_timed_out_when_it_returns(app, dsn):
    @app.job("slow", timeout=0.02, retry=Retry(max_attempts=1), priority=1)
    def slow(ctx: Context) -> None:
        time.sleep(0.1)

    @app.job("quick", timeout=5)
    def quick(ctx: Context) -> None: ...

    with psycopg.connect(dsn) as conn:
        app.sync.enqueue(slow, conn=conn)
        app.sync.enqueue(quick, conn=conn)
        done = drain_sync(app, conn=conn)
        assert (len(done.buried), len(done.succeeded)) == (1, 1)
        (kind,) = conn.execute("select error ->> 'type' from fleet.buried").fetchone()
        assert kind == "StepTimeout"


def test_a_transactional_step_needs_asyncpg_and_says_so(app, dsn):
    booking: Job[None, None] = app.job("booking")

    @booking.step(transactional=True)
    async def book(ctx: Context) -> None: ...

    with psycopg.connect(dsn) as conn:
        app.sync.enqueue(booking, conn=conn)
        with pytest.raises(FleetError, match="needs an asyncpg connection"):
            drain_sync(app, conn=conn)


def test_what_breaks_the_transaction_is_raised(app, dsn):
    @app.job("breaks")
    def breaks(ctx: Context) -> None:
        conn.execute("select from nowhere")

    with psycopg.connect(dsn) as conn:
        app.sync.enqueue(breaks, conn=conn)
        with pytest.raises(psycopg.errors.InFailedSqlTransaction):
            drain_sync(app, conn=conn)


@pytest.mark.parametrize("kind", ["def", "async"])
def test_ctrl_c_ends_it(app, dsn, kind):
    def interrupt() -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    @app.job("def")
    def plain(ctx: Context) -> None:
        interrupt()
        time.sleep(30)

    @app.job("async")
    async def awaits(ctx: Context) -> None:
        interrupt()
        await asyncio.sleep(30)

    with psycopg.connect(dsn) as conn:
        app.sync.enqueue(app.jobs[kind], conn=conn)
        with pytest.raises(KeyboardInterrupt):
            drain_sync(app, conn=conn)
        assert conn.execute("select count(*) from fleet.owner").fetchone() == (0,)
