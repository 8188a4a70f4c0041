"""What ``fleet doctor`` finds in the fleet itself: hosts, queues, jobs, and their settings."""

from __future__ import annotations

from typing import Final

from fleet.cli.checks import Check, Finding, Visit, ok
from fleet.cli.common import duration
from fleet.cli.status import waiting
from fleet.settings import RunSettings
from fleet.store import health
from fleet.store.overview import MANY_RELEASES

_SHOWN: Final = 5


async def hosts(visit: Visit) -> list[Finding]:
    """Somebody must run tasks, and whoever fell silent should be gone soon."""
    silent = [owner for owner in visit.seen.owners if not owner.alive]
    alive = [owner for owner in visit.seen.owners if owner.alive]
    findings = [
        Finding(
            "hosts",
            "warning",
            f"{owner.host} (owner {owner.id}, pid {owner.pid}) is silent for "
            f"{duration(owner.silent)}, over its lease of {duration(owner.lease)}, and holds "
            f"{owner.running:,} tasks",
            "a live host takes them over within a lease"
            if alive
            else "start a host: fleet run; it takes them over after one lease",
        )
        for owner in silent
    ]
    if not alive:
        findings.append(Finding("hosts", "note", "no host runs tasks", "start one: fleet run"))
    return findings or ok("hosts", f"{len(alive)} alive")


async def lease(visit: Visit) -> list[Finding]:
    """Beats must come well within the lease, and all hosts should mean the same by it."""
    alive = [owner for owner in visit.seen.owners if owner.alive]
    findings = [
        Finding(
            "lease",
            "warning",
            f"{owner.host} (owner {owner.id}) was last heard of {duration(owner.silent)} ago, "
            f"late for a lease of {duration(owner.lease)}: it stops its workers at 0.8 of it",
            "look at that host's load and its way to the database, or raise supervisor.lease",
        )
        for owner in alive
        if owner.silent > owner.lease / 2
    ]
    leases = sorted({owner.lease for owner in alive})
    if len(leases) > 1:
        said = ", ".join(duration(each) for each in leases)
        says = f"hosts have different leases: {said}"
        findings.append(Finding("lease", "note", says, "give all hosts the same supervisor.lease"))
    return findings or ok("lease", "every beat comes in time")


async def unserved(visit: Visit) -> list[Finding]:
    """Work that is due in a queue that nobody serves waits for ever."""
    return [
        Finding(
            "unserved",
            "error",
            f"{waiting(queue)}, which no live host serves",
            f"start a host whose application has a job in {queue.queue}: fleet run",
        )
        for queue in visit.seen.unserved
    ] or ok("unserved", "every queue with work has a host")


async def unknown(visit: Visit) -> list[Finding]:
    """Tasks of a job or step that no live worker has wait for one that has."""
    return [
        Finding(
            "unknown",
            "warning",
            f"{found.tasks:,} in {found.queue}: of {found.job}"
            f"{f' at step {found.step}' if found.step else ''}, which no live worker has",
            "deploy a release that has it, or: fleet task list --job "
            f"{found.job}, then fleet task cancel",
        )
        for found in visit.seen.unknown
    ] or ok("unknown", "every task is of a job that workers have")


async def released(visit: Visit) -> list[Finding]:
    """A task that every drain hands back never ends."""
    return [
        Finding(
            "released",
            "warning",
            f"task {found.task_id} ({found.job}.{found.step}) was handed back {found.releases} "
            f"times in a row",
            "raise supervisor.drain_timeout, make the step shorter, or look at ctx.draining in it",
        )
        for found in visit.seen.released
    ] or ok("released", f"no task was handed back {MANY_RELEASES} times in a row")


async def set_by_hand(visit: Visit) -> list[Finding]:
    """Somebody's override is easily forgotten."""
    return [
        Finding("set-by-hand", "note", f"{found.queue}: {found}", "is it still meant? fleet queue")
        for found in visit.seen.overrides
    ] or ok("set-by-hand", "no queue is paused or set by hand")


async def drain(visit: Visit) -> list[Finding]:
    """A step that may take longer than a drain is cut by a deploy, and starts again."""
    patience = (visit.settings or RunSettings()).supervisor.drain_timeout
    slow = [str(s) for s in await health.steps(visit.conn) if s.timeout > patience]
    if not slow:
        return ok("drain", f"every step fits into a drain of {duration(patience)}")
    more = f" and {len(slow) - _SHOWN} more" if len(slow) > _SHOWN else ""
    says = (
        f"may run longer than a drain of {duration(patience)} waits, and would start again: "
        f"{', '.join(slow[:_SHOWN])}{more}"
    )
    do = "give each step the timeout it needs, and supervisor.drain_timeout the longest of them"
    return [Finding("drain", "note", says, do)]


async def strays(visit: Visit) -> list[Finding]:
    """A configured queue that no job names is likely mistyped."""
    if visit.settings is None:
        return []
    named = set(await health.queues(visit.conn))
    return [
        Finding(
            "strays",
            "warning",
            f"[queues.{queue.name}] is configured, and no registered job names it",
            f"correct the name; jobs name {', '.join(sorted(named))}",
        )
        for queue in visit.settings.queues
        if named and queue.name not in named
    ] or ok("strays", "every configured queue has a job")


ROUNDS: Final[tuple[Check, ...]] = (
    *(hosts, lease, unserved, unknown, released, set_by_hand, drain, strays),
)
