"""The way to PostgreSQL is cut, by everything from a reset to silence; and what comes of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time

import asyncpg

from supervisor.link import Door, Link
from tests.process.faults import APP, FAST, host
from tests.process.fleets import eventually
from tests.process.proxy import Proxy

LEASE = 3.0


async def test_f15_postgresql_away_for_longer_than_a_lease(dsn, db, tmp_path):
    """A form of a few seconds of what lasts a minute in the chaos run."""
    with (
        Proxy(dsn) as way_a,
        Proxy(dsn) as way_b,
        host(way_a.dsn, db, tmp_path) as here,
        host(way_b.dsn, db, tmp_path, name="host-b") as there,
    ):
        cut_off = await here.enqueue_many("long-once", [None] * 4)
        await here.running(*cut_off)
        owners = await db.fetch("select id from fleet.owner order by id")
        began = time.monotonic()
        for way in (way_a, way_b):
            way.refuse()
        for each in (here, there):
            each.fleet.wait_log("could not be renewed")
            each.fleet.until(lambda: time.monotonic() - began > 2 * LEASE, "twice the lease")
        waiting = await here.enqueue_many("quick", list(range(20)))
        lasted = time.monotonic() - began
        for way, each in ((way_a, here), (way_b, there)):
            # Of the four connections each may have been on its way when it began.
            assert 2 <= way.since(began) <= 4 + 2 * lasted
            said = each.fleet.records("is not available")
            assert 1 <= len(said) <= 1 + lasted / 5
        for way in (way_a, way_b):
            way.open()

        for row in await here.ended(*cut_off, *waiting):
            assert (row["how"], row["losses"], row["crashes"]) == ("succeeded", 0, 0)
        assert await db.fetch("select id from fleet.owner order by id") == owners
        for each in (here, there):
            each.fleet.wait_log("PostgreSQL is back")
            assert "fell silent" not in each.fleet.log_text()
            assert "taken this one's tasks over" not in each.fleet.log_text()


LEDGERS = (
    APP
    + """
booked: Job[int, int] = app.job("booked")


@booked.step(transactional=True)
async def book(ctx: Context, n: int) -> int:
    await ctx.tx.execute("insert into effects (task) values ($1)", ctx.task_id)
    return n
"""
)
ALL_BUT_US = """
select count(pg_terminate_backend(pid)) from pg_stat_activity
 where datname = current_database() and application_name like 'fleet %'
"""


async def test_f16_every_backend_is_terminated_again_and_again(dsn, db, tmp_path):
    await db.execute("create table effects (task bigint not null)")
    with host(dsn, db, tmp_path, app=LEDGERS) as here:
        killing = asyncio.create_task(_terminate_all(dsn))
        try:
            tasks = []
            for _ in range(10):
                tasks += (steps := await here.enqueue_many("three", list(range(20))))
                tasks += (booked := await here.enqueue_many("booked", list(range(10))))
                for row in await here.ended(*steps, *booked):
                    assert (row["how"], row["crashes"], row["losses"]) == ("succeeded", 0, 0)
        finally:
            killing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                assert await killing > 0
        once = "select count(*), count(distinct task) from effects"
        assert tuple(await db.fetchrow(once)) == (100, 100)
        assert await db.fetchval("select count(*) from fleet.task") == 0
        assert await db.fetchval("select count(distinct id) from fleet.archive") == len(tasks)
        assert "a part of the supervisor failed" not in here.fleet.log_text()


async def _terminate_all(dsn) -> int:
    conn = await asyncpg.connect(dsn)
    killed = 0
    try:
        while True:
            killed += await conn.fetchval(ALL_BUT_US)
            await asyncio.sleep(0.2)  # the rhythm of the fault
    except asyncio.CancelledError:
        return killed
    finally:
        conn.terminate()


async def test_f18_packets_are_dropped_and_nobody_is_told(dsn, db, tmp_path):
    """All connections look alive for ever; the beat notices, and says so for the others."""
    config = FAST.replace('lease = "3s"', 'lease = "15s"')
    with Proxy(dsn) as way, host(way.dsn, db, tmp_path, config) as here:
        for _ in range(2):
            napping = await here.enqueue("nap", 0.3)
            await here.running(napping)
            cut = time.monotonic()
            way.drop_packets()
            waiting = await here.enqueue_many("quick", list(range(20)))
            for row in await here.ended(napping, *waiting):
                assert (row["how"], row["losses"], row["crashes"]) == ("succeeded", 0, 0)
            assert time.monotonic() - cut < 15  # measured: 4.5 s
            assert here.ledger.started(napping) == 1
        assert "could not be renewed" not in here.fleet.log_text()
        await eventually(lambda: _listens(here))


async def _listens(here) -> bool:
    return '"news":"listening"' in here.fleet.get("/readyz")[1].replace(" ", "")


async def test_f18_the_kernel_watches_every_connection(dsn):
    link = Link(dsn, "test", Door())
    conn = await link.connection()
    try:
        sock = conn._transport.get_extra_info("socket")
        with socket.socket(fileno=os.dup(sock.fileno())) as same:
            assert same.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            times = [same.getsockopt(socket.IPPROTO_TCP, o) for o in (_IDLE, _EVERY, _TIMES)]
            assert times[0] + times[1] * times[2] <= 5
            assert same.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 5_000
    finally:
        link.drop()


_IDLE, _EVERY, _TIMES = socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT
