"""The children of one pool: how many there should be, who gets what, and when one is started again.

Restarts back off: at once after the first death in a row, then 0.1 s, doubling up to 30 s (half a
second for one that had booted); a step that ends, or a child that lived for a while, starts the
count anew. A pool whose children die again and again, or cannot load the
application, is *unhealthy*: it goes on trying, says why, and the other pools never notice.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from fleet.model import Claim, Seconds
from supervisor.child import Child
from supervisor.lines import Kind
from supervisor.plan import Pool

LONG_ENOUGH: Final[Seconds] = 10.0
UNHEALTHY_AFTER: Final = 3
LONGEST_PAUSE: Final[Seconds] = 30.0
LONGEST_AFTER_BOOT: Final[Seconds] = 0.5


@dataclass(slots=True)
class Crew:
    """One pool of worker processes."""

    pool: Pool
    children: list[Child] = field(default_factory=list)
    alone: deque[Claim] = field(default_factory=deque)  # suspects: each waits for an idle child
    starting: int = 0
    deaths: int = 0  # in a row
    cannot_boot: bool = False  # the last one died before it was ready
    trouble: str | None = None  # why it is unhealthy
    numbers: int = 0
    processes_wanted: int = 0

    # ── restarts ────────────────────────────────────────────────────────────────────────────────

    @property
    def missing(self) -> int:
        """How many children to start."""
        alive = [c for c in self.children if c.state in ("booting", "ready")]
        return max(0, self.processes_wanted - len(alive) - self.starting)

    @property
    def settled(self) -> bool:
        """Whether all its children are ready, or it is known why they are not."""
        ready = sum(child.state == "ready" for child in self.children)
        return self.trouble is not None or ready >= self.processes_wanted

    @property
    def surplus(self) -> list[Child]:
        """Children to retire: the idle ones first."""
        alive = [c for c in self.children if c.state in ("booting", "ready")]
        return sorted(alive, key=lambda c: len(c.held))[
            : max(0, len(alive) - self.processes_wanted)
        ]

    def died(self, child: Child, told: str | None) -> Seconds:
        """Take note of a death that was not wanted; return how long to wait before a restart."""
        if time.monotonic() - child.started_at > LONG_ENOUGH:
            self.deaths = 0
        self.deaths += 1
        self.cannot_boot = not child.booted
        if self.deaths >= UNHEALTHY_AFTER or told:
            self.trouble = told or f"{self.deaths} workers died in a row"
        # The first restart is at once: its tasks are to run again within a second. A step that
        # ends its process is stopped by its own budget, and others wait behind it.
        longest = LONGEST_AFTER_BOOT if child.booted else LONGEST_PAUSE
        return 0.0 if self.deaths == 1 else min(0.1 * 2.0 ** min(self.deaths - 2, 20), longest)

    def booted(self) -> None:
        """A child is ready; if that was the trouble, it is over."""
        if self.cannot_boot or not self.deaths:
            self.recovered()

    def recovered(self) -> None:
        """A step has ended well here: whatever was wrong is over."""
        self.deaths = 0
        self.trouble = None
        self.cannot_boot = False

    # ── slots ───────────────────────────────────────────────────────────────────────────────────

    @property
    def slots(self) -> int:
        """How many ``async def`` steps the ready children can run at once."""
        return sum(c.orders.concurrency for c in self.children if c.state == "ready")

    def takers(self, kind: Kind) -> list[Child]:
        """Return who may be given tasks of a kind, to start now or next."""
        ready = [c for c in self.children if c.takes_work and not c.exclusive]
        # Behind a def step an async one would wait for the whole of it.
        return ready if kind == "def" else [c for c in ready if not c.kept and not c.solo]

    def free(self, kind: Kind) -> int:
        """How many more tasks of a kind can start at once."""
        if kind == "def":
            return sum(1 for c in self.takers(kind) if not c.held)
        return sum(max(0, c.orders.concurrency - len(c.held)) for c in self.takers(kind))

    @property
    def backlog(self) -> int:
        """How many tasks wait here for a slot."""
        return sum(max(0, len(c.held) - c.orders.concurrency) for c in self.children)

    def holds(self, queue: str) -> int:
        """How many tasks of a queue are in its children's hands."""
        return sum(h.claim.queue == queue for c in self.children for h in c.held.values())

    def busy_with(self, queue: str) -> int:
        """How many children run, or are kept for, a def step; of this queue, as far as we know."""
        return sum(
            c.kept or (c.solo and next(iter(c.held.values())).claim.queue == queue)
            for c in self.children
        )

    @property
    def can_keep(self) -> Child | None:
        """Who could become idle for a def step: one at a time, and never the last for others."""
        ready = [c for c in self.children if c.takes_work and not (c.exclusive or c.solo)]
        if any(c.kept for c in self.children) or len(ready) < min(2, len(self.children)):
            return None
        return min(ready, key=lambda c: len(c.held), default=None)

    def keep_one(self) -> bool:
        """Have the least busy child become idle, for a def step: others would never let it."""
        least = self.can_keep
        if least is not None:
            least.kept = True
            least.take_back(time.monotonic())
        return least is not None

    def keep_none(self) -> None:
        """Nobody has a def step to run: children that were kept for one are free again."""
        for child in self.children:
            child.kept = False

    def hand_out(self, claims: Iterable[Claim], kind: Kind) -> list[Claim]:
        """Give tasks to children; return those that nobody can take."""
        shared = []
        for claim in claims:
            if claim.alone:
                self.alone.append(claim)
            else:
                shared.append(claim)
        self.serve_suspects()
        ready = self.takers(kind)
        if not ready:
            return shared
        if kind == "def":
            self._one_each(shared, ready)
        else:
            self._evenly(shared, ready)
        return []

    def _one_each(self, claims: list[Claim], ready: list[Child]) -> None:
        batches: dict[Child, list[Claim]] = {child: [] for child in ready}
        for claim in claims:
            least = min(ready, key=lambda c: len(c.held) + len(batches[c]))
            batches[least].append(claim)
            least.kept = False
        self._send(batches, "def")

    def _evenly(self, claims: list[Claim], ready: list[Child]) -> None:
        """Fill the free slots first, then share what is ahead of them."""
        batches: dict[Child, list[Claim]] = {child: [] for child in ready}
        waiting = deque(claims)
        for child in sorted(ready, key=lambda c: len(c.held)):
            room = max(0, child.orders.concurrency - len(child.held))
            share = min(room, -(-len(claims) // len(ready)))
            batches[child] += [waiting.popleft() for _ in range(min(share, len(waiting)))]
        each = -(-len(waiting) // len(ready)) if waiting else 0
        for child in ready:
            batches[child] += [waiting.popleft() for _ in range(min(each, len(waiting)))]
        self._send(batches, "async")

    def serve_suspects(self) -> None:
        """Give each suspect an idle child of its own; if there is none, have one become idle."""
        for child in self.children:
            if child.exclusive and not child.held:
                child.exclusive = False
        while self.alone:
            ready = [c for c in self.children if c.takes_work and not c.exclusive]
            idle = next((c for c in ready if not c.held), None)
            if idle is None:
                if ready and not any(c.exclusive for c in self.children):
                    least = min(ready, key=lambda c: len(c.held))
                    least.exclusive = True
                    least.take_back(time.monotonic())
                return
            claim = self.alone.popleft()
            idle.exclusive = True
            idle.kept = False
            idle.run([claim], "async")

    @staticmethod
    def _send(batches: dict[Child, list[Claim]], kind: Kind) -> None:
        for child, batch in batches.items():
            if batch:
                child.run(batch, kind)
