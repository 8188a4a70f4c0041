"""Handles: status, result and cancel; one poll for all who wait; and failures as they come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

import asyncpg
import pytest

from fleet import Context, Fleet, errors
from fleet.client import waiter as waiting
from fleet.client.waiter import Waiter
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


# -- one poll for all ------------------------------------------------------------------------------


class Looks:
    """A database of tasks that are ready until they are ended here; counts the looks."""

    def __init__(self) -> None:
        self.ended: dict[int, Sight] = {}
        self.asked: list[list[int]] = []
        self.at: list[float] = []
        self.error: Exception | None = None

    async def __call__(self, ids: Sequence[int]) -> list[Sight]:
        self.asked.append(list(ids))
        self.at.append(asyncio.get_running_loop().time())
        if self.error is not None:
            raise self.error
        return [self.ended.get(n) or Sight(n, "ready") for n in ids]

    def end(self, *ids: int) -> None:
        self.ended |= {n: Sight(n, "succeeded", result="1") for n in ids}


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 -- it has no event to offer
            await asyncio.sleep(0)


async def test_all_waits_share_one_statement():
    looks = Looks()
    waiter = Waiter(looks)
    waits = [asyncio.create_task(waiter.wait(n % 10, None)) for n in range(100)]
    await asyncio.sleep(0)
    looks.end(*range(10))
    assert [sight.id for sight in await asyncio.gather(*waits)] == [n % 10 for n in range(100)]
    assert looks.asked == [list(range(10))]


async def test_nobody_looks_when_nobody_waits():
    looks = Looks()
    waiter = Waiter(looks)
    before = asyncio.all_tasks()
    wait = asyncio.create_task(waiter.wait(1, None))
    await until(lambda: len(looks.asked) > 1)
    wait.cancel()
    with suppress(asyncio.CancelledError):
        await wait
    await until(lambda: asyncio.all_tasks() == before)
    assert waiter._awaited == {}


async def test_looks_become_rare_and_frequent_again_for_a_newcomer(monkeypatch):
    monkeypatch.setattr(waiting, "LONGEST", 0.08)
    looks = Looks()
    waiter = Waiter(looks)
    first = asyncio.create_task(waiter.wait(1, None))
    await until(lambda: len(looks.at) >= 12)
    gaps = [later - earlier for earlier, later in zip(looks.at, looks.at[1:], strict=False)]
    assert gaps[0] < 0.04 < gaps[-1]

    began = len(looks.at)
    second = asyncio.create_task(waiter.wait(2, None))
    await until(lambda: len(looks.at) >= began + 2)
    assert looks.asked[-1] == [1, 2]
    assert looks.at[-1] - looks.at[-2] < 0.04
    looks.end(1, 2)
    await asyncio.gather(first, second)


async def test_a_look_that_fails_is_everybodys_failure_and_nobodys_for_ever():
    looks = Looks()
    looks.error = errors.DatabaseUnavailable("here", "gone")
    waiter = Waiter(looks)
    failed = await asyncio.gather(waiter.wait(1, None), waiter.wait(2, 5), return_exceptions=True)
    assert all(isinstance(error, errors.DatabaseUnavailable) for error in failed)

    looks.error = None
    looks.end(1)
    assert (await waiter.wait(1, None)).state == "succeeded"


# -- failures --------------------------------------------------------------------------------------


class Follower:
    """Reads ``app.failures()`` on the side."""

    def __init__(self, app: Fleet, since: datetime | None = None) -> None:
        self._failures = app.failures(since, interval=0.02)

    async def next(self):
        async with asyncio.timeout(10):
            return await anext(self._failures)

    async def nothing_more(self) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await anext(self._failures)


async def test_p14_a_naive_since_is_refused(app):
    async with app:
        with pytest.raises(errors.InvalidOption, match="naive"):
            await Follower(app, datetime(2030, 1, 1)).next()


async def test_p14_every_failure_and_the_burial_come_once(app, table, fleet_clock):
    async with app:
        handle = await app.jobs["resize"].enqueue(7)
        start = await table.db.fetchval("select fleet.now()")
        follower = Follower(app, start)
        for attempt in range(1, 6):
            await table.settle(ALICE, (await table.claim_one(), Failed(ERROR)))
            failure = await follower.next()
            assert (failure.task_id, failure.attempt) == (handle.id, attempt)
            assert (failure.job, failure.step, failure.queue) == ("resize", "one", "images")
            assert failure.error == ERROR
            assert failure.final == (attempt == 5)
            assert failure.outcome == ("exhausted" if attempt == 5 else "failed")
            await fleet_clock.advance(70)
        await follower.nothing_more()

        again = Follower(app, start)
        assert [(await again.next()).attempt for _ in range(5)] == [1, 2, 3, 4, 5]


async def test_p14_without_since_what_was_before_is_not_shown(app, table, fleet_clock):
    async with app:
        await app.jobs["resize"].enqueue(7)
        await table.settle(ALICE, (await table.claim_one(), Failed(ERROR)))
        follower = Follower(app)
        reading = asyncio.create_task(follower.next())
        async with asyncio.timeout(10):
            while not await table.db.fetchval(_HAS_LOOKED):  # noqa: ASYNC110 -- it is far away
                await asyncio.sleep(0.01)
        await fleet_clock.advance(70)
        await table.settle(ALICE, (await table.claim_one(), Failed(ERROR)))
        assert (await reading).attempt == 2


_HAS_LOOKED = """
select count(*) > 0 from pg_stat_activity
 where datname = current_database() and application_name = 'fleet client' and state = 'idle'
   and query like '%from fleet.attempt%'
"""


async def test_p14_a_late_commit_is_not_missed(app, table, dsn):
    async with app:
        await app.jobs["resize"].enqueue_many([1, 2])
        start = await table.db.fetchval("select fleet.now()")
        follower = Follower(app, start)
        early, late = await table.claim(limit=2)
        slow = Table(await asyncpg.connect(dsn), table.policy)
        transaction = slow.db.transaction()
        await transaction.start()
        await slow.settle(ALICE, (early, Failed(ERROR)))
        await table.settle(ALICE, (late, Failed(ERROR)))

        assert (await follower.next()).task_id == late.id
        await transaction.commit()
        shown = await follower.next()
        assert shown.task_id == early.id
        await follower.nothing_more()
        await slow.db.close()


async def test_p14_more_failures_than_a_page_holds_all_come_once(app, table):
    start = await table.db.fetchval("select fleet.now()")
    ids = await table.enqueue(*["1"] * 1_200)
    claims = await table.claim(limit=1_200)
    await table.settle(ALICE, *((claim, Failed(ERROR)) for claim in claims))
    async with app:
        follower = Follower(app, start)
        assert sorted([(await follower.next()).task_id for _ in ids]) == sorted(ids)
        await follower.nothing_more()


async def test_p14_it_ends_when_the_application_closes(app):
    await app.open()
    follower = asyncio.create_task(Follower(app).next())
    await asyncio.sleep(0)
    await app.close()
    with pytest.raises(StopAsyncIteration):
        await follower


async def test_p14_it_survives_the_end_of_its_connection(app, table):
    start = await table.db.fetchval("select fleet.now()")
    await table.enqueue("1", "2")
    async with app:
        follower = Follower(app, start)
        for _ in range(2):
            await table.settle(ALICE, (await table.claim_one(), Failed(ERROR)))
            await follower.next()
            await table.db.execute("""
                select pg_terminate_backend(pid) from pg_stat_activity
                 where application_name = 'fleet client' and datname = current_database()
            """)
