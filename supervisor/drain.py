"""How workers are brought to an end: what has not started goes back, what runs may finish.

tell     give back what you have not started; ctx.draining is set
wait     until nothing is held, for as long as the drain may take
end      whoever still runs something is killed, and its tasks are released at no cost
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable
from typing import Final

from fleet.model import Seconds
from fleet.worker.main import DRAINED
from supervisor.child import Child

LOOK: Final[Seconds] = 0.02
STOPPING: Final[Seconds] = 2.0  # from a cancel to the end of a coroutine
NEIGHBOURS: Final[Seconds] = 5.0  # for the others in a process that must end


def tell(children: Iterable[Child]) -> None:
    """Begin: nothing that has not started will start here."""
    for child in children:
        child.channel.send("return", list(child.held))
        child.channel.send("drain")


async def wait(busy: Callable[[], bool], patience: Seconds, now: asyncio.Event) -> None:
    """Wait until nobody is busy, or time is up, or somebody wants the end ``now``."""
    deadline = time.monotonic() + patience
    while busy() and not now.is_set() and (left := deadline - time.monotonic()) > 0:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(left, LOOK)):
                await now.wait()


def tell_queue(children: Iterable[Child], queue: str) -> None:
    """Begin for one queue, in processes that others share."""
    for child in children:
        child.channel.send("return", child.tasks_of(queue))
        child.channel.send("drain", [queue])


async def end_queue(children: Iterable[Child], queue: str, now: asyncio.Event) -> None:
    """Stop what a queue still runs in shared processes, sparing its neighbours where it can be.

    A coroutine is cancelled. A function, and a coroutine that takes no notice, goes with its
    process, which gets nothing new meanwhile.
    """
    async with asyncio.TaskGroup() as group:
        for child in list(children):
            if child.tasks_of(queue):
                group.create_task(_end_queue(child, queue, now))


async def _end_queue(child: Child, queue: str, now: asyncio.Event) -> None:
    def busy() -> bool:
        return child.state != "dead" and bool(child.tasks_of(queue))

    if not child.solo:
        child.channel.send("release", child.tasks_of(queue))
        await wait(busy, STOPPING, now)
    if not busy():
        return
    child.retire()
    await wait(lambda: busy() and len(child.held) > len(child.tasks_of(queue)), NEIGHBOURS, now)
    if busy():
        end([child])


def end(children: Iterable[Child]) -> None:
    """Let the idle ones go and kill the others; what they held is released, free of charge."""
    for child in list(children):
        if child.held:
            child.verdicts |= dict.fromkeys(child.held, DRAINED)
            child.kill("drain: its time was up")
        else:
            child.retire()
