"""PostgreSQL's errors as ours: what the server refused, in its words, as the class to catch.

The SQL functions check for every language; their message says what is wrong and their hint what
would be right. Where the connection is the user's own, only what is about our call is translated;
the rest (their transaction is aborted, their connection broke) stays their driver's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import asyncpg

from fleet.errors import (
    DatabaseError,
    EnqueueError,
    FleetError,
    InvalidName,
    InvalidOption,
    NotEncodable,
    PayloadTooLarge,
    SchemaOutdated,
    UnknownJob,
)
from fleet.store.failures import sqlstate
from fleet.store.migrations import LATEST

_OURS: Final = re.compile(r"fleet\.\w+: ")  # which function says so
_MISSING: Final = frozenset({"3F000", "42883", "42P01"})  # schema, function, table


def translate(error: Exception) -> FleetError | None:
    """Return our error for a refusal of the server; None if it is about something else."""
    state = sqlstate(error)
    if state is None:
        # asyncpg itself could not encode a parameter: nothing was sent.
        return EnqueueError(str(error)) if isinstance(error, asyncpg.DataError) else None
    message, hint = _words(error)
    if (state in _MISSING and "fleet." in message) or state == "3F000":
        return SchemaOutdated(0, LATEST)
    if state == "42501":
        return DatabaseError(
            f"PostgreSQL refused: {message}. Run, as the owner of the schema: "
            f"fleet grant client ROLE (or app, for results; or worker, to tell queues what to do)"
        )
    kind = _kind(state, message)
    if kind is None:
        return None
    text = _OURS.sub("", message, count=1) + (f". {hint}" if hint else "")
    # These classes word their own message from parts; this one is worded already.
    ours = kind.__new__(kind, text)
    ours.args = (text,)
    return ours


def _kind(state: str, message: str) -> type[EnqueueError] | None:
    if _OURS.match(message):
        if state == "42704":
            return UnknownJob
        if "bytes of JSON" in message:
            return PayloadTooLarge
        return InvalidName if " name " in message else InvalidOption
    if state == "23514" and "fleet.payload" in message:
        return PayloadTooLarge
    if state in {"22P02", "22P05", "22021", "54000", "54001", "22032"}:
        return NotEncodable
    if state.startswith(("22", "23")):
        return InvalidOption
    return None


def _words(error: Exception) -> tuple[str, str | None]:
    """Find the server's message and hint: on the error, or on the driver's inside a wrapper."""
    wrapped = getattr(error, "orig", None)
    for candidate in (error, wrapped, getattr(wrapped, "__cause__", None), error.__cause__):
        diag = getattr(candidate, "diag", None)  # psycopg
        if diag is not None and diag.message_primary:
            return diag.message_primary, diag.message_hint
        message = getattr(candidate, "message", None)  # asyncpg
        if isinstance(message, str):
            return message, getattr(candidate, "hint", None)
    return str(error), None


@contextmanager
def refused() -> Iterator[None]:
    """Raise the server's refusals as ours, from the original; let everything else pass."""
    try:
        yield
    except FleetError:
        raise
    except Exception as error:
        ours = translate(error)
        if ours is None:
            raise
        raise ours from error
