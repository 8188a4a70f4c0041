"""How a claim stands, for when the answer to a write was lost.

The row is locked to be read: if the transaction in doubt is still open on the server, it holds that
lock, and what a snapshot shows is not the truth yet. Its end is waited for, but not for ever: where
the step itself left it open, nobody ends it. And by asking again, not in the server: an error for
the lock would break the transaction that we may be in ourselves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

from fleet.errors import FleetError
from fleet.model import Claim, OwnerId, Seconds
from fleet.store.anew import Anew
from fleet.store.executor import Executor, Row

How: TypeAlias = Literal["held", "advanced", "over"]

PATIENCE: Final[Seconds] = 1.0
_PAUSES: Final = (0.01, 0.1)  # the first, and the longest


class Undecided(FleetError):
    """A transaction that changes the task is still open: nobody can know yet how it stands."""

    def __init__(self, claim: Claim) -> None:
        super().__init__(
            f"task {claim.id}: a transaction that changes it is still open after {PATIENCE:g}s. "
            f"Commit it, roll it back, or close its connection."
        )


class Standing(NamedTuple):
    """``held``: the write did not happen. ``advanced``: it did, and ``fence`` is ours now.

    ``over``: this claim has no say any more; the write happened, or a later claim owns the task.
    """

    how: How
    fence: int


_STANDING: Final = """
with free as materialized (
    select t.fence, t.owner = $2::bigint as ours
      from fleet.task t where t.id = $1::bigint for update skip locked)
select f.fence, f.ours, f.fence is not null as free
  from fleet.task t left join free f on true
 where t.id = $1::bigint
"""


async def standing(conn: Executor, owner: OwnerId, claim: Claim) -> Standing:
    """Look how ``claim`` stands, waiting a moment for whoever is about to change it."""
    clock = asyncio.get_running_loop().time
    deadline = clock() + PATIENCE
    pause, longest = _PAUSES
    while True:
        rows = await Anew(conn).fetch(_STANDING, claim.id, owner)
        # Deleted since the snapshot looks locked as well, and the next look tells.
        if not rows or rows[0]["free"]:
            return _read(claim, rows)
        if clock() > deadline:
            raise Undecided(claim)
        await asyncio.sleep(pause)
        pause = min(2 * pause, longest)


def _read(claim: Claim, rows: Sequence[Row]) -> Standing:
    if rows and rows[0]["ours"]:
        if rows[0]["fence"] == claim.fence:
            return Standing("held", claim.fence)
        if rows[0]["fence"] == claim.fence + 1:
            # Only the owner itself moves the fence and stays the owner.
            return Standing("advanced", claim.fence + 1)
    return Standing("over", claim.fence)


_ENDED: Final = """
select exists (select from fleet.archive a where a.id = $1::bigint and a.fence = $2::bigint)
    or exists (select from fleet.buried b where b.id = $1::bigint and b.fence = $2::bigint) as ended
"""


async def ended(conn: Executor, claim: Claim) -> bool:
    """Tell whether it was this very claim that ended its task, as far as that is kept."""
    rows = await conn.fetch(_ENDED, claim.id, claim.fence)
    done: bool = rows[0]["ended"]
    return done
