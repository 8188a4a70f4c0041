"""PURE: settings × CPUs × the queues that jobs name -> pools of worker processes.

    [queues.images] processes = 4   ──▶  pool "images"   4 processes, that queue
    every other queue               ──▶  pool "shared"   supervisor.processes, all of them

The supervisor plans twice. Before any worker has said which jobs it has, ``queues`` is None and
the shared pool is planned in any case, for somebody must load the application. Then it plans
with the queues of those jobs, and ``diff`` says what to do about it; as it does after a reload.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from fleet.config import Rate
from fleet.errors import ConfigError
from fleet.settings import Balance, QueueSettings, RunSettings

__all__ = [
    "Change",
    "Changes",
    "Plan",
    "Pool",
    "Row",
    "Served",
    "changes_in_words",
    "describe",
    "diff",
    "plan",
    "strays",
    "without",
]

SHARED: Final = "shared"


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """One queue, as its pool serves it."""

    name: str
    pool: str
    rank: int = 0  # its place among the pool's queues, which balance = "strict" goes by
    weight: float = 1.0
    share: float = 1.0  # of the pool's slots while all its queues have work: balance = "fair"
    limit: int | None = None
    rate: Rate | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Worker processes that serve the same queues."""

    name: str
    queues: tuple[str, ...]
    processes: int
    concurrency: int
    dedicated: bool
    max_memory: int | None = None
    max_tasks: int | None = None

    @property
    def async_slots(self) -> int:
        """How many ``async def`` steps run at once."""
        return self.processes * self.concurrency

    @property
    def def_slots(self) -> int:
        """How many plain ``def`` steps run at once: each owns its process while it runs."""
        return self.processes


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Who serves what on this host."""

    pools: tuple[Pool, ...]  # the dedicated ones in the order of the file, then the shared one
    queues: tuple[Served, ...]
    balance: Balance = "fair"

    @property
    def processes(self) -> int:
        """How many worker processes there will be."""
        return sum(pool.processes for pool in self.pools)

    def served(self, queue: str) -> Served | None:
        """Return how a queue is served, or None if nobody here does."""
        return next((served for served in self.queues if served.name == queue), None)


def plan(settings: RunSettings, cpus: int, *, queues: Iterable[str] | None = None) -> Plan:
    """Plan the pools of this host.

    ``queues`` are those that the application's jobs name; given as a mapping to the jobs' names,
    an error names the jobs too. None: not known yet.
    """
    dedicated = [queue for queue in settings.queues if queue.dedicated]
    shared = _shared_queues(settings, queues or ())
    # CPUs that dedicated workers may use are not taken off: idle they use none, and which pool
    # will be the busy one is not known here.
    processes = settings.supervisor.processes
    size = max(cpus, 1) if processes == "auto" else processes
    if shared and size == 0:
        raise _unserved(shared, queues or ())
    pools = [_dedicated_pool(queue, settings) for queue in dedicated]
    # An application without a job keeps its pool: somebody must notice when it has one.
    if size and (shared or queues is None or not dedicated):
        pools.append(_shared_pool(shared, size, settings))
    if not pools:
        raise ConfigError(
            "supervisor.processes", processes, "nothing would run: give it, or a queue, processes"
        )
    served = [_served(queue, queue.name) for queue in dedicated]
    total = sum(queue.weight for queue in shared)
    served += [
        _served(queue, SHARED, rank=rank, share=queue.weight / total)
        for rank, queue in enumerate(shared)
    ]
    return Plan(pools=tuple(pools), queues=tuple(served), balance=settings.supervisor.balance)


def _shared_queues(settings: RunSettings, named: Iterable[str]) -> list[QueueSettings]:
    # Those that only jobs name come last, by name: an order that no boot can change.
    configured = {queue.name for queue in settings.queues}
    new = [QueueSettings(name=name) for name in sorted(set(named) - configured)]
    return [*(queue for queue in settings.queues if not queue.dedicated), *new]


def _dedicated_pool(queue: QueueSettings, settings: RunSettings) -> Pool:
    return Pool(
        name=queue.name,
        queues=(queue.name,),
        processes=queue.processes or 0,
        concurrency=queue.concurrency or settings.supervisor.concurrency,
        dedicated=True,
        max_memory=queue.max_memory or settings.supervisor.max_memory,
        max_tasks=queue.max_tasks or settings.supervisor.max_tasks,
    )


def _shared_pool(queues: Iterable[QueueSettings], processes: int, settings: RunSettings) -> Pool:
    return Pool(
        name=SHARED,
        queues=tuple(queue.name for queue in queues),
        processes=processes,
        concurrency=settings.supervisor.concurrency,
        dedicated=False,
        max_memory=settings.supervisor.max_memory,
        max_tasks=settings.supervisor.max_tasks,
    )


def _served(queue: QueueSettings, pool: str, *, rank: int = 0, share: float = 1.0) -> Served:
    return Served(
        name=queue.name,
        pool=pool,
        rank=rank,
        weight=queue.weight,
        share=share,
        limit=queue.limit,
        rate=queue.rate,
    )


def _unserved(queues: Iterable[QueueSettings], named: Iterable[str]) -> ConfigError:
    listed = ", ".join(_with_jobs(queue.name, named) for queue in queues)
    return ConfigError(
        "supervisor.processes",
        0,
        f"nobody would serve {listed}: give the shared pool processes, or the queue some of its "
        f"own, such as [queues.{next(iter(queues)).name}] processes = 1",
    )


def _with_jobs(queue: str, named: Iterable[str]) -> str:
    jobs = sorted(named[queue]) if isinstance(named, Mapping) and queue in named else []
    return f"{queue} (of {', '.join(jobs)})" if jobs else queue


def strays(settings: RunSettings, queues: Iterable[str]) -> list[str]:
    """Return a sentence for each configured queue that no job names: likely a name mistyped."""
    named = set(queues)
    return [
        f"[queues.{queue.name}] is configured, and no job of this application names it"
        + _nearest(queue.name, named - {other.name for other in settings.queues})
        for queue in settings.queues
        if queue.name not in named
    ]


def _nearest(name: str, others: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, sorted(others), n=1)
    return f"; did you mean {near[0]}?" if near else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A pool that stays and is no longer the same."""

    old: Pool
    new: Pool

    @property
    def processes(self) -> int:
        """How many to start; negative: to retire."""
        return self.new.processes - self.old.processes


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What leads from one plan to another. Retired workers end what they run and take no more."""

    start: tuple[Pool, ...] = ()
    retire: tuple[Pool, ...] = ()
    resized: tuple[Change, ...] = ()  # other processes, or other slots
    retuned: tuple[Change, ...] = ()  # the same slots: other queues, or recycled otherwise
    queues: tuple[Served, ...] = ()  # new, or served otherwise than before: as they now are
    dropped: tuple[str, ...] = ()  # queues no longer served here
    balance: Balance | None = None  # the new one, if it is another

    def __bool__(self) -> bool:
        return self != Changes()


def diff(old: Plan, new: Plan) -> Changes:
    """Return what a running supervisor must do to get from ``old`` to ``new``."""
    before = {pool.name: pool for pool in old.pools}
    after = {pool.name: pool for pool in new.pools}
    changed = [
        Change(old=before[name], new=pool)
        for name, pool in after.items()
        if name in before and pool != before[name]
    ]
    served = set(old.queues)
    return Changes(
        start=tuple(pool for name, pool in after.items() if name not in before),
        retire=tuple(pool for name, pool in before.items() if name not in after),
        resized=tuple(change for change in changed if _size(change.old) != _size(change.new)),
        retuned=tuple(change for change in changed if _size(change.old) == _size(change.new)),
        queues=tuple(queue for queue in new.queues if queue not in served),
        dropped=tuple(queue.name for queue in old.queues if new.served(queue.name) is None),
        balance=new.balance if new.balance != old.balance else None,
    )


def without(made: Plan, queues: Collection[str]) -> Plan:
    """Return a plan that leaves queues alone, and has no processes of theirs."""
    return replace(
        made,
        pools=tuple(p for p in made.pools if not (p.dedicated and p.name in queues)),
        queues=tuple(queue for queue in made.queues if queue.name not in queues),
    )


def changes_in_words(changes: Changes) -> list[str]:
    """Return a line for each thing that changes, to be logged."""
    told = [f"pool {pool.name} starts with {_counted(pool)}" for pool in changes.start]
    told += [f"pool {pool.name} ends" for pool in changes.retire]
    told += [
        f"pool {change.new.name} goes from {_counted(change.old)} to {_counted(change.new)}"
        for change in changes.resized
    ]
    told += [f"pool {change.new.name}: {_changed(change)}" for change in changes.retuned]
    told += [f"queue {q.name} in pool {q.pool}, {_told_of(q)}" for q in changes.queues]
    told += [f"queue {name} is no longer served here" for name in changes.dropped]
    return told + ([f"balance {changes.balance}"] if changes.balance else [])


def _told_of(queue: Served) -> str:
    return ", ".join([f"weight {queue.weight:g}", *_limits(queue)])


def _limits(queue: Served) -> list[str]:
    most = [f"at most {queue.limit} at once in the fleet"] if queue.limit else []
    return most + ([f"no more than {queue.rate}"] if queue.rate else [])


def _counted(pool: Pool) -> str:
    return f"{pool.processes} x {pool.concurrency}"


def _changed(change: Change) -> str:
    if change.old.queues != change.new.queues:
        return f"queues {', '.join(change.new.queues)}"
    return _notes(change.new) or "no longer recycled"


def _size(pool: Pool) -> tuple[int, int]:
    return pool.processes, pool.concurrency


class Row(NamedTuple):
    """A pool in the start-up summary."""

    pool: str
    queues: str
    processes: int
    slots: str
    notes: str


def describe(plan: Plan) -> list[Row]:
    """Return the plan as rows to print, one a pool."""
    return [
        Row(pool.name, _queues(pool, plan), pool.processes, _slots(pool), _remarks(pool, plan))
        for pool in plan.pools
    ]


def _queues(pool: Pool, plan: Plan) -> str:
    if len(pool.queues) < 2:
        return "".join(pool.queues) or "those that jobs name"
    if plan.balance == "strict":
        return " > ".join(pool.queues)
    shares = {queue.name: queue.share for queue in plan.queues}
    if len({round(shares[name], 9) for name in pool.queues}) == 1:
        return ", ".join(pool.queues)
    return ", ".join(f"{name} {shares[name]:.0%}" for name in pool.queues)


def _remarks(pool: Pool, plan: Plan) -> str:
    served = [queue for queue in plan.queues if queue.name in pool.queues]
    limits = [f"{queue.name}: {', '.join(said)}" for queue in served if (said := _limits(queue))]
    return "; ".join([*filter(None, [_notes(pool)]), *limits])


def _slots(pool: Pool) -> str:
    return f"{pool.async_slots} async, {pool.def_slots} def"


def _notes(pool: Pool) -> str:
    notes = []
    if pool.max_memory is not None:
        notes.append(f"at {pool.max_memory / 1_048_576:,.0f} MiB")
    if pool.max_tasks is not None:
        notes.append(f"after {pool.max_tasks:,} tasks")
    return f"recycled {', '.join(notes)}" if notes else ""
