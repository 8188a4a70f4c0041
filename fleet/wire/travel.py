"""File descriptors on their way to a child, whichever way it is started."""

from __future__ import annotations

from multiprocessing import reduction
from typing import Any


class Traveller:
    """A descriptor that a child gets a duplicate of: it arrives as ``Arrived``."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __reduce__(self) -> Any:
        return _arrive, (reduction.DupFd(self.fd),)


class Arrived:
    """A descriptor that has arrived."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def detach(self) -> int:
        """Give the descriptor away."""
        return self._fd


def _arrive(duplicate: Any) -> Arrived:
    return Arrived(duplicate.detach())
