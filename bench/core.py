"""How fast the durable core is, beside the least that PostgreSQL could do, in one run.

    python -m bench.core [--quick] [--json FILE]

Each figure stands beside a floor measured on the same server in the same minute, so that the
ratio means something on any machine. The server is a throwaway one with its defaults for
durability.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import asyncpg
import uvloop

from fleet import Context, Fleet, Job
from fleet.embedded import Server
from fleet.lifecycle import Advance, Finish, onward
from fleet.model import Claim, OwnerId
from fleet.store import claims
from fleet.store.migrations import migrate
from fleet.store.outcomes import Outcome
from fleet.store.writes.advance import advance
from fleet.store.writes.finish import finish, finish_and_forget
from supervisor.watermark import Watermark

OWNER = OwnerId(1)
KEEP = 14 * 86_400.0

_FLOOR_TABLE = """
create table floor (id bigint generated always as identity primary key, input jsonb, state text);
"""
_FLOOR_ONE = "insert into floor (input, state) values ($1::text::jsonb, 'ready') returning id"
_FLOOR_MANY = """
insert into floor (input, state) select i::jsonb, 'ready' from unnest($1::text[]) i returning id
"""
_FLOOR_CLAIM = """
update floor set state = 'running' where id = any (array(
    select id from floor where id > $1 and state = 'ready' order by id limit $2
       for update skip locked)) returning id
"""
_FLOOR_FINISH = "delete from floor where id = any ($1::bigint[]) returning id"


@dataclass(frozen=True)
class Row:
    what: str
    ours: float
    floor: float

    @property
    def ratio(self) -> float:
        return self.ours / self.floor


def application(url: str) -> tuple[Fleet, Job[dict, None], Job[int, int]]:
    app = Fleet(url)

    @app.job("noop")
    async def noop(ctx: Context, order: dict) -> None: ...

    three: Job[int, int] = app.job("three")

    @three.step
    async def s1(ctx: Context, n: int) -> int:
        return n

    @three.step
    async def s2(ctx: Context, n: int) -> int:
        return n

    @three.step
    async def s3(ctx: Context, n: int) -> int:
        return n

    return app, noop, three


async def rate(count: int, work: Callable[[], Awaitable[object]]) -> float:
    start = time.perf_counter()
    await work()
    return count / (time.perf_counter() - start)


async def enqueues(url: str, n: int) -> list[Row]:
    app, noop, _ = application(url)
    conn = await asyncpg.connect(url)
    await conn.execute(_FLOOR_TABLE)
    one = await conn.prepare(_FLOOR_ONE)
    many = await conn.prepare(_FLOOR_MANY)
    document = '{"order_id": 42}'

    async def ours_one() -> None:
        for i in range(n):
            await noop.enqueue({"order_id": i})

    async def floor_one() -> None:
        for _ in range(n):
            await one.fetch(document)

    async def ours_64() -> None:
        async def caller() -> None:
            for i in range(n // 16):
                await noop.enqueue({"order_id": i})

        await asyncio.gather(*[caller() for _ in range(64)])

    async def ours_bulk() -> None:
        await noop.enqueue_many([{"order_id": i} for i in range(n * 20)])

    async def floor_bulk() -> None:
        for _ in range(n * 20 // 1000):
            await many.fetch([document] * 1000)

    async with app:
        await ours_one()  # warm up
        floor = await rate(n, floor_one)
        rows = [
            Row("enqueue, one at a time", await rate(n, ours_one), floor),
            Row("enqueue, 64 callers", await rate(n * 4, ours_64), floor),
            Row("enqueue, bulk", await rate(n * 20, ours_bulk), await rate(n * 20, floor_bulk)),
        ]
    await conn.execute("drop table floor; truncate fleet.task")
    await conn.close()
    return rows


class Loop:
    """Claim on one connection, write on another: what a supervisor does, without its workers."""

    def __init__(self, url: str, steps: list[str], *, keep: bool = True) -> None:
        self.url, self.steps, self.keep = url, steps, keep
        self.pending: list[Claim] = []
        self.flying = 0
        self.dry = False
        self.got, self.room = asyncio.Event(), asyncio.Event()

    async def run(self, job: str) -> None:
        settings = claims.SETTINGS
        self.reading = await asyncpg.connect(self.url, server_settings=settings)
        self.writing = await asyncpg.connect(self.url, server_settings=settings)
        known = [f"{job}/{step}" for step in self.steps]
        await asyncio.gather(self._claim(known), self._write())
        await self.reading.close()
        await self.writing.close()

    async def _claim(self, known: list[str]) -> None:
        mark, batch = Watermark(), 500
        while True:
            while self.flying >= 2 * batch:
                self.room.clear()
                await self.room.wait()
            spans = mark.spans(time.monotonic(), back=False)
            got = await claims.claim(self.reading, OWNER, "default", batch, known, spans)
            mark.took(got, time.monotonic())
            self.flying += len(got)
            self.pending += got
            self.dry = not got
            self.got.set()
            if self.dry:
                return

    async def _write(self) -> None:
        last = self.steps[-1]
        end = finish if self.keep else finish_and_forget
        while not (self.dry and self.flying == 0):
            await self.got.wait()
            self.got.clear()
            batch, self.pending = self.pending[:500], self.pending[500:]
            if self.pending:
                self.got.set()
            done = [_done(c) for c in batch if c.step == last]
            if done:
                assert len(await end(self.writing, OWNER, done)) == len(done)
                self.flying -= len(done)
                self.room.set()
            moved = [_moved(c, self.steps) for c in batch if c.step != last]
            if moved:
                fences = await advance(self.writing, OWNER, moved)
                self.pending += [onward(o.claim, o.transition, fences[o.claim.id]) for o in moved]
                self.got.set()


def _done(claim: Claim) -> Outcome[Finish]:
    return Outcome(claim, Finish("null"), "bench", 0.001, KEEP)


def _moved(claim: Claim, steps: list[str]) -> Outcome[Advance]:
    following = steps[steps.index(claim.step) + 1]
    return Outcome(claim, Advance(following, claim.input), "bench", 0.001, KEEP)


async def drains(url: str, n: int) -> list[Row]:
    app, noop, three = application(url)
    conn = await asyncpg.connect(url)
    await conn.execute(_FLOOR_TABLE)
    for _ in range(n // 1000):
        await conn.fetch(_FLOOR_MANY, ['{"order_id": 42}'] * 1000)
    reading = await asyncpg.connect(url, server_settings=claims.SETTINGS)

    async def floor() -> None:
        mark = 0
        while got := await reading.fetch(_FLOOR_CLAIM, mark, 500):
            ids = [row["id"] for row in got]
            mark = max(ids)
            await conn.fetch(_FLOOR_FINISH, ids)

    base = await rate(n, floor)
    await reading.close()
    rows = []
    async with app:
        for what, job, steps, keep in (
            ("drain, archived", noop, ["noop"], True),
            ("drain, deleted", noop, ["noop"], False),
            ("drain, three durable steps", three, ["s1", "s2", "s3"], True),
        ):
            await conn.execute("truncate fleet.task, fleet.archive, fleet.attempt")
            inputs = [{"order_id": i} if job is noop else i for i in range(n)]
            await job.enqueue_many(inputs)
            await conn.execute("vacuum analyze fleet.task")
            await conn.execute("checkpoint")
            ours = await rate(n, partial(Loop(url, steps, keep=keep).run, job.name))
            rows.append(Row(what, ours, base))
    hot = await conn.fetchrow(
        "select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables "
        "where schemaname = 'fleet' and relname = 'task'"
    )
    rows.append(Row("HOT updates", hot["n_tup_hot_upd"], hot["n_tup_upd"]))
    await conn.execute("drop table floor; truncate fleet.task, fleet.archive, fleet.attempt")
    await conn.close()
    return rows


async def measure(url: str, one: int, many: int) -> list[Row]:
    conn = await asyncpg.connect(url)
    async for _ in migrate(conn):
        pass
    await conn.close()
    return [*await enqueues(url, one), *await drains(url, many)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a minute")
    parser.add_argument("--smoke", action="store_true", help="only to see that it runs")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    size = (50, 1000) if options.smoke else (500, 20_000) if options.quick else (3000, 200_000)
    settings = {"shared_buffers": "1GB", "max_wal_size": "8GB"}
    with (
        tempfile.TemporaryDirectory(prefix="fleet-bench-") as folder,
        Server(Path(folder), settings=settings) as server,
    ):
        Path(folder).chmod(0o711)
        rows = uvloop.run(measure(server.url, *size))
    print(f"{'':32}{'Fleet /s':>12}{'plain SQL /s':>14}{'ratio':>8}")
    for row in rows:
        print(f"{row.what:32}{row.ours:12,.0f}{row.floor:14,.0f}{row.ratio:8.2f}")
    if options.json:
        options.json.write_text(json.dumps([vars(row) | {"ratio": row.ratio} for row in rows]))


if __name__ == "__main__":
    main()
