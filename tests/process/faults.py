"""What the tests of faults share: an application that misbehaves, and a ledger of what it did."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil

from tests.process.fleets import Fleet, eventually, running_fleet

# Three beats must fit into a lease.
FAST = """
[supervisor]
processes = 1
concurrency = 10
lease = "3s"
drain_timeout = "5s"

[fetch]
empty_delay = "0.5s"
error_delay = "0.2s"
"""

APP = '''
import asyncio, ctypes, json, os, re, resource, signal, subprocess, sys, time
from fleet import Context, Fleet, Job, Retry, To

app = Fleet()
ONCE = Retry(max_attempts=1)


def note(ctx, what):
    line = {"task": ctx.task_id, "what": what, "pid": os.getpid(), "at": time.monotonic()}
    with open(os.environ["LEDGER"], "a") as file:
        file.write(json.dumps(line) + chr(10))


@app.job("nap")
async def nap(ctx: Context, seconds: float) -> None:
    note(ctx, "start")
    await asyncio.sleep(seconds)
    note(ctx, "end")


@app.job("long-once")
async def long_once(ctx: Context) -> None:
    """Takes for ever the first time, and a moment from then on."""
    first = not os.path.exists(f"{os.environ['LEDGER']}.{ctx.task_id}")
    open(f"{os.environ['LEDGER']}.{ctx.task_id}", "w").close()
    note(ctx, "start")
    await asyncio.sleep(60 if first else 0.1)
    note(ctx, "end")


@app.job("work")
def work(ctx: Context, seconds: float) -> None:
    note(ctx, "start")
    time.sleep(seconds)
    note(ctx, "end")


@app.job("snooze")
async def snooze(ctx: Context, seconds: float) -> object:
    first = not os.path.exists(f"{os.environ['LEDGER']}.{ctx.task_id}")
    open(f"{os.environ['LEDGER']}.{ctx.task_id}", "w").close()
    return To.snooze(seconds) if first else None


@app.job("quick")
async def quick(ctx: Context, n: int) -> int:
    return n


@app.job("images", queue="images")
def images(ctx: Context, n: int) -> int:
    return sum(range(n))


@app.job("die")
async def die(ctx: Context, how: str) -> None:
    """Ends its process, each time."""
    note(ctx, "start")
    await asyncio.sleep(0.05)
    if how == "segfault":
        ctypes.string_at(0)
    elif how == "memory":
        resource.setrlimit(resource.RLIMIT_AS, (1 << 29, 1 << 29))
        try:
            hoard = [bytearray(1 << 26) for _ in range(1000)]
        except MemoryError:
            os.kill(os.getpid(), signal.SIGKILL)  # as the kernel does
    elif how == "sys.exit":
        sys.exit(3)
    elif how == "os._exit":
        os._exit(9)


@app.job("die-def")
def die_def(ctx: Context, how: str) -> None:
    note(ctx, "start")
    sys.exit(3)


@app.job("die-once")
async def die_once(ctx: Context) -> str:
    note(ctx, "start")
    if ctx.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return "survived"


@app.job("gil", timeout=1, retry=ONCE)
async def gil(ctx: Context) -> None:
    note(ctx, "start")
    re.match(r"(a+)+$", "a" * 40 + "b")
    note(ctx, "end")


@app.job("gil-long", timeout=60)
async def gil_long(ctx: Context) -> None:
    note(ctx, "start")
    re.match(r"(a+)+$", "a" * 40 + "b")
    note(ctx, "end")


@app.job("hang", timeout=1, retry=ONCE)
def hang(ctx: Context) -> None:
    note(ctx, "start")
    time.sleep(1000)


@app.job("deaf", timeout=1, retry=ONCE)
async def deaf(ctx: Context) -> None:
    note(ctx, "start")
    while True:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            note(ctx, "refused")


@app.job("stoppable")
async def stoppable(ctx: Context) -> str:
    note(ctx, "start")
    await ctx.cancelled.wait()
    note(ctx, "stopped")
    return "too late to matter"


@app.job("fork")
async def fork(ctx: Context, seconds: float) -> None:
    child = subprocess.Popen(["sleep", "1000"])
    with open(os.environ["LEDGER"] + ".children", "a") as file:
        file.write(f"{child.pid}" + chr(10))
    note(ctx, "start")
    await asyncio.sleep(seconds)


hoard = []


@app.job("leak", queue="leaky")
async def leak(ctx: Context, size: int) -> int:
    hoard.append(bytearray(os.urandom(1024)) * (size // 1024))
    note(ctx, "start")
    return os.getpid()


@app.job("flood")
async def flood(ctx: Context) -> str:
    for stream in (sys.stdout, sys.stderr):
        for _ in range(2_000):
            print("x" * 1_000, file=stream)
    os.write(1, b"[1, 2, 3]" * 10_000)
    return "flooded"


@app.job("close-fds", retry=ONCE)
async def close_fds(ctx: Context) -> str:
    note(ctx, "start")
    os.closerange(0, 256)
    await asyncio.sleep(0.01)
    return "closed"


@app.job("garbage", retry=ONCE)
async def garbage(ctx: Context) -> None:
    """Writes nonsense into every socket it can find."""
    note(ctx, "start")
    for fd in range(3, 256):
        try:
            os.write(fd, b"\\x05\\x00\\x00\\x00nonsense")
        except OSError:
            pass
    await asyncio.sleep(30)


@app.job("progress")
async def progress(ctx: Context, kind: str) -> str:
    ctx.progress(0.5, {"nul": "a" + chr(0), "surrogate": chr(0xD800), "plain": "half"}[kind])
    await asyncio.sleep(0.3)
    return "reported"


three: Job[int, int] = app.job("three")


@three.step
async def one(ctx: Context, n: int) -> int:
    note(ctx, "one")
    return n + 1


@three.step
async def two(ctx: Context, n: int) -> int:
    note(ctx, "two")
    return n + 1


@three.step
def last(ctx: Context, n: int) -> int:
    note(ctx, "last")
    return n + 1
'''


class Ledger:
    """What the steps of ``APP`` wrote down."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def lines(self, task: int | None = None, what: str | None = None) -> list[dict[str, Any]]:
        text = self.path.read_text() if self.path.exists() else ""
        lines = [json.loads(line) for line in text.splitlines()]
        return [
            line for line in lines if task in (None, line["task"]) and what in (None, line["what"])
        ]

    def started(self, task: int) -> int:
        return len(self.lines(task, "start"))

    def pid(self, task: int) -> int:
        """The process in which a task's step was started last."""
        pid: int = self.lines(task, "start")[-1]["pid"]
        return pid

    def children(self) -> list[int]:
        path = self.path.with_name(self.path.name + ".children")
        return [int(line) for line in path.read_text().split()] if path.exists() else []


class Host:
    """A running fleet on ``APP``, its ledger, and a connection to its database."""

    def __init__(self, fleet: Fleet, ledger: Ledger, db: Any) -> None:
        self.fleet, self.ledger, self.db = fleet, ledger, db

    async def enqueue(self, job: str, value: object = None, **options: Any) -> int:
        (task,) = await self.enqueue_many(job, [value], **options)
        return task

    async def enqueue_many(self, job: str, values: list[Any], queue: str = "default") -> list[int]:
        sql = """
        select fleet.enqueue($1::text, v::jsonb, queue => $3::text)
          from unnest($2::text[]) v
        """
        rows = await self.db.fetch(sql, job, [json.dumps(v) for v in values], queue)
        return [row[0] for row in rows]

    async def running(self, *tasks: int, times: int = 1) -> None:
        """Wait until the step of each has been started so many times."""

        async def all_started() -> bool:
            return all(self.ledger.started(task) >= times for task in tasks)

        try:
            await eventually(all_started)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.fleet.tail()}") from None

    async def row(self, task: int) -> dict[str, Any]:
        found = await self.db.fetchrow("select * from fleet.task where id = $1", task)
        return dict(found) if found else {}

    async def attempts(self, task: int) -> list[tuple[str, str]]:
        """(how it ended, what was said) of every attempt but the last."""
        sql = """
        select outcome, coalesce(error ->> 'message', '') from fleet.attempt
         where task_id = $1 order by fence
        """
        return [tuple(row) for row in await self.db.fetch(sql, task)]

    async def ended(self, *tasks: int, patience: float = 30.0) -> list[dict[str, Any]]:
        """Wait until all have ended; their rows, with ``how``: succeeded, cancelled or a reason."""
        sql = """
        select id, outcome as how, attempt, failures, crashes, losses, releases, error::text,
               result::text from fleet.archive where id = any ($1::bigint[])
        union all
        select id, reason, attempt, failures, crashes, losses, releases, error::text, null
          from fleet.buried where id = any ($1::bigint[])
         order by id
        """

        async def look() -> list[Any] | None:
            rows: list[Any] = await self.db.fetch(sql, list(tasks))
            return rows if len(rows) >= len(set(tasks)) else None

        try:
            rows = await eventually(look, patience)
        except AssertionError as error:
            left = await self.db.fetch("select * from fleet.task limit 5")
            raise AssertionError(f"{error}\n{left}\n{self.fleet.tail()}") from None
        assert len(rows) == len(set(tasks)), "a task has ended twice"
        return [dict(row) for row in rows]

    async def end(self, task: int, patience: float = 30.0) -> dict[str, Any]:
        (row,) = await self.ended(task, patience=patience)
        return row

    async def stop_now(self) -> None:
        """Have it drain, and then not wait for what runs."""
        self.fleet.send(signal.SIGTERM)
        # Two signals of one kind are one if nobody has taken the first.
        draining = "select 1 from fleet.owner where pid = $1 and state = 'draining'"

        async def is_draining() -> bool:
            return not self.fleet.alive or bool(await self.db.fetchval(draining, self.fleet.pid))

        await eventually(is_draining)
        if self.fleet.alive:
            self.fleet.send(signal.SIGTERM)
        assert self.fleet.ended() == 0, self.fleet.tail()


@contextlib.contextmanager
def host(
    dsn: str,
    db: Any,
    tmp_path: Path,
    config: str = FAST,
    *,
    name: str = "host-a",
    app: str = APP,
    ready: bool = True,
    env: Mapping[str, str] | None = None,
) -> Iterator[Host]:
    """Run ``APP``; several hosts of one test share the ledger."""
    ledger = Ledger(tmp_path / "ledger")
    with running_fleet(
        dsn, app, config, env={"LEDGER": str(ledger.path), **(env or {})}, name=name, ready=ready
    ) as fleet:
        yield Host(fleet, ledger, db)


def kill(pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    os.kill(pid, number)


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def fork_server(fleet: Fleet) -> int:
    """The fork server of a supervisor."""
    found = [
        child.pid
        for child in psutil.Process(fleet.pid).children()
        if any("forkserver" in part for part in child.cmdline())
    ]
    assert len(found) == 1, found
    return found[0]
