"""One attempt of a ``def`` step: its thread, its turn, its clock."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time

import pytest

from fleet import Context, Fleet
from fleet.testing import make_context
from fleet.worker.execute import StepTimeout, call
from fleet.worker.threads import StepThread

CURRENT: contextvars.ContextVar[str] = contextvars.ContextVar("current")


@pytest.fixture
def bench():
    bench = StepThread()
    yield bench
    bench.close()


def attempt(fn, bench: StepThread, *, timeout: float = 30.0, middleware=()):
    job = Fleet().job("job")(fn)
    return call(
        make_context(), job.first, None, timeout=timeout, middleware=middleware, bench=bench
    )


async def test_after_a_step_that_timed_out_the_next_one_runs_in_a_fresh_thread(bench):
    end, ran = threading.Event(), []

    def stuck(ctx: Context) -> None:
        ran.append(threading.current_thread())
        end.wait(30)

    def quick(ctx: Context) -> str:
        ran.append(threading.current_thread())
        return "done"

    with pytest.raises(StepTimeout, match=r"0\.05s"):
        await attempt(stuck, bench, timeout=0.05)
    assert await attempt(quick, bench, timeout=5) == "done"
    assert await attempt(quick, bench, timeout=5) == "done"

    assert ran[0].is_alive()
    assert ran[0].daemon, "a step that never ends must not keep its process from ending"
    assert ran[1] is not ran[0]
    assert ran[2] is ran[1], "Django and others keep a connection a thread: it is used again"
    end.set()
    ran[0].join(5)
    assert not ran[0].is_alive(), "a thread that nobody wants any more ends with its function"


async def test_waiting_for_another_step_is_not_this_ones_time(bench):
    most, now, lock = [0], [0], threading.Lock()

    def slow(ctx: Context) -> None:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        time.sleep(0.06)
        now[0] -= 1

    await asyncio.gather(*(attempt(slow, bench, timeout=0.15) for _ in range(5)))

    assert most == [1], "one at a time"


async def test_a_step_that_is_given_up_while_it_waits_never_runs(bench):
    end, ran = threading.Event(), []

    def first(ctx: Context) -> None:
        end.wait(30)

    def second(ctx: Context) -> None:
        ran.append("second")

    running = asyncio.create_task(attempt(first, bench))
    waiting = asyncio.create_task(attempt(second, bench))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    end.set()
    await running
    assert ran == []


async def test_a_def_step_sees_the_context_of_its_middleware(bench):
    async def outer(ctx, call_next):
        CURRENT.set("request 7")
        return await call_next()

    def step(ctx: Context) -> str:
        return CURRENT.get()

    assert await attempt(step, bench, middleware=(outer,)) == "request 7"


@pytest.mark.parametrize("error", [ValueError("no"), StopIteration(1), TimeoutError("of its own")])
async def test_what_a_def_step_raises_is_raised(bench, error):
    def step(ctx: Context) -> None:
        raise error

    with pytest.raises((type(error), RuntimeError)) as raised:
        await asyncio.wait_for(attempt(step, bench), 5)

    assert not isinstance(raised.value, StepTimeout)
