"""Our statements in other drivers' words.

The store writes ``$1::type``, which asyncpg takes as it is. psycopg wants ``%(p1)s``; SQLAlchemy's
``text()`` wants ``:p1``, and reads ``:p1::type`` wrongly, so that the first cast becomes
``cast(:p1 as type)``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, TypeAlias

Style: TypeAlias = Literal["asyncpg", "psycopg", "named"]
Params: TypeAlias = tuple[Any, ...] | dict[str, Any]

# A type may be schema.name and may end in []; one cast is taken, a second one stays behind it.
_PARAMETER: Final = re.compile(r"\$(\d+)(?:::([a-z_][a-z0-9_.]*(?:\[\])?))?")
# What text() would take for a parameter: a colon before a name, alone, not part of a ``::``.
_STRAY_COLON: Final = re.compile(r"(?<![:\\]):(?=\w)")


def render(
    sql: str, args: Sequence[Any], style: Style, names: Sequence[str] | None = None
) -> tuple[str, Params]:
    """Return the statement and its parameters as a driver of that style takes them.

    >>> render("select $1::int % 2", [5], "psycopg")
    ('select %(p1)s::int %% 2', {'p1': 5})
    >>> render("select $1::text::jsonb", ["{}"], "named", ["input"])
    ('select cast(:input as text)::jsonb', {'input': '{}'})
    """
    if style == "asyncpg":
        return sql, tuple(args)
    names = names or [f"p{number}" for number in range(1, len(args) + 1)]
    params = dict(zip(names, args, strict=True))
    place, escape = _WORDS[style]
    parts, end = [], 0
    for found in _PARAMETER.finditer(sql):
        parts += [escape(sql[end : found.start()]), place(names[int(found[1]) - 1], found[2])]
        end = found.end()
    return "".join(parts) + escape(sql[end:]), params


def _psycopg(name: str, cast: str | None) -> str:
    return f"%({name})s::{cast}" if cast else f"%({name})s"


def _named(name: str, cast: str | None) -> str:
    return f"cast(:{name} as {cast})" if cast else f":{name}"


_WORDS: Final[dict[str, tuple[Callable[[str, str | None], str], Callable[[str], str]]]] = {
    "psycopg": (_psycopg, lambda text: text.replace("%", "%%")),
    "named": (_named, lambda text: _STRAY_COLON.sub(r"\\:", text)),
}
