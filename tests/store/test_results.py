"""Handles: status, result and cancel."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

import asyncpg
import pytest

from fleet import Context, Fleet, errors
from fleet.lifecycle import Completed, Failed, Refused
from fleet.model import Failure
from fleet.store.results import Sight, look
from tests.store.conftest import ALICE, Table

ERROR = Failure(type="ValueError", message="bad", traceback="Traceback …")


@dataclass
class Size:
    width: int
    height: int


@pytest.fixture
def app(dsn: str) -> Fleet:
    app = Fleet(dsn)

    @app.job("resize", queue="images")
    async def one(ctx: Context, image: int) -> Size: ...

    return app


async def finish(table: Table, result: str = '{"width": 1, "height": 2}') -> None:
    await table.settle(ALICE, (await table.claim_one(), Completed(result)))


# -- what is wrong, first --------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [0, -1, 2**63, True, "7", 1.0, None])
def test_only_an_id_makes_a_handle(app, wrong):
    with pytest.raises(errors.InvalidOption, match="positive int"):
        app.handle(wrong)


async def test_a_task_that_is_nowhere(app):
    async with app:
        handle = app.handle(10**12)
        with pytest.raises(errors.TaskNotFound, match="1000000000000"):
            await handle.status()
        with pytest.raises(errors.TaskNotFound):
            await handle.cancel()
        with pytest.raises(errors.ResultGone):
            await handle.result()


@pytest.mark.parametrize("wrong", [-1, float("nan"), "5"])
async def test_a_timeout_that_cannot_be(app, wrong):
    async with app:
        with pytest.raises(errors.InvalidOption, match="timeout"):
            await app.handle(1).result(timeout=wrong)


async def test_outside_an_open_application(app):
    handle = app.handle(1)
    for call in (handle.status, handle.result, handle.cancel):
        with pytest.raises(errors.NotOpen):
            await call()


async def test_who_waits_while_the_application_closes_is_told(app):
    await app.open()
    handle = await app.jobs["resize"].enqueue(7)
    result = asyncio.create_task(handle.result())
    await asyncio.sleep(0)
    await app.close()
    with pytest.raises(errors.NotOpen):
        await result


async def test_a_result_that_does_not_fit_its_type_is_named_by_path(app, table):
    async with app:
        handle = await app.jobs["resize"].enqueue(7)
        await finish(table, '{"width": 1, "height": "secret"}')
        with pytest.raises(errors.DecodeError, match="height") as caught:
            await handle.result()
    assert "secret" not in str(caught.value)


# -- results ---------------------------------------------------------------------------------------


async def test_a_result_has_the_type_that_the_last_step_promises(app, table):
    async with app:
        handle = await app.jobs["resize"].enqueue(7)
        await finish(table)
        assert await handle.result() == Size(1, 2)
        assert await app.handle(handle.id).result() == Size(1, 2)


async def test_a_result_of_a_job_that_is_unknown_here_is_plain_json(app, dsn, table):
    async with app, Fleet(dsn) as other:
        handle = await app.jobs["resize"].enqueue(7)
        await finish(table)
        assert await other.handle(handle.id).result() == {"width": 1, "height": 2}


async def test_a_result_that_comes_while_one_waits(app, table):
    async with app:
        handle = await app.jobs["resize"].enqueue(7)
        result = asyncio.create_task(handle.result(timeout=30))
        await asyncio.sleep(0)
        await finish(table)
        assert await result == Size(1, 2)


async def test_a_timeout_says_how_far_it_is_and_leaves_it_alone(app, table):
    async with app:
        handle = await app.jobs["resize"].enqueue(7)
        with pytest.raises(errors.ResultTimeout, match="it is ready and goes on"):
            await handle.result(timeout=timedelta(milliseconds=100))
        with pytest.raises(TimeoutError):
            await handle.result(timeout=0)
        await finish(table)
        assert await handle.result(timeout=0) == Size(1, 2), "what is there is there"


async def test_a_buried_task_says_why(app, table):
    async with app:
        handle = await app.jobs["resize"].enqueue(7)
        await table.settle(ALICE, (await table.claim_one(), Refused("fatal", ERROR)))
        with pytest.raises(errors.TaskBuried, match=r"fatal.*ValueError: bad") as caught:
            await handle.result()
        assert (caught.value.reason, caught.value.task_id) == ("fatal", handle.id)
        assert (await handle.status()).error == ERROR


async def test_cancelling_ends_what_waits_and_asks_what_runs(app, table):
    async with app:
        idle, running = await app.jobs["resize"].enqueue_many([1, 2], priority=1)
        assert await idle.cancel() == "cancelled"
        assert await idle.cancel() == "ended"
        with pytest.raises(errors.TaskCancelled):
            await idle.result()

        await table.claim_one()
        assert await running.cancel() == "requested"
        assert await running.cancel() == "requested"


async def test_a_status_tells_the_whole_life(app, table):
    async with app:
        handle = await app.jobs["resize"].enqueue(7, priority=5, delay=0)
        status = await handle.status()
        assert (status.state, status.job, status.step) == ("ready", "resize", "one")
        assert (status.queue, status.priority, status.attempt) == ("images", 5, 1)
        assert (status.started_at, status.finished_at, status.error) == (None, None, None)

        claim = await table.claim_one()
        status = await handle.status()
        assert status.state == "running"
        assert status.started_at >= status.enqueued_at

        await table.db.execute("""update fleet.task set progress = '{"done": 0.4}'""")
        assert (await handle.status()).progress == {"done": 0.4}

        await table.settle(ALICE, (claim, Failed(ERROR)))
        status = await handle.status()
        assert (status.state, status.attempt, status.error) == ("deferred", 2, ERROR)
        assert status.ready_at > status.enqueued_at


async def test_an_error_written_by_hand_is_shown_as_far_as_it_goes(app, table):
    async with app:
        handle = await app.jobs["resize"].enqueue(7)
        for written, shown in (
            ('"nonsense"', Failure(type="unknown", message="nonsense")),
            ('{"message": 5}', Failure(type="unknown", message="5")),
        ):
            await table.db.execute("update fleet.task set error = $1::text::jsonb", written)
            assert (await handle.status()).error == shown


async def test_a_task_that_moves_is_never_missed(app, table, dsn):
    """Look without pause while tasks go from task to archive, and end in one or the other."""
    ids = await table.enqueue(*["1"] * 300)
    other = await asyncpg.connect(dsn)
    seen: list[Sight] = []

    async def keep_looking() -> None:
        while True:
            seen.extend(await look(other, ids))

    looking = asyncio.create_task(keep_looking())
    for _ in range(30):
        claims = await table.claim(limit=10)
        await table.settle(ALICE, *((claim, Completed("1")) for claim in claims))
    looking.cancel()
    with suppress(asyncio.CancelledError):
        await looking
    await other.close()
    assert len(seen) > len(ids)
    assert {sight.state for sight in seen} <= {"ready", "running", "succeeded"}
