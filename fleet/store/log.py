"""``fleet.log``: who told the fleet what. Written by the functions that do it; here it is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import orjson

from fleet.store.executor import Executor, Row

# The newest of them, and those the oldest first.
_LINES: Final = """
select l.id, l.at, l.who, l.role, l.what, l.target, l.detail
  from (select n.id, n.at, n.who, n.role, n.what, n.target, n.detail::text as detail
          from fleet.log n
         where n.at >= $1::timestamptz
           and ($2::text is null or n.what like 'queue.%' and n.target = $2::text
                or n.detail ->> 'queue' = $2::text)
           and n.id <> all ($3::bigint[])
         order by n.at desc, n.id desc
         limit $4::int) l
 order by l.at, l.id
"""


@dataclass(frozen=True, slots=True)
class Line:
    """One thing that was said. ``who`` is by its own account, ``role`` by PostgreSQL's."""

    id: int
    at: datetime
    who: str
    role: str
    what: str
    target: str | None
    detail: dict[str, Any]


async def lines(
    executor: Executor,
    since: datetime,
    *,
    queue: str | None = None,
    but: Sequence[int] = (),
    limit: int = 1000,
) -> list[Line]:
    """Return the newest lines since a moment, the oldest of them first; none of ``but``."""
    found = await executor.fetch(_LINES, since, queue, list(but), limit)
    return [_line(row) for row in found]


def _line(row: Row) -> Line:
    number, at, who, role, what, target, detail = row
    return Line(number, at, who, role, what, target, orjson.loads(detail))
