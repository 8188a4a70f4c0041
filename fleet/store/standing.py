"""How a claim stands, for when the answer to a write was lost.

``for update`` is the point: if the transaction in doubt is still open on the server, the row is
locked by it, and this waits until it has ended one way or the other.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, TypeAlias

from fleet.model import Claim, OwnerId
from fleet.store.executor import Executor

How: TypeAlias = Literal["held", "advanced", "over"]


class Standing(NamedTuple):
    """``held``: the write did not happen. ``advanced``: it did, and ``fence`` is ours now.

    ``over``: this claim has no say any more; the write happened, or a later claim owns the task.
    """

    how: How
    fence: int


_STANDING: Final = """
select t.fence, t.owner = $2::bigint as ours from fleet.task t where t.id = $1::bigint for update
"""


async def standing(conn: Executor, owner: OwnerId, claim: Claim) -> Standing:
    """Look how ``claim`` stands, waiting for whoever is about to change it."""
    rows = await conn.fetch(_STANDING, claim.id, owner)
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
