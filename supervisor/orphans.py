"""PID 1's duty in a container: reap the grandchildren that nobody else is left to wait for.

What steps start and leave behind becomes a child of PID 1 when its worker ends, and a zombie when
it ends itself. Those that ``multiprocessing`` waits for are left to it: an exit code can be had
only once.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Collection
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Final

from fleet.model import Seconds
from supervisor.supervisor import Supervisor

EVERY: Final[Seconds] = 5.0


async def adopt(supervisor: Supervisor) -> None:
    """Reap every now and then, until cancelled."""
    while True:
        await asyncio.sleep(EVERY)
        kept = {child.pid for child in supervisor.roster.children()}
        kept.add(getattr(forkserver._forkserver, "_forkserver_pid", None))
        kept.add(getattr(resource_tracker._resource_tracker, "_pid", None))
        reap({pid for pid in kept if pid is not None})


def reap(kept: Collection[int], proc: Path = Path("/proc")) -> list[int]:
    """Reap the zombies among our children, but for those that are ``kept``; return them."""
    reaped = []
    for folder in proc.glob("[0-9]*"):
        pid = int(folder.name)
        if pid not in kept and _is_our_zombie(folder):
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
                reaped.append(pid)
    return reaped


def _is_our_zombie(folder: Path) -> bool:
    try:
        # A name may hold spaces and parentheses: what follows the last one is state and parent.
        state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
    except (OSError, ValueError):
        return False
    return state == "Z" and int(parent) == os.getpid()
