"""What a limited queue costs the others, and what a limit costs its own queue, in one run.

    python -m bench.limits [--quick] [--json FILE]

A real ``fleet run`` drains the same tasks in turns: alone and beside a queue at its limit with a
hundred thousand tasks waiting; without and with a limit that is never reached. Rates are taken
from the database's own record, so that starting and stopping does not count.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg

from bench.core import Row
from fleet.embedded import Server
from fleet.store.migrations import migrate

APP = """
import asyncio
from fleet import Context, Fleet

app = Fleet()

@app.job("noop", queue="free")
async def noop(ctx: Context, n: int) -> None: ...

@app.job("partner", queue="partner", limit=1)
async def partner(ctx: Context, n: int) -> None:
    await asyncio.sleep(0.05)
"""

_FILL = """
insert into fleet.task (state, pos, rank, queue, job, step, input)
select 'ready', nextval('fleet.position'), 1, $1::text, $2::text, $2::text, '1'
  from generate_series(1, $3::int)
"""
_ENDED = "select count(*) from fleet.archive where job = 'noop'"
_RATE = """
select count(*) / extract(epoch from max(finished_at) - min(started_at))::float8
  from fleet.archive where job = 'noop'
"""


@asynccontextmanager
async def running(url: str, folder: Path, config: str) -> AsyncIterator[None]:
    (folder / "bench_limits_app.py").write_text(APP)
    (folder / "fleet.toml").write_text(config)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "fleet", "run", "bench_limits_app:app"),
        cwd=folder,
        env={**os.environ, "FLEET_DATABASE_URL": url},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        await process.wait()


async def drained(url: str, folder: Path, n: int, *, limit: int | None, waiting: int) -> float:
    """Let a fleet drain ``n`` empty steps; return how many a second."""
    conn = await asyncpg.connect(url)
    await conn.execute("truncate fleet.task, fleet.archive, fleet.attempt, fleet.gate")
    await conn.execute(_FILL, "partner", "partner", waiting)
    await conn.execute(_FILL, "free", "noop", n)
    await conn.execute("vacuum analyze fleet.task")
    config = '[supervisor]\nprocesses = 2\nhttp = "127.0.0.1:0"\n[queues.partner]\n[queues.free]\n'
    async with running(url, folder, config + (f"limit = {limit}\n" if limit else "")):
        while await conn.fetchval(_ENDED) < n:  # noqa: ASYNC110 -- another process ends them
            await asyncio.sleep(0.1)
        rate: float = await conn.fetchval(_RATE)
    await conn.close()
    return rate


async def measure(url: str, folder: Path, n: int, waiting: int, rounds: int) -> list[Row]:
    conn = await asyncpg.connect(url)
    async for _ in migrate(conn):
        pass
    await conn.close()
    alone, beside, limited = [], [], []
    for _ in range(rounds):
        alone.append(await drained(url, folder, n, limit=None, waiting=0))
        beside.append(await drained(url, folder, n, limit=None, waiting=waiting))
        limited.append(await drained(url, folder, n, limit=1_000_000, waiting=0))
    middle = statistics.median(alone)
    return [
        Row(f"beside {waiting:,} under a limit", statistics.median(beside), middle),
        Row("under a limit itself", statistics.median(limited), middle),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="half a minute")
    parser.add_argument("--smoke", action="store_true", help="only to see that it runs")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    size = (500, 1000, 1) if options.smoke else (30_000, 100_000, 3 if options.quick else 5)
    with (
        tempfile.TemporaryDirectory(prefix="fleet-bench-") as folder,
        Server(Path(folder), settings={"shared_buffers": "1GB", "max_wal_size": "8GB"}) as server,
    ):
        Path(folder).chmod(0o711)
        rows = asyncio.run(measure(server.url, Path(folder), *size))
    print(f"{'':32}{'Fleet /s':>12}{'alone /s':>14}{'ratio':>8}")
    for row in rows:
        print(f"{row.what:32}{row.ours:12,.0f}{row.floor:14,.0f}{row.ratio:8.2f}")
    if options.json:
        options.json.write_text(json.dumps([vars(row) | {"ratio": row.ratio} for row in rows]))


if __name__ == "__main__":
    main()
