"""The words of the design as types: plain values that every layer shares, with no behaviour."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, NamedTuple, NewType, TypeAlias

TaskId: TypeAlias = int
OwnerId = NewType("OwnerId", int)
Seconds: TypeAlias = float
Json: TypeAlias = str  # a JSON document as text: what goes to and comes from a jsonb column

LiveState: TypeAlias = Literal["ready", "running", "deferred", "waiting"]
State: TypeAlias = Literal[
    "ready", "running", "deferred", "waiting", "succeeded", "cancelled", "buried"
]
UniqueScope: TypeAlias = Literal["while_waiting", "while_live"]
OnRepeat: TypeAlias = Literal["keep", "replace", "push_back"]
BuryReason: TypeAlias = Literal["exhausted", "fatal", "undecodable", "poison", "unstorable"]
OnSuccess: TypeAlias = Literal["archive", "delete"]
OnFailure: TypeAlias = Literal["bury", "delete"]

MAX_PAYLOAD = 1_048_576  # bytes of JSON, for an input and for a result
MAX_KEY = 255  # characters of a key and of a unique name
MIN_PRIORITY, MAX_PRIORITY = -10_000, 10_000
DEFAULT_QUEUE = "default"
DEFAULT_PRIORITY = 0
DEFAULT_TIMEOUT: Seconds = 900.0
DEFAULT_KEEP: Seconds = 14 * 86_400.0
# Seconds. Whatever starts before the year 2090 and waits no longer than this ends before the
# year 10000, past which neither Python's datetime nor its drivers can go.
MAX_DELAY: Seconds = 7_900 * 365.25 * 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """One task to be enqueued, checked and encoded: everything its row will say.

    ``delay`` counts from the database's clock at the insert; ``at`` is an absolute time. At most
    one of them is given. With ``unique_for`` the name is taken for that long, and ``unique_scope``
    says nothing.
    """

    job: str
    step: str
    queue: str
    input: Json
    priority: int = 0
    delay: Seconds | None = None
    at: datetime | None = None
    key: str | None = None
    unique: str | None = None
    unique_scope: UniqueScope = "while_live"
    unique_for: Seconds | None = None
    on_repeat: OnRepeat = "keep"
    trace: str | None = None


class Claim(NamedTuple):
    """A task as its owner holds it: what a worker needs to run the current step.

    ``fence`` is the right to write: every statement that ends or moves the attempt names it. A
    tuple and not a dataclass: made for every claimed row, in the order of the claim's select list
    (0.5 µs instead of 3.4).
    """

    id: TaskId
    fence: int
    queue: str
    job: str
    step: str  # "" for a row enqueued from SQL for a job nobody had registered: its first step
    visit: int
    input: Json
    priority: int
    failures: int
    crashes: int
    losses: int
    releases: int
    prior: int
    alone: bool
    key: str | None
    trace: str | None
    enqueued_at: datetime
    ready_at: datetime
    rank: int
    pos: int

    @property
    def attempt(self) -> int:
        """1 on a step's first try; revivals go on counting, releases and snoozes do not count."""
        return 1 + self.prior + self.failures + self.crashes

    @property
    def idempotency_key(self) -> str:
        """Same for every attempt of this visit of this step, new when a loop comes back to it."""
        return f"{self.id}/{self.step}/{self.visit}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why an attempt did not succeed, as it is kept: type, message and traceback."""

    type: str
    message: str
    traceback: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the form that is stored as jsonb."""
        return {"type": self.type, "message": self.message, "traceback": self.traceback}
