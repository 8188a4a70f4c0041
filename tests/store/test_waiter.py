"""One poll for all who wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from fleet import errors
from fleet.client import waiter as waiting
from fleet.client.waiter import Waiter
from fleet.store.results import Sight


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
