"""What the supervisor says of itself: when it has started, and when SIGUSR1 asks."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import Any, TextIO

from fleet.config import mask
from fleet.settings import Address
from fleet.store.control import Override
from fleet.store.migrations import LATEST
from supervisor.plan import describe
from supervisor.supervisor import Supervisor


def summary(
    supervisor: Supervisor, address: Address | None, overrides: Iterable[Override]
) -> dict[str, Any]:
    """Return everything that somebody who starts it wants to see."""
    plan, site = supervisor.roster.plan, supervisor.site
    return {
        "version": version("pgfleet"),
        "host": site.host,
        "owner": int(supervisor.owner),
        "supervisor_pid": os.getpid(),
        "database": mask(site.url),
        "schema": LATEST,
        "app": site.app,
        "path": list(site.path),
        "cpus": site.cpus,
        "start_method": supervisor.roster.spawner.method,
        "pools": [row._asdict() for row in describe(plan)],
        "http": str(address) if address else None,
        "overrides": [{"queue": each.queue, "said": str(each)} for each in overrides],
    }


def in_words(told: dict[str, Any]) -> str:
    """Return the same as a person reads it."""
    pools = [
        (pool["pool"], pool["queues"], f"{pool['processes']} processes", pool["slots"])
        + ((pool["notes"],) if pool["notes"] else ())
        for pool in told["pools"]
    ]
    http = f"http://{told['http']}  /healthz /readyz /metrics" if told["http"] else "off"
    lines = [
        f"Fleet {told['version']} starts on {told['host']} as owner {told['owner']}, "
        f"pid {told['supervisor_pid']}",
        f"  database  {told['database']}, schema {told['schema']}",
        f"  app       {told['app']} from {', '.join(told['path'])} ({told['start_method']})",
        f"  http      {http}",
        *_under("  pools     ", _aligned(pools)),
        *_under("  set by hand  ", [f"{o['queue']}: {o['said']}" for o in told["overrides"]]),
    ]
    return "\n".join(lines)


def _under(head: str, lines: Sequence[str]) -> list[str]:
    return [(head if n == 0 else " " * len(head)) + line for n, line in enumerate(lines)]


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max((len(r[n]) for r in rows if n < len(r)), default=0) for n in range(5)]
    return ["  ".join(c.ljust(widths[n]) for n, c in enumerate(row)).rstrip() for row in rows]


# ── SIGUSR1 ──────────────────────────────────────────────────────────────────────────────────────


def dump(supervisor: Supervisor, to: TextIO | None = None) -> None:
    """Write tables and the stacks of every task to stderr, for whoever looks for a fault."""
    out = to or sys.stderr
    for title, rows in _tables(supervisor):
        print(f"── {title}", *_aligned(rows), sep="\n", file=out)
    for task in sorted(asyncio.all_tasks(), key=lambda t: t.get_name()):
        task.print_stack(limit=4, file=out)
    out.flush()


def _tables(supervisor: Supervisor) -> list[tuple[str, list[list[str]]]]:
    now = time.monotonic()
    traffic, heart = supervisor.traffic, supervisor.heart
    state = [
        ["state", supervisor.state],
        ["owner", str(supervisor.owner)],
        ["lease", f"{heart.time_left:.1f}s left, renewed {now - heart.renewed_at:.1f}s ago"],
        ["listening", str(supervisor.listener.hears)],
        ["unwritten", str(len(traffic.finisher.tasks))],
        ["paused", ", ".join(sorted(traffic.paused)) or "-"],
        ["restarts", ", ".join(f"{k} {n}" for k, n in supervisor.roster.restarts.items()) or "-"],
    ]
    children = [["worker", "pid", "state", "held", "running"]]
    children += [
        [c.orders.title, str(c.pid), c.state, str(len(c.held)), str(len(c.running()))]
        for c in supervisor.roster.children()
    ]
    lines = [["line", "pool", "steps", "has work", "paused"]]
    lines += [
        [f"{x.queue}/{x.kind}", x.pool, str(len(x.known)), str(x.has_work), str(x.paused)]
        for x in traffic.fetcher.lines.values()
    ]
    pools = [["pool", "wanted", "alone", "trouble"]]
    pools += [
        [name, str(c.processes_wanted), str(len(c.alone)), c.trouble or "-"]
        for name, c in traffic.crews.items()
    ]
    return [("supervisor", state), ("workers", children), ("lines", lines), ("pools", pools)]
