"""The supervisor's own asyncio tasks: kept, and never lost silently."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

_log: Final = logging.getLogger("fleet.supervisor")


class Tasks:
    """Starts tasks and keeps them; the failure of a vital one ends the whole supervisor."""

    def __init__(self, on_failure: Callable[[], None]) -> None:
        self._on_failure = on_failure
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, Any], *, vital: bool = False) -> asyncio.Task[Any]:
        """Run ``work`` beside everything else; a failure is said, and if ``vital``, ends us."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._vital_ended if vital else self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> bool:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return True
        _log.error("a part of the supervisor failed", exc_info=error)
        return False

    def _vital_ended(self, task: asyncio.Task[Any]) -> None:
        if not self._ended(task):
            self._on_failure()

    async def cancel(self) -> None:
        """End all of them."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
