"""What Prometheus is told: counted where it happens, put together when somebody asks."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from supervisor.supervisor import Supervisor


class Metrics:
    """A collector with a registry of its own, so that nothing but Fleet's metrics is in it."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    async def text(self) -> tuple[bytes, str]:
        """Return the metrics as Prometheus reads them, and the type of that."""
        return generate_latest(self._registry), CONTENT_TYPE_LATEST

    def close(self) -> None:
        """Let the connection go."""

    def collect(self) -> Iterable[Metric]:
        """Return every metric."""
        return []
