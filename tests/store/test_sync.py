"""app.sync: the same from code that does not await, from many threads, and across a fork."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import asyncpg
import pytest

from fleet import Context, Fleet, errors
from fleet.client import Client
from fleet.client import sync as facade


@pytest.fixture
def app(dsn: str):
    app = Fleet(dsn)

    @app.job("resize", queue="images")
    async def resize(ctx: Context, image: int) -> str:
        return f"{image}.png"

    yield app
    app.sync.close()


def in_database(dsn: str, query: str, *args: object):
    """Ask the database from a test that is not async."""

    async def ask():
        conn = await asyncpg.connect(dsn)
        try:
            return await conn.fetch(query, *args)
        finally:
            await conn.close()

    return [tuple(row) for row in asyncio.run(ask())]


# -- what is wrong, first --------------------------------------------------------------------------


def test_an_unknown_job_is_named_with_the_known_ones(app):
    with pytest.raises(errors.UnknownJob, match="no job 'rezise'; it has 'resize'"):
        app.sync.enqueue("rezise", 1)
    with pytest.raises(errors.UnknownJob):
        app.sync.enqueue_many("rezise", [1])


def test_a_job_of_another_application_is_refused(app):
    @Fleet().job("other")
    async def other(ctx: Context) -> None: ...

    with pytest.raises(errors.UnknownJob, match="no job 'other'"):
        app.sync.enqueue(other)


def test_wrong_options_are_refused_before_anything_starts(app):
    with pytest.raises(errors.InvalidOption):
        app.sync.enqueue("resize", 1, delay=-1)
    with pytest.raises(errors.InvalidOption):
        app.sync.handle(0)
    assert app.sync._runner is None


def test_a_database_that_is_away_is_not_waited_for_longer_than_said(unused_tcp_port):
    app = Fleet(f"postgresql://me:secret@127.0.0.1:{unused_tcp_port}/shop")
    app.job("resize")(_nothing)
    began = time.monotonic()
    with pytest.raises(errors.DatabaseUnavailable) as caught:
        app.sync.enqueue("resize")
    assert 4 < time.monotonic() - began < 6
    assert "secret" not in str(caught.value)
    app.sync.close()


async def _nothing(ctx: Context) -> None: ...


def test_the_facade_does_not_wait_for_itself(app):
    async def inside(client: Client):
        app.sync.enqueue("resize", 1)

    with pytest.raises(errors.FleetError, match="its own event loop"):
        app.sync._call(inside)


# -- what is right ---------------------------------------------------------------------------------


def test_one_many_and_their_handles(app, dsn):
    handle = app.sync.enqueue("resize", 1, key="k")
    many = app.sync.enqueue_many(app.jobs["resize"], [2, 3])
    unique = app.sync.enqueue(app.jobs["resize"], 4, unique="four")
    again = app.sync.enqueue(app.jobs["resize"], 5, unique="four")

    ids = [row[0] for row in in_database(dsn, "select id from fleet.task order by id")]
    assert ids == [handle.id, *(each.id for each in many), unique.id]
    assert (again.id, again.created) == (unique.id, False)
    assert (handle.job, handle.status().state) == ("resize", "waiting")
    assert app.sync.handle(handle.id) == handle


def test_results_and_cancels(app):
    handle = app.sync.enqueue("resize", 1, delay=60)
    with pytest.raises(errors.ResultTimeout, match="deferred"):
        handle.result(timeout=0.1)
    assert handle.cancel() == "cancelled"
    with pytest.raises(errors.TaskCancelled):
        handle.result()
    with pytest.raises(errors.TaskNotFound):
        app.sync.handle(10**9).cancel()


def test_many_threads_share_the_facade(app, dsn):
    with ThreadPoolExecutor(16) as threads:
        handles = list(threads.map(lambda n: app.sync.enqueue("resize", n), range(200)))
    assert len({handle.id for handle in handles}) == 200
    assert in_database(dsn, "select count(*) from fleet.task") == [(200,)]
    assert [thread.name for thread in threading.enumerate()].count("fleet sync") == 1


def test_after_close_it_starts_again(app):
    first = app.sync.enqueue("resize", 1)
    app.sync.close()
    app.sync.close()
    assert app.sync.enqueue("resize", 2).id > first.id


def test_an_application_that_nobody_has_any_more_goes():
    app = Fleet("postgresql://nowhere/at_all")
    assert app.sync is app.sync
    gone = weakref.ref(app)
    del app
    gc.collect()
    assert gone() is None


def test_an_application_that_made_calls_goes_when_it_is_closed(dsn):
    def used_and_closed() -> weakref.ref[Fleet]:
        app = Fleet(dsn)

        @app.job("resize")
        async def resize(ctx: Context, image: int) -> None: ...

        app.sync.enqueue(resize, 1)
        app.sync.close()
        return weakref.ref(app)

    gone = used_and_closed()
    gc.collect()
    assert gone() is None


async def test_it_works_beside_the_async_client(app):
    async with app:
        handle = await app.jobs["resize"].enqueue(1)
        assert (await asyncio.to_thread(app.sync.handle(handle.id).status)).state == "ready"


# -- fork ------------------------------------------------------------------------------------------


def in_child(act) -> None:
    """Run ``act`` in a forked child that ends as a program does, and check that it went well."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            act()
            code = 0
        finally:
            os._exit(code)
    deadline = time.monotonic() + 30
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            assert os.waitstatus_to_exitcode(status) == 0
            return
        assert time.monotonic() < deadline, "the child hangs"
        time.sleep(0.01)


def test_parent_and_children_go_on_after_a_fork(app, dsn):
    app.sync.enqueue("resize", 0)
    parent = app.sync._runner

    def child() -> None:
        assert app.sync._runner is None
        app.sync.enqueue("resize", 1)
        assert app.sync._runner is not parent
        app.sync.enqueue("resize", 2).status()
        in_child(lambda: app.sync.enqueue("resize", 3))
        app.sync.close()

    in_child(child)
    app.sync.enqueue("resize", 4).status()
    assert app.sync._runner is parent
    inputs = in_database(dsn, "select input::int from fleet.task order by id")
    assert inputs == [(n,) for n in range(5)]


def test_a_child_that_never_calls_leaves_the_parents_connection_alone(app):
    handle = app.sync.enqueue("resize", 0)

    def child() -> None:
        import gc

        assert facade._inherited
        facade._inherited.clear()  # worse than what happens: let the collector at the sockets
        gc.collect()

    in_child(child)
    assert handle.status().state == "ready"
    assert app.sync.enqueue("resize", 1).id > handle.id


def test_a_fork_while_another_thread_holds_the_lock(app):
    app.sync.enqueue("resize", 0)
    with app.sync._lock:
        in_child(lambda: app.sync.enqueue("resize", 1))
    app.sync.enqueue("resize", 2)


PRELOADED = """
import os, sys
from fleet import Context, Fleet

app = Fleet({dsn!r})

@app.job("resize")
async def resize(ctx: Context, image: int) -> None: ...

app.sync.enqueue("resize", 0)          # gunicorn --preload: the parent has used it already
for n in range(1, 4):
    if os.fork() == 0:
        app.sync.enqueue("resize", n)
        sys.exit()                      # an ordinary end: atexit and finalizers run
for _ in range(3):
    assert os.wait()[1] == 0
app.sync.enqueue("resize", 4)
"""


def test_a_preloaded_program_and_its_workers_end_by_themselves(dsn, tmp_path: Path):
    script = tmp_path / "preloaded.py"
    script.write_text(PRELOADED.format(dsn=dsn))
    said = subprocess.run(
        # From Python 3.12 on, a fork beside threads is warned of: that is what is tried here.
        [sys.executable, "-W", "ignore::DeprecationWarning", script],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (said.returncode, said.stderr) == (0, "")
    inputs = in_database(dsn, "select input::int from fleet.task order by 1")
    assert inputs == [(n,) for n in range(5)]


# -- Django ----------------------------------------------------------------------------------------


def test_django_commits_with_atomic(app, dsn, django_db):
    from django.db import transaction

    from fleet import django as fleet_django

    with transaction.atomic():
        handle = fleet_django.enqueue(app.jobs["resize"], 1, delay=60)
        many = fleet_django.enqueue_many(app.jobs["resize"], [2, 3])
        unique = fleet_django.enqueue(app.jobs["resize"], 4, unique="four")
        assert not fleet_django.enqueue(app.jobs["resize"], 4, unique="four").created
        assert in_database(dsn, "select count(*) from fleet.task") == [(0,)]
    rows = in_database(dsn, "select id, input::int from fleet.task order by id")
    assert rows == [(handle.id, 1), (many[0].id, 2), (many[1].id, 3), (unique.id, 4)]


def test_django_rolls_back_with_atomic(app, dsn, django_db):
    from django.db import connection, transaction

    from fleet import django as fleet_django

    with pytest.raises(RuntimeError), transaction.atomic():
        fleet_django.enqueue(app.jobs["resize"], 1)
        app.sync.enqueue("resize", 2, conn=connection)
        app.sync.enqueue("resize", 3, conn=django_db)
        raise RuntimeError("changed my mind")
    assert in_database(dsn, "select count(*) from fleet.task") == [(0,)]


def test_django_in_autocommit_commits_at_once(app, dsn, django_db):
    from fleet import django as fleet_django

    handle = fleet_django.enqueue(app.jobs["resize"], 1)
    assert in_database(dsn, "select id from fleet.task") == [(handle.id,)]
    assert app.sync._runner is None, "no thread was needed"


def test_django_says_what_the_server_refused(app, django_db):
    from django.db import connection

    submission = app.jobs["resize"].submission(1)
    object.__setattr__(submission, "queue", "Not Allowed")
    with pytest.raises(errors.InvalidName, match="lower-case") as caught:
        facade.insert_now(connection, [submission])
    assert type(caught.value.__cause__).__module__ == "django.db.utils"
