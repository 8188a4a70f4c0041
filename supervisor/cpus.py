"""What this container may use: CPUs for the size of the pool, memory for the 95 % rule.

``os.cpu_count()`` is the node's. A container's share is the smallest of

* the CPUs its affinity allows (which a cpuset narrows too),
* the quota of its cgroup and of every one above it, v2 (``cpu.max``) or v1 (``cpu.cfs_*``).

Everything is read below ``root``, so that a test can show it any machine; what is missing or
makes no sense limits nothing. On macOS there are no cgroups and so no files.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

__all__ = ["Memory", "cpus", "memory", "memory_limit", "memory_usage"]

_HERE: Final = Path("/")
_V2: Final = ""  # in place of a controller's name: /proc/self/cgroup has none for v2
# v1 has no word for "no limit": it says the largest number of whole pages.
_NO_LIMIT: Final = 1 << 60


def cpus(root: Path = _HERE, *, affinity: int | None = None) -> int:
    """Return how many CPUs this container may use, at least 1."""
    allowed = _affinity() if affinity is None else affinity
    quota = min((*_quotas_v2(root), *_quotas_v1(root)), default=math.inf)
    if quota >= allowed:
        return max(allowed, 1)
    # Down, not up. Two busy processes under a quota of 1.1 spend it in 55 of every 100 ms and
    # are frozen for the other 45, the supervisor with them, which is to see a death and stop
    # claiming within 50. The fraction is not lost: the supervisor itself lives on it. Who wants
    # it for steps says processes = 2. (The other way: the JVM, and Go since 1.25.)
    return max(math.floor(quota), 1)


def _affinity() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _quotas_v2(root: Path) -> Iterator[float]:
    for folder in _levels(root, _V2):
        words = (_text(folder / "cpu.max") or "").split()
        if words:
            yield _quota(words[0], words[1] if len(words) > 1 else "100000")


def _quotas_v1(root: Path) -> Iterator[float]:
    for folder in _levels(root, "cpu"):
        yield _quota(_text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us"))


def _quota(microseconds: str | None, period: str | None) -> float:
    # "max" in v2 and -1 in v1 are no numbers here, and so no limit.
    used, of = _number(microseconds), _number(period)
    return used / of if used and of else math.inf


@dataclass(frozen=True, slots=True)
class Memory:
    """The limit that is nearest to being met, and what counts towards it; None: not known."""

    limit: int | None
    usage: int | None

    @property
    def fraction(self) -> float:
        """How much of the limit is in use; 0 where there is none."""
        return self.usage / self.limit if self.limit and self.usage is not None else 0.0


def memory(root: Path = _HERE) -> Memory:
    """Return limit and usage of the cgroup, of this one and those above, that is nearest to full.

    Both of the same one: a pod's limit is met by the usage of all its containers. Takes about a
    millisecond (0.9 on a host with ten cgroup mounts): fit for every beat, not for every task.
    """
    levels = [*_memory_levels(root, _V2, _FILES_V2), *_memory_levels(root, "memory", _FILES_V1)]
    limited = [level for level in levels if level.limit is not None]
    if limited:
        return max(limited, key=lambda level: (level.fraction, -(level.limit or 0)))
    return next((level for level in levels if level.usage is not None), Memory(None, None))


def memory_limit(root: Path = _HERE) -> int | None:
    """Return the bytes at which the kernel kills, or None if it does not."""
    return memory(root).limit


def memory_usage(root: Path = _HERE) -> int | None:
    """Return the bytes that count towards the limit.

    As the kubelet counts: without the file pages that the kernel would drop before it kills.
    """
    return memory(root).usage


class _Files(NamedTuple):
    limit: str
    usage: str
    droppable: str  # in memory.stat; of v1 the one that counts the cgroups below too


_FILES_V2: Final = _Files("memory.max", "memory.current", "inactive_file")
_FILES_V1: Final = _Files("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def _memory_levels(root: Path, controller: str, files: _Files) -> Iterator[Memory]:
    for folder in _levels(root, controller):
        limit, usage = _number(_text(folder / files.limit)), _number(_text(folder / files.usage))
        if usage is not None:
            stat = re.search(
                rf"(?m)^{files.droppable} ([0-9]+)$", _text(folder / "memory.stat") or ""
            )
            usage = max(usage - (_number(stat[1]) or 0 if stat else 0), 0)
        yield Memory(limit if limit and limit < _NO_LIMIT else None, usage)


def _levels(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folder of this process's cgroup for a controller, then those above it."""
    mount = _mount(root, controller)
    path = _path(root, controller)
    if mount is None or path is None:
        return
    folder = mount.folder
    # Without a cgroup namespace the path is the host's, while the container sees its own cgroup
    # mounted as the top: what is left of the path below the mount's root is what counts.
    below = _below(path, mount.top)
    for depth in range(len(below), -1, -1):
        yield folder.joinpath(*below[:depth])


def _below(path: str, top: str) -> tuple[str, ...]:
    parts, above = Path(path).parts[1:], Path(top).parts[1:]
    # ".." is a cgroup outside of our namespace, which cannot be seen from here.
    if ".." in parts or parts[: len(above)] != above:
        return ()
    return parts[len(above) :]


def _path(root: Path, controller: str) -> str | None:
    for line in (_text(root / "proc/self/cgroup") or "").splitlines():
        match line.split(":", 2):
            case ["0", "", path] if controller == _V2:
                return path
            case [_, names, path] if controller and controller in names.split(","):
                return path
    return None


class _Mount(NamedTuple):
    folder: Path
    top: str  # the cgroup that is mounted there


def _mount(root: Path, controller: str) -> _Mount | None:
    for line in (_text(root / "proc/self/mountinfo") or "").splitlines():
        seen, _, source = line.partition(" - ")
        fields, kind = seen.split(" "), source.split(" ")
        if len(fields) < 5 or len(kind) < 3:
            continue
        wanted = kind[0] == "cgroup" and controller in kind[2].split(",")
        if (kind[0] == "cgroup2") if controller == _V2 else wanted:
            return _Mount(root / _unescaped(fields[4]).lstrip("/"), _unescaped(fields[3]))
    return None


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)


def _number(text: str | None) -> int | None:
    stripped = (text or "").strip()
    return int(stripped) if re.fullmatch("[0-9]{1,20}", stripped) else None


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError):  # ValueError: a NUL in a path
        return None
