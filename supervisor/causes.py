"""Why a child ended, in words that a person, a metric and a task's history can use."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fleet.model import Failure
from fleet.worker.main import BOOT_FAILED

RETIRED: Final = "retired"
_EVENTS: Final = ("memory.events", "memory.oom_control")


@dataclass(frozen=True, slots=True)
class Cause:
    """``kind`` is for metrics (few values), ``text`` for people."""

    kind: str
    text: str

    def failure(self) -> Failure:
        """Return it as it is kept with the attempts that it ended."""
        return Failure(type="Crash", message=f"the worker process died: {self.text}")


def cause_of(exit_code: int | None, intent: str | None, *, booted: bool, oom: bool) -> Cause:
    """Put a cause into words. ``intent`` is why we killed it ourselves, if we did.

    >>> cause_of(-11, None, booted=True, oom=False)
    Cause(kind='signal', text='killed by SIGSEGV')
    """
    if intent == RETIRED and exit_code not in (None, 0, 255):
        intent = None  # told to go, and died of something else before it had gone
    if intent is not None:
        return Cause(intent.split(":")[0], intent)
    if not booted and exit_code == BOOT_FAILED:
        return Cause("boot", "the application could not be loaded")
    if exit_code is None or exit_code == 255:
        return Cause("unknown", "the fork server died with it, so its exit code is not known")
    if exit_code < 0:
        if oom and -exit_code == signal.SIGKILL:
            return Cause("oom", "killed by the kernel: out of memory")
        return Cause("signal", f"killed by {_name(-exit_code)}")
    if not booted:
        return Cause("boot", f"exit code {exit_code} while it booted")
    return Cause("exit", f"exit code {exit_code}")


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def oom_kills(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Return how often the kernel has killed in this cgroup for want of memory; 0 if unknown."""
    for name in _EVENTS:
        try:
            for line in (cgroup / name).read_text().splitlines():
                key, _, value = line.partition(" ")
                if key == "oom_kill":
                    return int(value)
        except (OSError, ValueError):
            continue
    return 0
