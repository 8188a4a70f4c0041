"""Claims and outcomes as they travel: short lists, in one place for both ends.

supervisor ─▶ worker   hello …   run [claims]   cancel [ids]   return [ids]   drain   ping n   stop
worker ─▶ supervisor   ready {…} failed {…}     done [outcomes] returned [ids] progress […] pong n
"""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Any, Final

from fleet.lifecycle import Advance, Bury, Cancel, Finish, PutBack, Transition
from fleet.model import Claim, Failure
from fleet.store.outcomes import Outcome

_TIMES: Final = (Claim._fields.index("enqueued_at"), Claim._fields.index("ready_at"))


def pack_claim(claim: Claim) -> tuple[Any, ...]:
    """Return a claim as orjson writes it."""
    return tuple(claim)


def unpack_claim(packed: list[Any]) -> Claim:
    """Read a claim."""
    for index in _TIMES:
        packed[index] = datetime.fromisoformat(packed[index])
    return Claim._make(packed)


def pack_outcome(outcome: Outcome[Transition], fence: int | None) -> list[Any]:
    """Return an outcome without its claim, which the supervisor has; ``fence`` if it is written."""
    claim = outcome.claim
    head = [claim.id, claim.fence, claim.step, fence, outcome.took, outcome.keep, outcome.children]
    match outcome.transition:
        case Finish(result, keep):
            return [*head, "finish", result, keep]
        case Advance(step, value, priority):
            return [*head, "advance", step, value, priority]
        case PutBack() as back:
            return [*head, "back", asdict(back)]
        case Bury() as bury:
            return [*head, "bury", asdict(bury)]
        case Cancel():
            return [*head, "cancel"]


def unpack_outcome(
    claim: Claim, packed: list[Any], worker: str
) -> tuple[Outcome[Transition], int | None]:
    """Read an outcome of ``claim``; the second value is its fence if it is written already."""
    _, _, step, fence, took, keep, children, kind, *rest = packed
    transition: Transition
    match kind:
        case "finish":
            transition = Finish(*rest)
        case "advance":
            transition = Advance(*rest)
        case "back":
            transition = PutBack(**_with_failure(rest[0]))
        case "bury":
            transition = Bury(**_with_failure(rest[0]))
        case "cancel":
            transition = Cancel()
        case _:
            raise ValueError(f"an outcome of kind {kind!r}")
    # A row enqueued from SQL may not have said its step; whoever ran it knows.
    claim = claim if claim.step else claim._replace(step=step)
    return Outcome(claim, transition, worker, took, keep, children), fence


def _with_failure(fields: dict[str, Any]) -> dict[str, Any]:
    error = fields.get("error")
    return fields | {"error": Failure(**error) if error else None}
