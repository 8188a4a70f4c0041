"""A real ``fleet run`` as a test sees it.

    with running_fleet(dsn, APP, config="[queues.images]\\nprocesses = 2") as fleet:
        fleet.wait_ready()
        os.kill(fleet.worker_pids()[0], signal.SIGKILL)
        ...

It runs in a session of its own, by which every process that it leaves behind is found; leaving the
block stops it and asserts that there is none. Everything in here waits for conditions.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import psutil

from tests.process.commands import Commands
from tests.servers import wait_until

T = TypeVar("T")

PATIENCE = 30.0


class Fleet:
    """One supervisor with its workers."""

    def __init__(
        self,
        folder: Path,
        url: str | None,
        *,
        env: Mapping[str, str] | None = None,
        args: Sequence[str] = (),
        name: str = "host-a",
        within: Sequence[str] = (),
    ) -> None:
        self.within = list(within)  # what runs it: unshare, strace, …
        self.folder, self.url, self.name = folder, url, name
        self.command = Commands(folder, url)
        self.env, self.args = dict(env or {}), list(args)
        self.log = folder / f"{name}.log"
        self.process: subprocess.Popen[bytes] | None = None

    # ── life ────────────────────────────────────────────────────────────────────────────────────

    def start(self) -> Fleet:
        """Start it; a second start goes on in the same log."""
        http = [] if "--http" in self.args else ["--http", "127.0.0.1:0"]
        call = ["run", "--host", self.name, *http, *self.args]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*self.within, sys.executable, "-m", "fleet", *call],
                cwd=self.folder,
                env=self.command.environment(**self.env),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self

    @property
    def pid(self) -> int:
        """The supervisor's process id."""
        assert self.process is not None, "it was not started"
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def ended(self, patience: float = PATIENCE) -> int:
        """Wait for its end; return the exit code."""
        assert self.process is not None
        try:
            return self.process.wait(patience)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it still runs after {patience:g}s\n{self.tail()}") from None

    def stop(self, number: signal.Signals = signal.SIGTERM, patience: float = PATIENCE) -> int:
        """Drain it, and see that nothing is left; return the exit code."""
        if self.alive:
            self.send(number)
        code = self.ended(patience)
        self.assert_no_orphans()
        return code

    def kill(self) -> None:
        """End the supervisor as the kernel would; its workers must notice by themselves."""
        self.send(signal.SIGKILL)
        self.ended()

    def wait_ready(self, workers: int = 1, patience: float = PATIENCE) -> Fleet:
        """Wait until /readyz says 200 and at least so many workers are ready."""
        self.until(lambda: self._is_ready(workers), f"{workers} ready", patience)
        return self

    def _is_ready(self, workers: int) -> bool:
        assert self.alive, f"it has ended\n{self.tail()}"
        status, body = self.get("/readyz")
        return status == 200 and json.loads(body)["workers"]["ready"] >= workers

    # ── what can be seen of it ──────────────────────────────────────────────────────────────────

    def processes(self) -> dict[int, str]:
        """Every process that it has started and that still runs, itself too, with its title."""
        found = {}
        for process in psutil.process_iter():
            with contextlib.suppress(ProcessLookupError, psutil.Error):
                if os.getsid(process.pid) == self.pid and process.status() != psutil.STATUS_ZOMBIE:
                    found[process.pid] = " ".join(process.cmdline()).strip()
        return found

    def worker_pids(self, pool: str = "") -> list[int]:
        """Its workers: all of them, or those of one pool."""
        title = f"fleet: worker {pool}"
        return sorted(pid for pid, name in self.processes().items() if name.startswith(title))

    def assert_no_orphans(self) -> None:
        """Wait until none of its processes is left."""
        self.until(lambda: not self.processes(), lambda: f"no orphans: {self.processes()}")

    def log_text(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    def records(self, message: str = "") -> list[dict[str, Any]]:
        """The lines of the log that are JSON, with ``message`` in theirs."""
        found = []
        for line in self.log_text().splitlines():
            with contextlib.suppress(ValueError):
                record = json.loads(line)
                if isinstance(record, dict) and message in record.get("message", ""):
                    found.append(record)
        return found

    def wait_log(self, text: str, patience: float = PATIENCE) -> None:
        self.until(lambda: text in self.log_text(), f"{text!r} in the log", patience)

    def tail(self) -> str:
        return "\n".join(self.log_text().splitlines()[-60:])

    @property
    def http(self) -> str:
        """Where it listens, as it said itself."""
        self.until(lambda: self.records("starting"), "it says that it starts")
        address: str = self.records("starting")[-1]["http"]
        return address

    def get(self, path: str, method: str = "GET") -> tuple[int, str]:
        """Ask its HTTP server; 0 if nobody answers."""
        request = urllib.request.Request(f"http://{self.http}{path}", method=method)
        try:
            with urllib.request.urlopen(request, timeout=5) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def until(
        self,
        condition: Callable[[], object],
        what: str | Callable[[], str],
        patience: float = PATIENCE,
    ) -> None:
        """Wait for a condition; what did not come, and the log, are in the error."""
        try:
            wait_until(condition, patience)
        except AssertionError as error:
            told = what if isinstance(what, str) else what()
            raise AssertionError(f"{told}: {error}\n{self.tail()}") from None


async def enqueue(db: Any, job: str, value: object = None, queue: str = "default") -> int:
    """Enqueue by name, as any language does; return the task's id."""
    sql = "select fleet.enqueue($1::text, $2::text::jsonb, queue => $3::text)"
    task: int = await db.fetchval(sql, job, json.dumps(value), queue)
    return task


async def eventually(look: Callable[[], Awaitable[T]], patience: float = PATIENCE) -> T:
    """Look again and again until what is seen is true; return it."""
    deadline = time.monotonic() + patience
    while not (seen := await look()):
        assert time.monotonic() < deadline, f"it did not come true in {patience:g}s: {seen!r}"
        await asyncio.sleep(0.02)
    return seen


async def archived(db: Any, *tasks: int, patience: float = PATIENCE) -> list[Any]:
    """Wait until all these tasks have ended well; return their archived rows, by id."""

    async def look() -> list[Any] | None:
        sql = "select * from fleet.archive where id = any ($1::bigint[]) order by id"
        rows: list[Any] = await db.fetch(sql, list(tasks))
        return rows if len(rows) == len(set(tasks)) else None

    return await eventually(look, patience)


@contextlib.contextmanager
def running_fleet(
    dsn: str | None,
    app_source: str,
    config: str = "",
    env: Mapping[str, str] | None = None,
    args: Sequence[str] = (),
    *,
    name: str = "host-a",
    ready: bool = True,
    within: Sequence[str] = (),
) -> Iterator[Fleet]:
    """Run ``app_source`` (a module with ``app``) until the block is left."""
    folder = Path(tempfile.mkdtemp(prefix="fleet-test-"))
    (folder / "jobs.py").write_text(app_source)
    (folder / "fleet.toml").write_text(f'app = "jobs:app"\n{config}')
    fleet = Fleet(folder, dsn, env=env, args=args, name=name, within=within)
    try:
        fleet.start()
        if ready:
            fleet.wait_ready()
        yield fleet
        if fleet.alive:
            assert fleet.stop() == 0, fleet.tail()
        fleet.assert_no_orphans()
    finally:
        _end(fleet)
        shutil.rmtree(folder, ignore_errors=True)


def _end(fleet: Fleet) -> None:
    """Leave nothing behind, whatever the test has done."""
    if fleet.process is None:
        return
    for pid in fleet.processes():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    fleet.process.wait(PATIENCE)
