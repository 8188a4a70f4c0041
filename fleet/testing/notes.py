"""Writes the progress that steps report while a drain runs them."""

from __future__ import annotations

import asyncio

from fleet.model import Claim, OwnerId
from fleet.store.beats import note_progress
from fleet.store.executor import Executor
from fleet.worker.execute import MAX_MESSAGE, clean


class Notes:
    """Takes notes from any thread and writes them one after another on a connection of its own."""

    def __init__(self, executor: Executor | None, owner: OwnerId) -> None:
        self._executor = executor
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._pending: asyncio.Queue[tuple[int, int, float, str]] = asyncio.Queue()
        self._writer: asyncio.Task[None] | None = None

    def take(self, claim: Claim, fraction: float, message: str) -> None:
        """Note how far a step has come; a ``def`` step calls this from its thread."""
        note = (claim.id, claim.fence, fraction, clean(message)[:MAX_MESSAGE])
        self._loop.call_soon_threadsafe(self._pending.put_nowait, note)
        self._loop.call_soon_threadsafe(self._start)

    def _start(self) -> None:
        if self._writer is None or self._writer.done():
            self._writer = self._loop.create_task(self._write())

    async def _write(self) -> None:
        while not self._pending.empty():
            note = self._pending.get_nowait()
            if self._executor is not None:
                await note_progress(self._executor, self._owner, [[*note]])

    async def written(self) -> None:
        """Wait until everything noted so far is in the database."""
        await asyncio.sleep(0)  # what was taken in this turn of the loop is on its way
        if self._writer is not None:
            await self._writer
