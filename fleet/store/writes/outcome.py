"""One attempt's end, ready to be written."""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

from fleet.lifecycle import Transition
from fleet.model import Claim, Json, Seconds

T_co = TypeVar("T_co", bound=Transition, covariant=True)


class Outcome(NamedTuple, Generic[T_co]):
    """What became of a claim, who ran it, for how long, and what it enqueued."""

    claim: Claim
    transition: T_co
    worker: str
    took: Seconds
    keep: Seconds  # how long its history stays
    children: Json | None = None  # the argument of fleet.spawn
