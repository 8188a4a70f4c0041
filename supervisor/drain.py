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

from fleet.lifecycle import Released
from fleet.model import Failure, Seconds
from supervisor.child import Child

LOOK: Final[Seconds] = 0.02
_ABORTED: Final = Released(
    Failure(type="Drained", message="its worker was shut down before the step had ended")
)


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


def end(children: Iterable[Child]) -> None:
    """Let the idle ones go and kill the others; what they held is released, free of charge."""
    for child in list(children):
        if child.held:
            child.verdicts |= dict.fromkeys(child.held, _ABORTED)
            child.kill("drain: its time was up")
        else:
            child.retire()
