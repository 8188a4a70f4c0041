"""Imported by the fork server, once: the application, so that every worker starts with it loaded.

The fork server dies of an exception here and would take every restart with it, so nothing gets
out; the worker imports the application again and tells what is wrong. A thread or an open
connection that the import leaves behind does not survive a fork in working order: workers say so
when they are ready, and the supervisor goes on without preloading.
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading
from typing import Final

TARGET: Final = "FLEET_PRELOAD_APP"
PATH: Final = "FLEET_PRELOAD_PATH"


def _sockets() -> set[int]:
    found = set()
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 -- names, not paths
            with contextlib.suppress(OSError):
                if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                    found.add(int(name))
    return found


def _preload() -> str | None:
    """Import the application and return what forbids forking from here, if anything does."""
    target = os.environ.get(TARGET)
    if not target:
        return None
    before = _sockets()
    from fleet.worker.load import load

    with contextlib.suppress(Exception):
        load(target, tuple(filter(None, os.environ.get(PATH, "").split(os.pathsep))))
    if threading.active_count() > 1:
        names = ", ".join(t.name for t in threading.enumerate() if t is not threading.main_thread())
        return f"importing the application started a thread ({names})"
    if _sockets() - before:
        return "importing the application left a connection open"
    return None


with contextlib.suppress(Exception):
    import aiomultiprocess  # noqa: F401

    import fleet.wire.travel
    import fleet.worker.main  # noqa: F401

FORBIDS: str | None = None
with contextlib.suppress(Exception):
    FORBIDS = _preload()
