"""Transactional steps have their effects exactly once, whatever dies between any two statements.

Two processes run the same jobs. Each is killed (F02), or loses the reply to a COMMIT (F19), at a
statement chosen by the seed, over and over; the parent hands what they held to the next ones. The
ledger has no unique key: a second run of a committed step would show.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections import Counter

import asyncpg

from fleet.lifecycle import Released, decide
from fleet.model import OwnerId
from fleet.policy import Policy
from fleet.store import beats, claims
from fleet.store.enqueue import insert_many
from fleet.store.outcomes import Outcome, write
from tests.chaos.victim import transfer

ROUNDS = int(os.environ.get("FLEET_CHAOS_ROUNDS", "40"))
SEED = int(os.environ.get("FLEET_CHAOS_SEED", "1"))
BOUNDARIES = 60  # about what three tasks of two steps and their children pass


async def take_over(db: asyncpg.Connection, pid: int) -> None:
    """Give back what a dead process held, waiting for rows its last transaction has locked."""
    for row in await db.fetch("select id from fleet.owner where pid = $1", pid):
        owner = OwnerId(row["id"])
        while held := await claims.held(db, owner):
            outcomes = [
                Outcome(c, decide(c, Released(), Policy(), 0.5), "parent", 0.0, 86_400.0)
                for c in held
            ]
            await write(db, owner, outcomes)
        await beats.forget(db, owner)


async def torment(dsn: str, db: asyncpg.Connection, rounds: int) -> tuple[list[int], Counter[str]]:
    """Feed and kill two processes ``rounds`` times, then let a healthy one end what is left."""
    chance = random.Random(SEED)
    await db.execute("create table ledger (task_id bigint, step text)")
    fates: Counter[str] = Counter()
    tasks: list[int] = []

    async def victim(how: str, at: int) -> tuple[int, int]:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.chaos.victim", dsn, how, str(at)
        )
        return process.pid, await process.wait()

    async def lives(number: int) -> None:
        conn = await asyncpg.connect(dsn)
        for life in range(rounds // 2):
            tasks.extend(await insert_many(conn, [transfer.submission(n) for n in range(6)]))
            how = "cut" if chance.random() < 0.4 else "kill"
            # Walk through every boundary in turn rather than hope for luck.
            at = 1 + (life * 2 + number + chance.randrange(3)) % BOUNDARIES
            pid, code = await victim(how, at)
            fates[f"{how} {code}"] += 1
            assert code in (0, -9), f"a victim died by itself: {code}"
            await take_over(conn, pid)
        await conn.close()

    await asyncio.gather(lives(0), lives(1))
    _, code = await victim("never", 0)
    assert code == 0
    return tasks, fates


async def doubled(db: asyncpg.Connection) -> list[tuple[int, str, int]]:
    rows = await db.fetch(
        "select task_id, step, count(*) as n from ledger group by 1, 2 having count(*) > 1"
    )
    return [tuple(r) for r in rows]


async def test_f02_f19_effects_happen_exactly_once(dsn: str, db: asyncpg.Connection):
    tasks, fates = await torment(dsn, db, ROUNDS)

    assert fates["kill -9"] > 0, "nobody was killed: this test would prove nothing"
    assert fates["cut 0"] > 0
    assert await db.fetchval("select count(*) from fleet.task") == 0
    assert await db.fetchval("select count(*) from fleet.buried") == 0
    assert await doubled(db) == [], "an effect happened more than once"
    ran = Counter(r["step"] for r in await db.fetch("select step from ledger"))
    assert ran == {"withdraw": len(tasks), "deposit": len(tasks), "tell": len(tasks)}
    archived = await db.fetch("select id, count(*) as n from fleet.archive group by 1")
    assert len(archived) == 2 * len(tasks)
    assert all(r["n"] == 1 for r in archived)
    costs = await db.fetchrow("select sum(failures) as f, sum(crashes) as c from fleet.archive")
    assert tuple(costs) == (0, 0), "no budget is spent by a lost connection"


async def test_the_harness_can_fail(dsn: str, db: asyncpg.Connection, monkeypatch):
    """Effects outside the transaction do happen twice under the same kills, and it shows."""
    monkeypatch.setenv("FLEET_CHAOS_LEAKY", "1")
    await torment(dsn, db, 20)
    assert await doubled(db)
