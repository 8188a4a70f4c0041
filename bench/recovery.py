"""How fast a real fleet recovers and drains, and what it costs at rest.

    python -m bench.recovery [--quick] [--json FILE]

- SIGKILL of a worker in mid-step, until its task's step has started again elsewhere
- SIGTERM under load, until the last claim
- a minute at rest: CPU of the supervisor, transactions a second
- memory of the supervisor and of a worker
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
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import psutil

from fleet.embedded import Server
from fleet.store.migrations import migrate

APP = """
import asyncio, os, time
from pathlib import Path
from fleet import Context, Fleet

app = Fleet()
STARTS = Path(os.environ["STARTS"])

@app.job("nap")
async def nap(ctx: Context, seconds: float) -> None:
    with STARTS.open("a") as file:
        file.write(f"{ctx.task_id} {os.getpid()} {time.monotonic()}\\n")
    await asyncio.sleep(0.01 if ctx.attempt > 1 else seconds)

@app.job("noop")
async def noop(ctx: Context, n: int) -> None:
    await asyncio.sleep(0.005)
"""
CONFIG = '[supervisor]\nprocesses = 2\nhttp = "127.0.0.1:0"\n'


class Fleet:
    """A running ``fleet run``, its database and what its steps wrote down."""

    def __init__(self, process: asyncio.subprocess.Process, db: asyncpg.Connection, starts: Path):
        self.process, self.db, self._starts = process, db, starts

    @property
    def workers(self) -> list[psutil.Process]:
        family = psutil.Process(self.process.pid).children(recursive=True)
        return [child for child in family if "worker" in " ".join(child.cmdline())]

    def starts(self, task: int) -> list[tuple[int, float]]:
        lines = [line.split() for line in self._starts.read_text().splitlines()]
        return [(int(line[1]), float(line[2])) for line in lines if int(line[0]) == task]

    async def enqueue(self, job: str, value: float) -> int:
        sql = "select fleet.enqueue($1::text, $2::text::jsonb, queue => 'default')"
        task: int = await self.db.fetchval(sql, job, json.dumps(value))
        return task


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 -- other processes do it
            await asyncio.sleep(0.001)


@asynccontextmanager
async def running(url: str, folder: Path) -> AsyncIterator[Fleet]:
    starts = folder / "starts"
    starts.touch()
    (folder / "bench_recovery_app.py").write_text(APP)
    (folder / "fleet.toml").write_text(CONFIG)
    db = await asyncpg.connect(url)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "fleet", "run", "bench_recovery_app:app"),
        cwd=folder,
        env={**os.environ, "FLEET_DATABASE_URL": url, "STARTS": str(starts)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    fleet = Fleet(process, db, starts)
    try:
        first = await fleet.enqueue("nap", 0.01)
        await until(lambda: bool(fleet.starts(first)))
        yield fleet
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        await process.wait()
        await db.close()


async def kills(url: str, folder: Path, times: int) -> dict[str, float]:
    """Kill the worker under a step, again and again; milliseconds until it runs elsewhere."""
    took = []
    async with running(url, folder) as fleet:
        for _ in range(times):
            task = await fleet.enqueue("nap", 60)
            await until(lambda task=task: len(fleet.starts(task)) == 1)
            killed = time.monotonic()
            os.kill(fleet.starts(task)[0][0], signal.SIGKILL)
            await until(lambda task=task: len(fleet.starts(task)) == 2)
            took.append((fleet.starts(task)[1][1] - killed) * 1000)
            await asyncio.sleep(0.05)  # the pace of the killer
    took.sort()
    return {
        "SIGKILL of a worker to its task running again, p50 ms": statistics.median(took),
        "… p99 ms": took[min(len(took) - 1, round(0.99 * len(took)) - 1)],
        "… worst ms": took[-1],
    }


async def terms(url: str, folder: Path, times: int) -> dict[str, float]:
    """SIGTERM under load; milliseconds until the last claim, negative if it was before."""
    took = []
    for _ in range(times):
        async with running(url, folder) as fleet:
            await fleet.db.execute(
                "select fleet.enqueue('noop', '1', queue => 'default')"
                " from generate_series(1, 20000)"
            )
            await asyncio.sleep(0.5)
            told = time.time()
            fleet.process.send_signal(signal.SIGTERM)
            await fleet.process.wait()
            last = await fleet.db.fetchval(
                "select extract(epoch from greatest((select max(started_at) from fleet.archive),"
                " (select max(claimed_at) from fleet.task)))::float8"
            )
            took.append((last - told) * 1000)
            await fleet.db.execute("truncate fleet.task, fleet.archive, fleet.attempt")
    return {"SIGTERM to the last start, worst ms": max(took)}


async def rest(url: str, folder: Path, seconds: float) -> dict[str, float]:
    """What a fleet with nothing to do costs."""
    sql = "select xact_commit + xact_rollback from pg_stat_database where datname = $1"
    async with running(url, folder) as fleet:
        await asyncio.sleep(3)
        name = await fleet.db.fetchval("select current_database()")
        supervisor = psutil.Process(fleet.process.pid)
        family = [supervisor, *supervisor.children(recursive=True)]
        before, cpu = await fleet.db.fetchval(sql, name), _cpu(family)
        await asyncio.sleep(seconds)
        after, used = await fleet.db.fetchval(sql, name), _cpu(family) - cpu
        memory = supervisor.memory_full_info()
        workers = [worker.memory_full_info() for worker in fleet.workers]
        return {
            "at rest, % of a CPU, all processes": 100 * used / seconds,
            "at rest, transactions a second": (after - before) / seconds,
            "supervisor, RSS MB": memory.rss / 1e6,
            "worker, RSS MB": statistics.mean(w.rss for w in workers) / 1e6,
            "worker, of its own MB": statistics.mean(w.uss for w in workers) / 1e6,
        }


def _cpu(family: list[psutil.Process]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in family)


async def measure(url: str, folder: Path, times: int, seconds: float) -> dict[str, float]:
    conn = await asyncpg.connect(url)
    async for _ in migrate(conn):
        pass
    await conn.close()
    return {
        **await kills(url, folder, times),
        **await terms(url, folder, max(1, times // 20)),
        **await rest(url, folder, seconds),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="half a minute")
    parser.add_argument("--smoke", action="store_true", help="only to see that it runs")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    size = (2, 1.0) if options.smoke else (20, 10.0) if options.quick else (100, 60.0)
    with (
        tempfile.TemporaryDirectory(prefix="fleet-bench-") as folder,
        Server(Path(folder)) as server,
    ):
        Path(folder).chmod(0o711)
        figures = asyncio.run(measure(server.url, Path(folder), *size))
    for what, figure in figures.items():
        print(f"{what:58}{figure:10.2f}")
    if options.json:
        options.json.write_text(json.dumps(figures))


if __name__ == "__main__":
    main()
