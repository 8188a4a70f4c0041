"""Outcomes that nobody can write down fail their own task; the neighbours' are none the worse."""

from __future__ import annotations

import json

from tests.process.faults import FAST, host

APP = '''
import asyncio
from decimal import Decimal

from fleet import Context, Fleet, Job, Retry
from fleet.flow import Snooze

ONCE = Retry(max_attempts=1)
app = Fleet()
finished = asyncio.Event()


@app.job("neighbour")
async def neighbour(ctx: Context) -> int:
    """Ends in the same turn of the loop as whatever sets the event, so in the same frame."""
    await finished.wait()
    return 1


@app.job("set")
async def set_event(ctx: Context) -> None:
    finished.set()


KEYS = {"decimal": Decimal(1), "int": 7, "empty": "", "long": "x" * 300, "nul": "a" + chr(0)}
keyed: Job[str, str] = app.job("keyed", retry=ONCE)


@keyed.step
async def first(ctx: Context, kind: str) -> str:
    finished.set()
    return kind


@keyed.step(key=lambda kind: KEYS[kind])
async def second(ctx: Context, kind: str) -> str:
    return kind


@app.job("unsendable", retry=ONCE)
async def unsendable(ctx: Context) -> object:
    finished.set()
    return Snooze(Decimal(1))


class Unreadable(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


@app.job("unreadable", retry=ONCE)
async def unreadable(ctx: Context) -> None:
    finished.set()
    raise Unreadable
'''

KINDS = ["decimal", "int", "empty", "long", "nul"]


async def test_a_key_of_a_wrong_kind_fails_its_own_task(dsn, db, tmp_path):
    with host(dsn, db, tmp_path, FAST, app=APP) as here:
        neighbours = await here.enqueue_many("neighbour", [None] * 3)
        bad = await here.enqueue_many("keyed", KINDS)
        ended = await here.ended(*neighbours, *bad)
        assert [row["how"] for row in ended] == ["succeeded"] * 3 + ["exhausted"] * 5
        for row in ended[3:]:
            error = json.loads(row["error"])
            assert error["type"] == "InvalidOption"
            assert "step 'second': key=" in error["message"]
        later = await here.enqueue("set")
        assert (await here.end(later))["how"] == "succeeded"


async def test_an_outcome_that_cannot_be_sent_fails_its_own_task(dsn, db, tmp_path):
    with host(dsn, db, tmp_path, FAST, app=APP) as here:
        neighbours = await here.enqueue_many("neighbour", [None] * 3)
        bad = await here.enqueue("unsendable")
        ended = await here.ended(*neighbours, bad)
        assert [row["how"] for row in ended] == ["succeeded"] * 3 + ["exhausted"]
        assert "decimal.Decimal" in json.loads(ended[-1]["error"])["message"]


async def test_an_exception_that_cannot_be_read_fails_its_own_task(dsn, db, tmp_path):
    with host(dsn, db, tmp_path, FAST, app=APP) as here:
        neighbours = await here.enqueue_many("neighbour", [None] * 3)
        bad = await here.enqueue("unreadable")
        ended = await here.ended(*neighbours, bad)
        assert [row["how"] for row in ended] == ["succeeded"] * 3 + ["exhausted"]
        error = json.loads(ended[-1]["error"])
        assert error["type"] == "jobs.Unreadable"
        assert "its message could not be read" in error["message"]
