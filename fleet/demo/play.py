"""What happens to the shop while one watches.

prepare   the schema and the ledger
act       orders keep coming in: receipts, payments that fail at first, pictures, reviews for later,
          feeds that crash their worker, one of them for ever
watch     tell what the database says has happened
end       let what is left finish, drain the host, and count
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final, TypeAlias

import asyncpg

from fleet.demo import shop
from fleet.demo.host import Host, Record, running
from fleet.model import Seconds, TaskId
from fleet.store import clock, depths
from fleet.store.journal import Entry, journal
from fleet.store.migrations import migrate

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"
Tell: TypeAlias = Callable[[str, str], None]  # what happened, and its style

_LOOK: Final[Seconds] = 0.25
_PACE: Final[Seconds] = 0.04  # between two orders
_LAST: Final[Seconds] = 20.0  # for what is left when the time is up
_WINDOW: Final = timedelta(seconds=5)  # a row may be committed a little after its time
_REVIEW_AFTER: Final[Seconds] = 2.0


@dataclass(slots=True)
class Summary:
    """How it went, so far and at the end."""

    enqueued: int = 0
    ran: int = 0
    attempts: int = 0
    failures: int = 0
    crashes: int = 0
    recovered: int = 0
    buried: dict[TaskId, str] = field(default_factory=dict)
    left: int = 0
    took: Seconds = 0.0
    waits: list[Seconds] = field(default_factory=list)
    restarts: Counter[str] = field(default_factory=Counter)
    booked: int = 0
    paid: int = 0
    exit_code: int = 0

    def wait(self, share: float) -> Seconds:
        """Return a quantile of the time from enqueue to the first start."""
        ordered = sorted(self.waits) or [0.0]
        return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


class Play:
    """One performance, on the database at ``url``."""

    def __init__(self, url: str, folder: Path, seconds: Seconds, tell: Tell) -> None:
        self._url = url
        self._folder = folder
        self._seconds = seconds
        self._tell = tell
        self._host: Host | None = None
        self._seen: dict[tuple[TaskId, int], datetime] = {}
        self._began: dict[TaskId, datetime] = {}  # when each was first started
        self._hurt: set[TaskId] = set()  # those that have failed or crashed
        self._interrupted = asyncio.Event()
        self.summary = Summary()
        self.stage = "starting"
        self._ends_at = 0.0

    @property
    def to_go(self) -> Seconds:
        """For how long orders still come in."""
        return max(self._ends_at - asyncio.get_running_loop().time(), 0.0)

    def interrupt(self) -> None:
        """Drain now; the second time, end now."""
        self._interrupted.set()
        if self.stage == "draining" and self._host is not None:
            self._host.stop()

    async def run(self) -> Summary:
        """Play it to the end."""
        conn = await asyncpg.connect(self._url)
        try:
            since = await self._prepare(conn)
            async with running(self._folder, self._url, self._heard) as self._host:
                shop.app.database_url = self._url
                async with shop.app, asyncio.TaskGroup() as group:
                    watching = group.create_task(self._watch(conn, since))
                    await self._act()
                    await self._finish(conn)
                    watching.cancel()
            await self._look(conn, since)
            await self._count(conn)
        finally:
            await conn.close()
        return self.summary

    async def _prepare(self, conn: Connection) -> datetime:
        async for _ in migrate(conn):
            pass
        await shop.open_ledger(conn)
        return await clock.now(conn)

    # ── what happens ────────────────────────────────────────────────────────────────────────────

    async def _act(self) -> None:
        self.stage = "running"
        loop = asyncio.get_running_loop()
        began = loop.time()
        self._ends_at = began + self._seconds
        await self._enqueue_feeds()
        number = 1
        while self.to_go > 0 and not self._interrupted.is_set():
            await self._order(number)
            number += 1
            await self._pause(_PACE)
        self.summary.took = loop.time() - began

    async def _enqueue_feeds(self) -> None:
        poison = await shop.parse.enqueue(shop.Feed("crashes-for-ever", crashes=99))
        once = await shop.parse.enqueue(shop.Feed("crashes-once", crashes=1))
        self.summary.enqueued += 2
        self._tell(f"task {poison.id}: a feed whose parser kills its process, every time", "cyan")
        self._tell(f"task {once.id}: a feed whose parser kills its process, once", "cyan")
        self._tell(f"and orders keep coming in, {1 / _PACE:.0f} a second", "dim")

    async def _order(self, number: int) -> None:
        await shop.receipts.enqueue(shop.Order(number))
        self.summary.enqueued += 1
        if number % 4 == 0:
            await shop.payments.enqueue(shop.Payment(number, 1999, flaky=number % 8 == 0))
            self.summary.enqueued += 1
        if number % 5 == 0:
            await shop.resize.enqueue(shop.Image(number))
            self.summary.enqueued += 1
        if number % 10 == 0:
            await shop.ask.enqueue(shop.Order(number), delay=_REVIEW_AFTER)
            self.summary.enqueued += 1
        if number % 100 == 0:
            await shop.parse.enqueue(shop.Feed(f"supplier-{number}", crashes=1))
            self.summary.enqueued += 1

    async def _pause(self, seconds: Seconds) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._interrupted.wait()
        except TimeoutError:
            pass

    async def _finish(self, conn: Connection) -> None:
        assert self._host is not None
        loop = asyncio.get_running_loop()
        if not self._interrupted.is_set():
            self.stage = "finishing"
            self._tell("no more orders: what is left ends", "dim")
        deadline = loop.time() + _LAST
        # A connection of its own: the other one watches.
        watcher = await asyncpg.connect(self._url)
        try:
            while not self._interrupted.is_set() and loop.time() < deadline:
                if not await depths.live(watcher):
                    break
                await self._pause(_LOOK)
        finally:
            await watcher.close()
        self.stage = "draining"
        self._tell("draining: no more claims, what runs ends", "dim")
        self.summary.restarts = await self._host.restarts()
        self._host.stop()
        self.summary.exit_code = await self._host.stopped()
        self.stage = "ended"

    # ── what is seen of it ──────────────────────────────────────────────────────────────────────

    def _heard(self, record: Record) -> None:
        if record.get("level") in ("warning", "error") and "drain waits" not in str(record):
            message = record.get("message") or record.get("msg") or ""
            self._tell(f"fleet run: {str(message).splitlines()[0]}", "yellow")

    async def _watch(self, conn: Connection, since: datetime) -> None:
        while True:
            await self._look(conn, since)
            await asyncio.sleep(_LOOK)

    async def _look(self, conn: Connection, since: datetime) -> None:
        newest = max(self._seen.values(), default=since)
        for entry in await journal(conn, max(since, newest - _WINDOW)):
            if (entry.task_id, entry.fence) not in self._seen:
                self._seen[entry.task_id, entry.fence] = entry.at
                self._take_note(entry)
        self._forget(newest - 2 * _WINDOW)

    def _forget(self, before: datetime) -> None:
        for place in [place for place, at in self._seen.items() if at < before]:
            del self._seen[place]

    def _take_note(self, entry: Entry) -> None:
        summary, task = self.summary, entry.task_id
        summary.attempts += 1
        if entry.started_at is not None:
            self._began.setdefault(task, entry.started_at)
        crashed = entry.outcome in ("crashed", "poison")
        if crashed:
            summary.crashes += 1
            self._tell(f"task {task}: {_told(entry)}", "red")
        elif entry.error is not None:
            summary.failures += 1
            if summary.failures <= 2:
                self._tell(f"task {task}: {_told(entry)}; it is tried again", "red")
        if entry.error is not None:
            self._hurt.add(task)
        if entry.final:
            self._ended(entry)

    def _ended(self, entry: Entry) -> None:
        summary, task = self.summary, entry.task_id
        if entry.outcome == "succeeded":
            summary.ran += 1
            summary.paid += entry.job == shop.payments.name
            if task in self._hurt:
                summary.recovered += 1
                if entry.job == shop.parse.name:
                    self._tell(f"task {task}: {entry.job} #{entry.attempt} got through", "green")
        elif entry.outcome != "cancelled":
            summary.buried[task] = entry.outcome
            self._tell(f"task {task}: buried as {entry.outcome}, with its story", "bold red")
        began = self._began.pop(task, None)
        if began is not None and entry.enqueued_at is not None and entry.job != shop.ask.name:
            summary.waits.append(max((began - entry.enqueued_at).total_seconds(), 0.0))

    async def _count(self, conn: Connection) -> None:
        self.summary.left = await depths.live(conn)
        entries, orders = await shop.count_ledger(conn)
        self.summary.booked = entries if entries == orders else -1


def _told(entry: Entry) -> str:
    message = entry.error.message if entry.error else ""
    return f"{entry.job}.{entry.step} #{entry.attempt} {entry.outcome}: {message}"
