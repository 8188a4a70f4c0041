"""The settings as values. Each key's bounds are checked where it is read; here, what fits together.

Nothing in here knows where a value came from: a combination that cannot work is refused by its
key, and ``run_settings`` adds which variable or flag said it.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from fleet import policy
from fleet.config import DatabaseUrl, Rate
from fleet.errors import ConfigError
from fleet.model import Seconds
from fleet.schedule import StaleSchedules

Balance: TypeAlias = Literal["fair", "strict"]


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen. Port 0 is any free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def loopback(self) -> bool:
        """Whether only this host can reach it; of a name that must be looked up, nobody knows."""
        ip = self._ip()
        return self.host == "localhost" if ip is None else ip.is_loopback

    def clashes(self, other: Address) -> bool:
        """Whether the two cannot be listened on at once."""
        if self.port != other.port or self.port == 0:
            return False
        return self.host == other.host or self._everywhere() or other._everywhere()

    def _everywhere(self) -> bool:
        ip = self._ip()
        return ip is not None and ip.is_unspecified

    def _ip(self) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
        try:
            return ipaddress.ip_address(self.host)
        except ValueError:
            return None


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorSettings:
    """``[supervisor]``: the host's own behaviour and the shared pool."""

    processes: int | Literal["auto"] = "auto"  # of the shared pool; 0: there is none
    concurrency: int = 10
    max_memory: int | None = None  # bytes; this and max_tasks of a worker, in any pool
    max_tasks: int | None = None
    lease: Seconds = 15.0
    drain_timeout: Seconds = 25.0
    balance: Balance = "fair"
    http: Address | None = Address("127.0.0.1", 8787)
    console: Address | None = Address("127.0.0.1", 8788)
    console_token: str | None = field(default=None, repr=False)
    listen_url: DatabaseUrl | None = None  # past a pooler that swallows LISTEN
    preload: bool = True
    stale_schedules: StaleSchedules = "stale"
    boot_timeout: Seconds = 60.0

    def __post_init__(self) -> None:
        if self.console is None:
            return
        if not self.console.loopback and self.console_token is None:
            raise ConfigError(
                "supervisor.console",
                str(self.console),
                "others could control this fleet from there: bind it to 127.0.0.1, or set a "
                "token with FLEET_SUPERVISOR_CONSOLE_TOKEN",
            )
        if self.http is not None and self.console.clashes(self.http):
            raise ConfigError(
                "supervisor.console", str(self.console), "supervisor.http listens there already"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSettings:
    """``[fetch]``: how the database is asked for work."""

    empty_delay: Seconds = 1.0  # the beat
    error_delay: Seconds = 5.0
    batch: int = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings:
    """``[queues.NAME]``. With ``processes`` it is dedicated; without, the shared pool serves it."""

    name: str
    weight: float = 1.0
    processes: int | None = None
    concurrency: int | None = None  # this and the next two: None is as [supervisor] says
    max_memory: int | None = None
    max_tasks: int | None = None
    limit: int | None = None
    rate: Rate | None = None
    policy: policy.Settings = field(default_factory=policy.Settings)

    @property
    def dedicated(self) -> bool:
        """Whether it has worker processes of its own."""
        return self.processes is not None

    def __post_init__(self) -> None:
        if not self.dedicated:
            self._check_shared()
        elif self.name == "shared":
            raise ConfigError(
                "queues.shared.processes",
                self.processes,
                "the common pool is called shared: give this queue another name",
            )

    def _check_shared(self) -> None:
        # A worker of the shared pool serves every shared queue, so none of them can say when it
        # is to be recycled or how much it runs at once.
        for key in ("concurrency", "max_memory", "max_tasks"):
            if (value := getattr(self, key)) is not None:
                cap = " (limit caps a shared queue)" if key == "concurrency" else ""
                raise ConfigError(
                    f"queues.{self.name}.{key}",
                    value,
                    f"belongs to worker processes, and this queue is shared: give it processes "
                    f"of its own, or set supervisor.{key}{cap}",
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetrySettings:
    """``[telemetry]``: what the ``OTEL_*`` variables have no word for."""

    supervisor_sample: float = 0.01  # of the supervisor's own spans; tasks follow their producer
    flush_timeout: Seconds = 1.0  # the most that a collector that is away may delay an exit


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """Everything ``fleet run`` goes by; the queues in the order of the file."""

    supervisor: SupervisorSettings = field(default_factory=SupervisorSettings)
    fetch: FetchSettings = field(default_factory=FetchSettings)
    queues: tuple[QueueSettings, ...] = ()
    telemetry: TelemetrySettings = field(default_factory=TelemetrySettings)
    defaults: policy.Settings = field(default_factory=policy.Settings)

    def __post_init__(self) -> None:
        lease, beat = self.supervisor.lease, self.fetch.empty_delay
        # The slack is for 3 × 0.1 s, which is more than 0.3 s in binary.
        if lease < 3 * beat * (1 - 1e-9):
            raise ConfigError(
                "supervisor.lease",
                lease,
                f"at least three beats must fit in it: {3 * beat:g}s or more, "
                f"or a fetch.empty_delay below {beat:g}s",
            )
        if self.supervisor.balance == "strict":
            self._check_strict()

    def _check_strict(self) -> None:
        for queue in self.queues:
            if queue.weight != 1:
                raise ConfigError(
                    f"queues.{queue.name}.weight",
                    queue.weight,
                    'means nothing under supervisor.balance = "strict", which serves the shared '
                    'queues in the order of the file: take it away, or say balance = "fair"',
                )

    def policy_layers(self, queue: str) -> tuple[policy.Settings, policy.Settings]:
        """Return what stands below a job's own settings in ``queue``, the strongest first."""
        own = (each.policy for each in self.queues if each.name == queue)
        return next(own, policy.Settings()), self.defaults
