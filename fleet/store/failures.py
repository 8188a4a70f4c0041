"""Which database errors are whose fault: the data's, the connection's, or nobody's (try again)."""

from __future__ import annotations

from typing import Final

import asyncpg

# Classes 22 (data exception), 23 (constraint), 54 (program limit): repeating the statement as it is
# can never succeed.
_REFUSALS: Final = ("22", "23", "54")
# 40001 serialization failure, 40P01 deadlock, 55P03 lock not available, 57014 cancelled by a
# timeout.
_PASSING: Final = frozenset({"40001", "40P01", "55P03", "57014"})
# 08 connection, 57P0x shutdown, crash, starting up; 53300 too many connections; 25006 a standby.
_CONNECTION: Final = frozenset({"57P01", "57P02", "57P03", "57P05", "53300", "25006"})


def sqlstate(error: BaseException) -> str | None:
    """Return the five characters of a PostgreSQL error, whichever driver raised it."""
    for candidate in (error, getattr(error, "orig", None), error.__cause__):
        state = getattr(candidate, "sqlstate", None) or getattr(candidate, "pgcode", None)
        if isinstance(state, str):
            return state
    return None


def is_refusal(error: BaseException) -> bool:
    """Tell whether the database refused the data: a batch can only be written without it."""
    state = sqlstate(error)
    if state is None:
        return isinstance(error, asyncpg.DataError)
    return state[:2] in _REFUSALS


def is_locked(error: BaseException) -> bool:
    """Tell whether a lock could not be had in time: only one of a batch may be in its way."""
    return sqlstate(error) == "55P03"


def is_passing(error: BaseException) -> bool:
    """Tell whether the same statement may well succeed a moment later."""
    return sqlstate(error) in _PASSING


def is_disconnect(error: BaseException) -> bool:
    """Tell whether the connection is of no use: broken, refused, or to a server that only reads."""
    # InternalClientError: asyncpg met the end of an idle connection in the middle of its protocol.
    broken = (OSError, TimeoutError, asyncpg.InterfaceError, asyncpg.InternalClientError)
    if isinstance(error, broken):
        return True
    state = sqlstate(error)
    return state is not None and (state[:2] == "08" or state in _CONNECTION)
