"""A piece of memory that a worker writes and its supervisor reads, also after the worker's death.

For each step that runs: the task, its fence, and since when by the monotonic clock, which is the
same in both processes. A message would be lost with a process that dies the moment it starts a
step; this is not. So the supervisor knows who was running (the suspects), who had not started
(never one), and who has run too long, without a word from the worker.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import struct
import tempfile
import time
from typing import Final, NamedTuple

_SEAL_FUTURE_WRITE: Final = 0x10  # has no name in Python
_ENTRY: Final = struct.Struct("<qqd")
_DETAILS: Final = struct.Struct("<qd")  # of an entry, after the task
_WORD: Final = 8


class Running(NamedTuple):
    """A step under way."""

    task_id: int
    fence: int
    since: float  # time.monotonic()


class Board:
    """``slots`` entries in shared memory; one process writes, another reads."""

    def __init__(self, fd: int, slots: int) -> None:
        self._memory = mmap.mmap(fd, slots * _ENTRY.size)
        self._words = memoryview(self._memory).cast("q")  # written whole, never half
        self._free = list(range(slots - 1, -1, -1))
        self._slots = slots

    @staticmethod
    def create(slots: int) -> int:
        """Return a file descriptor of zeroed memory for ``slots`` entries."""
        if hasattr(os, "memfd_create"):
            fd = os.memfd_create("fleet-board", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        else:  # macOS: a file that nobody else can open any more
            fd, path = tempfile.mkstemp(prefix="fleet-board-")
            os.unlink(path)  # noqa: PTH108 -- there is no Path here, only a descriptor
        os.ftruncate(fd, slots * _ENTRY.size)
        return fd

    @staticmethod
    def seal(fd: int) -> None:
        """Let nobody write to the memory any more but through what is mapped already.

        The map keeps a descriptor of its own. A step that writes into descriptors it knows nothing
        about would wipe out who was running, and be run again for ever, free of charge.
        """
        if hasattr(fcntl, "F_ADD_SEALS"):
            with contextlib.suppress(OSError):  # Linux before 5.1
                fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEAL_FUTURE_WRITE)

    def enter(self, task_id: int, fence: int) -> int:
        """Note that a step starts; return the slot to give to ``leave``."""
        slot = self._free.pop()
        offset = slot * _ENTRY.size
        # The task last: whoever reads meanwhile must not find one that has been running since 0.
        _DETAILS.pack_into(self._memory, offset + _WORD, fence, time.monotonic())
        self._words[offset // _WORD] = task_id
        return slot

    def leave(self, slot: int) -> None:
        """Note that the step in ``slot`` has ended."""
        self._words[slot * _ENTRY.size // _WORD] = 0
        self._free.append(slot)

    def running(self) -> list[Running]:
        """Return the steps under way."""
        entries = (
            Running(*_ENTRY.unpack_from(self._memory, slot * _ENTRY.size))
            for slot in range(self._slots)
        )
        return [entry for entry in entries if entry.task_id]

    def close(self) -> None:
        """Let the memory go."""
        self._words.release()
        self._memory.close()
