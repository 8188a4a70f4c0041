"""What happens to the shop while one watches.

prepare   the schema, the ledger, the registry
act       enqueue what will go well, fail, wait, be buried and come back; orders keep coming in
work      run what is ready (in this process, for now)
watch     tell what the database says has happened: it does not matter who runs the tasks
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from statistics import median
from typing import Final, TypeAlias

import asyncpg

from fleet.demo import shop
from fleet.model import Seconds, TaskId
from fleet.store import registry, tasks
from fleet.store.claims import next_due
from fleet.store.journal import Entry, journal
from fleet.store.migrations import migrate
from fleet.testing import drain

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"
# (task, or None for the narrator; what happened; its style)
Tell: TypeAlias = Callable[[TaskId | None, str, str], None]

_LOOK: Final[Seconds] = 0.05
_PACE: Final[Seconds] = 0.1  # between two orders of the stream
_WELCOME: Final = """select fleet.enqueue('welcome-email', '{"name": "Ada"}')"""
BOOKED: Final = [1999, 4200]  # what the ledger must say at the end, in cents
_FIXED: Final = '{"order_id": 42, "cents": 1999, "card": "valid"}'
_MARKS: Final = {
    "next": ("→", "green"),
    "succeeded": ("✓", "bold green"),
    "fatal": ("✝", "bold red"),
    "exhausted": ("✝", "bold red"),
}


@dataclass(slots=True)
class Summary:
    """How it went."""

    succeeded: int = 0
    attempts: int = 0
    failures: int = 0
    recovered: set[TaskId] = field(default_factory=set)
    buried: set[TaskId] = field(default_factory=set)
    revived: set[TaskId] = field(default_factory=set)
    ledger: list[int] = field(default_factory=list)
    latencies: list[Seconds] = field(default_factory=list)
    took: Seconds = 0.0

    @property
    def latency(self) -> Seconds:
        """From enqueue to end: the median of the tasks that nothing went wrong with."""
        return median(self.latencies) if self.latencies else 0.0


class Play:
    """One performance, on the database at ``url``."""

    def __init__(self, url: str, seconds: Seconds, tell: Tell) -> None:
        self._url = url
        self._seconds = seconds
        self._tell = tell
        self._live: set[TaskId] = set()
        self._named: set[TaskId] = set()  # those whose story is told
        self._failed: set[TaskId] = set()
        self._to_revive: asyncio.Queue[TaskId] = asyncio.Queue()
        self._acted = False
        self._seen: set[tuple[TaskId, int]] = set()
        self._summary = Summary()

    async def run(self) -> Summary:
        """Play it to the end, when every task has ended well."""
        conn = await asyncpg.connect(self._url)
        try:
            shop.app.database_url = self._url
            await self._prepare(conn)
            since: datetime = await conn.fetchval("select fleet.now()")
            began = asyncio.get_running_loop().time()
            async with shop.app, asyncio.TaskGroup() as group:
                working = group.create_task(self._work())
                reviving = group.create_task(self._revive())
                acting = group.create_task(self._act())
                await self._watch(conn, since)
                await acting
                working.cancel()
                reviving.cancel()
            self._summary.took = asyncio.get_running_loop().time() - began
            self._summary.ledger = [
                row["cents"] for row in await conn.fetch("select cents from shop.ledger order by 1")
            ]
        finally:
            await conn.close()
        return self._summary

    async def _prepare(self, conn: Connection) -> None:
        async for _ in migrate(conn):
            pass
        await conn.execute(shop.LEDGER)
        await conn.execute("truncate shop.ledger")
        await registry.register(conn, shop.app)

    # ── what happens ────────────────────────────────────────────────────────────────────────────

    async def _act(self) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + self._seconds
        await self._open_the_shop()
        number = 100
        while loop.time() < end:
            order = shop.Order(number, outages=1 if number % 7 == 0 else 0)
            self._live.add((await shop.receipts.enqueue(order)).id)
            number += 1
            await asyncio.sleep(_PACE)
        self._acted = True

    async def _open_the_shop(self) -> None:
        receipt = await shop.receipts.enqueue(shop.Order(42, outages=2))
        self._cast(receipt.id, "enqueued: a receipt in two steps; the PDF service is down twice")
        for address in ("1 Old Street", "2 New Street"):
            change = await shop.change_address.enqueue(shop.Change(7, address), key="customer-7")
            self._cast(change.id, "enqueued with the key customer-7: one after another")
        conn = await asyncpg.connect(self._url)
        try:
            self._cast(await conn.fetchval(_WELCOME), f"enqueued in SQL: {_WELCOME}")
        finally:
            await conn.close()
        payment = await shop.payments.enqueue(shop.Payment(43, 4200, card="flaky"))
        self._cast(payment.id, "enqueued: books into a ledger; fails once after the insert")
        payment = await shop.payments.enqueue(shop.Payment(42, 1999, card="expired"))
        self._cast(payment.id, "enqueued: an expired card, which no retry can help")
        if self._seconds:
            self._tell(None, "and orders keep coming in, ten a second", "dim")

    def _cast(self, task_id: TaskId, about: str) -> None:
        self._live.add(task_id)
        self._named.add(task_id)
        self._tell(task_id, about, "cyan")

    async def _revive(self) -> None:
        conn = await asyncpg.connect(self._url)
        try:
            while True:
                task_id = await self._to_revive.get()
                await tasks.revive(conn, task_id, new_input=_FIXED)
                self._summary.revived.add(task_id)
                self._tell(task_id, f"fleet task revive {task_id} --input '{_FIXED}'", "cyan")
        finally:
            await conn.close()

    async def _work(self) -> None:
        conn = await asyncpg.connect(self._url)
        try:
            while True:
                await drain(shop.app)
                due = await next_due(conn)
                await asyncio.sleep(min(_LOOK if due is None else max(due, 0.0), _LOOK))
        finally:
            await conn.close()

    # ── what is seen of it ──────────────────────────────────────────────────────────────────────

    async def _watch(self, conn: Connection, since: datetime) -> None:
        while self._live or not self._acted:
            for entry in await journal(conn, since):
                if (entry.task_id, entry.fence) not in self._seen:
                    self._seen.add((entry.task_id, entry.fence))
                    self._take_note(entry)
            await asyncio.sleep(_LOOK)

    def _take_note(self, entry: Entry) -> None:
        summary = self._summary
        summary.attempts += 1
        if entry.outcome == "succeeded":
            summary.succeeded += 1
            self._live.discard(entry.task_id)
            if entry.task_id in self._failed:
                summary.recovered.add(entry.task_id)
            elif entry.enqueued_at is not None:
                summary.latencies.append((entry.at - entry.enqueued_at).total_seconds())
        elif entry.error is not None:
            summary.failures += 1
            self._failed.add(entry.task_id)
        if entry.final and entry.outcome != "succeeded":
            summary.buried.add(entry.task_id)
            self._to_revive.put_nowait(entry.task_id)
        if entry.task_id in self._named:
            self._tell(entry.task_id, *_line(entry))


def _line(entry: Entry) -> tuple[str, str]:
    mark, style = _MARKS.get(entry.outcome, ("✗", "red"))
    started = entry.started_at or entry.at
    took = (entry.at - started).total_seconds() * 1000
    outcome = f"buried: {entry.outcome}" if mark == "✝" else entry.outcome
    told = f"{mark} {entry.job}.{entry.step} #{entry.attempt} {outcome} ({took:.0f} ms)"
    if entry.error is not None:
        told += f"  {entry.error.type.rpartition('.')[2]}: {entry.error.message}"
    return told, style


def clock() -> str:
    """Return the time as it stands before each line."""
    return datetime.now(UTC).astimezone().strftime("%H:%M:%S.%f")[:-3]
