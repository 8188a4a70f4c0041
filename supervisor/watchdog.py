"""Looks after the children: timeouts that are real, boots that end, memory that is given back.

``async def`` steps are cancelled by their worker at the timeout. Whoever is still there a moment
later, and every ``def`` step, is ended with its process: first the neighbours' work is let finish
where it can. If the process does not even answer, somebody holds the interpreter, and blame goes
as after a crash: to the one that ran alone, or to nobody.

It looks four times a second while there is anything to look at. On an idle host that alone cost
more than everything else (0.45 % of a CPU, of 0.55 %), most of it for reading the cgroup's memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from fleet.lifecycle import Cancelled, Crashed, Event, Failed, Released
from fleet.model import Claim, Failure, Seconds
from fleet.wire.board import Running
from supervisor.child import LEAVING, Child
from supervisor.cpus import memory

_log: Final = logging.getLogger("fleet.supervisor")

EVERY: Final[Seconds] = 0.25
IDLE: Final[Seconds] = 5.0
CANCEL_GRACE: Final[Seconds] = 2.0
NEIGHBOURS: Final[Seconds] = 5.0
ANSWER: Final[Seconds] = 1.0
UNSTARTED: Final[Seconds] = 0.25
FORCE_AFTER: Final[Seconds] = 7.0  # a cancelled def step; the worker cancels coroutines after 5
TOO_MUCH: Final = 0.95
MUCH: Final = 0.8


class Watchdog:
    """One for all children of this host."""

    def __init__(
        self,
        children: Callable[[], Iterable[Child]],
        step: Callable[[Claim], dict[str, Any]],
        limits: Callable[[Child], tuple[int | None, int | None]],
        *,
        boot_timeout: Seconds,
    ) -> None:
        self._children = children
        self._step = step
        self._limits = limits
        self._boot_timeout = boot_timeout
        self._ending: set[asyncio.Task[None]] = set()
        self._stirred = asyncio.Event()
        self._measure_at = 0.0

    async def run(self) -> None:
        """Look every now and then until cancelled."""
        while True:
            await self._rest()
            now = time.monotonic()
            for child in list(self._children()):
                self._look(child, now)
            if now >= self._measure_at:
                self._measure_at = now + self._spare_memory()

    def stir(self) -> None:
        """Take notice: a child has been given something to do, or is about to begin or to end."""
        self._stirred.set()

    async def _rest(self) -> None:
        if not any(child.held or child.state != "ready" for child in self._children()):
            self._stirred.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(IDLE):
                    await self._stirred.wait()
        await asyncio.sleep(EVERY)

    def _look(self, child: Child, now: float) -> None:
        if child.state == "dead":
            return
        if not child.booted:
            if now - child.started_at > self._boot_timeout:
                child.kill(f"boot: it did not finish within {self._boot_timeout:g}s")
            return
        if child.state == "retiring" and not child.held and now - child.retired_at > LEAVING:
            child.kill("retired: it did not end when it was told to")
            return
        running = child.running()
        for entry in running:
            held = child.held[entry.task_id]
            step = self._step(held.claim)
            grace = CANCEL_GRACE if step["kind"] == "async" else EVERY
            overdue = 0 < entry.since < now - step["timeout"] - grace
            forced = held.cancelled_at is not None and now - held.cancelled_at > FORCE_AFTER
            if (overdue or forced) and not held.ending:
                held.ending = True
                self._spawn(self._end(child, entry, step["timeout"], forced=forced))
        child.take_back(now - UNSTARTED)
        self._recycle(child)

    def _recycle(self, child: Child) -> None:
        if child.state != "ready":
            return
        max_tasks, max_memory = self._limits(child)
        if max_tasks is not None and child.finished >= max_tasks:
            child.retire()
        elif max_memory is not None and _rss(child) > max_memory:
            _log.info("worker %s has grown past its limit and is recycled", child.orders.title)
            child.retire()

    async def _end(self, child: Child, entry: Running, timeout: Seconds, *, forced: bool) -> None:
        """End the process of a step that will not end, sparing its neighbours' work."""
        child.retire()
        answers = await child.answers(ANSWER)
        if answers:
            await self._let_finish(child, entry)
        still = [r.task_id for r in child.running()]
        if entry.task_id not in still:
            return
        told = f"the step did not end within its timeout of {timeout:g}s and its process was killed"
        error = Failure(type="Timeout", message=told)
        verdict: Event = Failed(error, timed_out=True)
        if forced:
            verdict = Cancelled()
        elif not answers and len(still) > 1:
            verdict = Crashed(error, suspects=len(still))
        for task in still:
            spared: Event = verdict if not answers and len(still) > 1 else Released()
            child.verdicts[task] = verdict if task == entry.task_id else spared
        intent = "cancel: it would not stop" if forced else f"timeout: of {timeout:g}s"
        child.terminate(intent)
        await asyncio.sleep(EVERY)
        child.kill(intent)

    async def _let_finish(self, child: Child, entry: Running) -> None:
        deadline = time.monotonic() + NEIGHBOURS
        while time.monotonic() < deadline:
            running = {r.task_id for r in child.running()}
            if running <= {entry.task_id}:
                return
            await asyncio.sleep(EVERY / 5)

    def _spare_memory(self) -> Seconds:
        """At 95 % of the container's memory end the largest worker: the kernel would end us all.

        Return when to look again: that takes a millisecond.
        """
        now = memory()
        if now.limit is None:
            return IDLE
        if now.fraction < TOO_MUCH:
            return EVERY if now.fraction > MUCH else 1.0
        largest = max(self._children(), key=_rss, default=None)
        if largest is not None and largest.state == "ready":
            size = _rss(largest) >> 20
            _log.error(
                "%.0f %% of the container's memory is used: worker %s (%d MiB) is killed before "
                "the kernel kills everything",
                100 * now.fraction,
                largest.orders.title,
                size,
            )
            largest.kill("memory: the container was about to run out of it")
        return EVERY

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)


def _rss(child: Child) -> int:
    """Return a child's resident memory in bytes; 0 if it cannot be read."""
    try:
        pages = int(Path(f"/proc/{child.pid}/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * 4096
