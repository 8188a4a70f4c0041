"""Every key there is, the kind of its value, and what it may hold. The defaults: ``model``."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Final, get_args

from fleet.errors import ConfigError
from fleet.model import MAX_PRIORITY, MIN_PRIORITY, OnFailure, OnSuccess
from fleet.retry import Strategy
from fleet.schedule import StaleSchedules
from fleet.settings.kinds import (
    Kind,
    address,
    choice,
    database,
    duration,
    flag,
    number,
    processes,
    rate,
    shown,
    size,
    token,
    whole,
)

_NO_BALANCE: Final = (
    ". Without a balance the first busy queue would starve the other shared ones; "
    "where there is only one, both words do the same"
)

# A worker that has imported nothing but Fleet takes 34 MB (measured). Below twice that, one that
# has imported an application would be recycled after every step.
_WORKER: Final = size("64MiB", "a worker takes half of that before it has run anything")

_RECYCLE: Final[Mapping[str, Kind]] = {
    "max_memory": _WORKER,
    "max_tasks": whole(1, 1_000_000_000),
}

_POLICY: Final[Mapping[str, Kind]] = {
    "timeout": duration("1ms", "365d"),
    "priority": whole(MIN_PRIORITY, MAX_PRIORITY, "; higher runs first"),
    "keep": duration("1s", "3650d"),
    "on_success": choice(*get_args(OnSuccess)),
    "on_failure": choice(*get_args(OnFailure)),
    "retry.max_attempts": whole(1, 1_000_000, "; 1 means no retry"),
    "retry.initial": duration("0s", "3650d"),
    "retry.coefficient": number(1, 1_000_000),
    "retry.maximum": duration("0s", "3650d"),
    "retry.jitter": number(0, 1),
    "retry.strategy": choice(*get_args(Strategy)),
}

SCHEMA: Final[Mapping[str, Mapping[str, Kind]]] = {
    "supervisor": {
        "processes": processes(),
        "concurrency": whole(1, 10_000),
        "lease": duration("1ms", "1h"),
        "drain_timeout": duration("0s", "1d"),
        "balance": choice("fair", "strict", why=_NO_BALANCE),
        "http": address(),
        "console": address(),
        "console_token": token(),
        "listen_url": database(),
        "preload": flag(),
        "stale_schedules": choice(*get_args(StaleSchedules)),
        "boot_timeout": duration("1s", "1h"),
        **_RECYCLE,
    },
    "fetch": {
        # Below 10 ms a host would do little but ask.
        "empty_delay": duration("10ms", "10m"),
        "error_delay": duration("10ms", "1h"),
        "batch": whole(1, 5_000),
    },
    "queues": {  # of each queue
        "weight": number(0.001, 1_000),
        "processes": whole(1, 1_024, "; without it the shared pool serves this queue"),
        "concurrency": whole(1, 10_000),
        "limit": whole(1, 1_000_000, "; to stop a queue: fleet queue pause"),
        "rate": rate(),
        **_RECYCLE,
        **_POLICY,
    },
    "telemetry": {
        "supervisor_sample": number(0, 1),
        "flush_timeout": duration("0s", "1m"),
    },
    "defaults": _POLICY,
}

SECRETS: Final = frozenset(
    key for keys in SCHEMA.values() for key, kind in keys.items() if kind.secret
)


def unknown(where: object, name: str, value: object, keys: Iterable[str]) -> ConfigError:
    """Return the error for a key that there is not, with the nearest that there is."""
    near = difflib.get_close_matches(name, keys, n=1)
    hint = f"did you mean {near[0]}?" if near else f"the keys here are {', '.join(keys)}"
    key = f"{where}.{bare(name)}".removeprefix(".")
    # A secret may stand under a key that was mistyped: a text is shown only if what was meant is
    # known, and is no secret.
    hidden = isinstance(value, str) and (not near or near[0] in SECRETS)
    return ConfigError(key, "***" if hidden else shown(value), f"there is no such key; {hint}")


def bare(name: str) -> str:
    """Return a name as it may be printed: on one line, and not without end."""
    plain = name.isascii() and name.isprintable() and 0 < len(name) <= 63
    return name if plain else ascii(name[:40])
