"""A worker process that dies, or loses its connection, at a chosen statement.

    python -m tests.chaos.victim URL kill|cut N

Counts the boundaries between statements (before and after each one, BEGIN and COMMIT included).
At the Nth it kills itself with SIGKILL, or lets a COMMIT go out and cuts the connection before
the reply.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from typing import Any

import asyncpg

from fleet import Context, Fleet, Job
from fleet.model import Claim
from fleet.store import beats, claims
from fleet.store.outcomes import write
from fleet.store.standing import Standing, standing
from fleet.worker.runner import Runner

app = Fleet("postgresql://unused")

transfer: Job[int, None] = app.job("transfer")

NOTE = "insert into ledger (task_id, step) values ($1, $2)"
LEAKY = bool(os.environ.get("FLEET_CHAOS_LEAKY"))  # effects outside the transaction: must be caught


async def note(ctx: Context, step: str) -> None:
    if not LEAKY:
        await ctx.tx.execute(NOTE, ctx.task_id, step)
        return
    conn = await asyncpg.connect(sys.argv[1])
    await conn.execute(NOTE, ctx.task_id, step)
    await conn.close()


@transfer.step(transactional=True)
async def withdraw(ctx: Context, amount: int) -> int:
    await note(ctx, "withdraw")
    ctx.enqueue(tell, amount)
    return amount


@transfer.step(transactional=True)
async def deposit(ctx: Context, amount: int) -> None:
    await note(ctx, "deposit")


tells: Job[int, None] = app.job("tell")


@tells.step(transactional=True)
async def tell_them(ctx: Context, amount: int) -> None:
    await note(ctx, "tell")


tell = tells


class Doomed:
    """Counts boundaries and strikes at the chosen one."""

    def __init__(self, how: str, at: int) -> None:
        self.how = how
        self.left = at

    def boundary(self) -> None:
        self.left -= 1
        if self.left == 0 and self.how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)

    @property
    def cuts(self) -> bool:
        return self.how == "cut" and self.left <= 0


def fragile(doom: Doomed) -> type[asyncpg.Connection]:
    class Fragile(asyncpg.Connection):  # type: ignore[misc]
        async def execute(self, query: str, *args: Any, **options: Any) -> Any:
            doom.boundary()
            if doom.cuts and query.upper().startswith("COMMIT"):
                doom.how = "spent"
                reply = asyncio.ensure_future(super().execute(query, *args, **options))
                await asyncio.sleep(0)  # it is written to the socket now
                self.terminate()
                return await reply
            result = await super().execute(query, *args, **options)
            doom.boundary()
            return result

        async def fetch(self, query: str, *args: Any, **options: Any) -> Any:
            doom.boundary()
            result = await super().fetch(query, *args, **options)
            doom.boundary()
            return result

    return Fragile


async def work(url: str, doom: Doomed) -> None:
    kind = fragile(doom)

    @contextlib.asynccontextmanager
    async def connect() -> AsyncIterator[asyncpg.Connection]:
        conn = await asyncpg.connect(url, connection_class=kind)
        try:
            yield conn
        finally:
            conn.terminate()

    async with connect() as db:
        owner = await beats.register(db, socket.gethostname(), os.getpid(), 15.0)

        async def look(claim: Claim) -> Standing:
            return await standing(db, owner, claim)

        runner = Runner(app, owner, f"victim:{os.getpid()}", connect=connect, look=look)
        known = ["transfer/withdraw", "transfer/deposit", "tell/tell_them"]
        while got := await claims.claim(db, owner, "default", 3, known):
            for claim in got:
                following: Claim | None = claim
                while following is not None:
                    attempt = await runner.run(following)
                    fence = attempt.fence
                    if fence is None:
                        report = await write(db, owner, [attempt.outcome])
                        fence = report.fences.get(claim.id)
                    following = None if fence is None else attempt.next(fence)
        await beats.forget(db, owner)


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1], Doomed(sys.argv[2], int(sys.argv[3]))))
