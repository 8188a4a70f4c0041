"""What Prometheus is told: counted where it happens, put together when somebody asks.

Counts are this host's; the depths are the fleet's, and the same from every host. They come from a
query that is made only when somebody scrapes, every ten seconds at the most, and no sooner than
twenty times its own duration: on a database with millions of live tasks it must not be a burden.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from fleet.model import Seconds
from fleet.store.depths import Depth, depths
from supervisor.link import Door, Link
from supervisor.supervisor import Supervisor
from supervisor.tally import Tally

FRESH: Final[Seconds] = 10.0
PATIENCE: Final = 20
STATES: Final = ("ready", "deferred", "waiting", "running")
_WORDS: Final = {
    "advance": "next",
    "finish": "succeeded",
    "bury": "buried",
    "cancel": "cancelled",
}


class Metrics:
    """A collector with a registry of its own, so that nothing but Fleet's metrics is in it."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._link = Link(supervisor.site.url, "metrics", Door(), timeout=5.0)
        self._depths: list[Depth] = []
        self._fresh_until = 0.0
        self._counting = asyncio.Lock()
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    async def text(self) -> tuple[bytes, str]:
        """Return the metrics as Prometheus reads them, and the type of that."""
        async with self._counting:
            if time.monotonic() >= self._fresh_until:
                await self._count()
        return generate_latest(self._registry), CONTENT_TYPE_LATEST

    async def _count(self) -> None:
        began = time.monotonic()
        try:
            self._depths = await depths(self._link)
        except Exception:
            # Without the database there are no depths, rather than old ones; the rest is ours.
            self._depths = []
        # A connection that is needed every ten seconds need not be held for the other ten.
        self._link.drop()
        took = time.monotonic() - began
        self._fresh_until = time.monotonic() + max(FRESH, PATIENCE * took)

    def close(self) -> None:
        """Let the connection go."""
        self._link.drop()

    # ── the metrics ─────────────────────────────────────────────────────────────────────────────

    def collect(self) -> Iterable[Metric]:
        """Return every metric."""
        yield from self._of_queues()
        yield from self._of_tasks()
        yield from self._of_workers()
        yield from self._of_the_host()

    def _of_queues(self) -> Iterator[Metric]:
        for state in STATES:
            depth = GaugeMetricFamily(
                f"fleet_queue_{state}",
                f"Tasks that are {state}, in the whole fleet.",
                None,
                ["queue"],
            )
            for each in self._depths:
                if each.state == state:
                    depth.add_metric([each.queue], each.tasks)
            yield depth
        oldest = GaugeMetricFamily(
            "fleet_queue_oldest_ready_seconds",
            "For how long the oldest ready task has waited, in the whole fleet.",
            None,
            ["queue"],
        )
        for each in self._depths:
            if each.state == "ready":
                oldest.add_metric([each.queue], each.oldest)
        yield oldest

    def _of_tasks(self) -> Iterator[Metric]:
        traffic = self._supervisor.traffic
        yield _counter("fleet_claimed", "Tasks claimed by this host.", traffic.fetcher.claimed)
        ended = CounterMetricFamily(
            "fleet_finished", "Attempts by what became of them.", None, ["queue", "outcome"]
        )
        for (queue, word), n in traffic.outcomes.items():
            ended.add_metric([queue, _WORDS.get(word, word)], n)
        yield ended
        released = Counter(
            {q: n for (q, word), n in traffic.outcomes.items() if word == "released"}
        )
        yield _counter("fleet_releases", "Steps cut off and put back at no cost.", released)
        yield _counter(
            "fleet_lease_losses", "Outcomes that came too late to count.", traffic.finisher.lost
        )
        yield _histogram("fleet_step_duration_seconds", "How long steps took.", traffic.steps)
        yield _histogram("fleet_wait_seconds", "From ready to claimed.", traffic.waits)

    def _of_workers(self) -> Iterator[Metric]:
        workers = GaugeMetricFamily(
            "fleet_workers", "Worker processes by pool and state.", None, ["pool", "state"]
        )
        running = GaugeMetricFamily("fleet_running", "Steps under way here.", None, ["pool"])
        free = GaugeMetricFamily(
            "fleet_free_slots", "How many more async steps could start here.", None, ["pool"]
        )
        sick = GaugeMetricFamily(
            "fleet_pool_unhealthy", "1: its workers die or cannot start.", None, ["pool"]
        )
        for name, crew in self._supervisor.traffic.crews.items():
            states = Counter(child.state for child in crew.children)
            for state in ("booting", "ready", "retiring"):
                workers.add_metric([name, state], states[state])
            alive = [child for child in crew.children if child.state != "dead"]
            running.add_metric([name], sum(len(child.running()) for child in alive))
            free.add_metric([name], crew.free("async"))
            sick.add_metric([name], float(crew.trouble is not None))
        restarts = CounterMetricFamily(
            "fleet_worker_restarts", "Workers that ended unwanted, by cause.", None, ["cause"]
        )
        for cause, n in self._supervisor.roster.restarts.items():
            restarts.add_metric([cause], n)
        yield from (workers, running, free, sick, restarts)

    def _of_the_host(self) -> Iterator[Metric]:
        supervisor = self._supervisor
        for name, told, value in (
            (
                "fleet_listening",
                "1: NOTIFY arrives; 0: by the beat alone.",
                supervisor.listener.hears,
            ),
            ("fleet_draining", "1: it claims no more.", supervisor.state == "draining"),
            ("fleet_lease_left_seconds", "Until workers are stopped.", supervisor.heart.time_left),
        ):
            yield GaugeMetricFamily(name, told, float(value))


def _counter(name: str, told: str, counts: Counter[str]) -> Metric:
    metric = CounterMetricFamily(name, told, None, ["queue"])
    for queue, n in counts.items():
        metric.add_metric([queue], n)
    return metric


def _histogram(name: str, told: str, tally: Tally) -> Metric:
    metric = HistogramMetricFamily(name, told, labels=["queue"])
    for queue, buckets, total in tally:
        metric.add_metric([queue], buckets, total)
    return metric
