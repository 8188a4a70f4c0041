"""The connection under a transactional step: how long to wait for it, and when it is gone."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from typing import Final, TypeAlias

import asyncpg

from fleet.model import Seconds
from fleet.store.failures import is_disconnect

_log: Final = logging.getLogger("fleet.worker")

# More than any write takes that is served: one that is given up here only runs again.
ANSWER: Final[Seconds] = 10.0
ROLLBACK: Final[Seconds] = 5.0
DATABASE_ERRORS: Final = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
)

_Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"


@contextlib.contextmanager
def answered(conn: _Connection) -> Iterator[None]:
    """Hang up on a server that gives no answer, so that what waits for it meets a broken line.

    A cancellation would not do: asyncpg passes it on, and a COMMIT that waits for its standby
    would then do without.
    """

    def hang_up() -> None:
        _log.warning("no answer from PostgreSQL for %gs: the connection is given up", ANSWER)
        with contextlib.suppress(asyncpg.InterfaceError):  # its pool was faster
            conn.terminate()

    timer = asyncio.get_running_loop().call_later(ANSWER, hang_up)
    try:
        yield
    finally:
        timer.cancel()


async def roll_back(conn: _Connection, transaction: asyncpg.transaction.Transaction) -> bool:
    """Undo what was done, whatever it takes; True if the database turns out to be gone."""
    try:
        async with asyncio.timeout(ROLLBACK):
            await transaction.rollback()
    except DATABASE_ERRORS as error:
        gone = is_gone(conn) or hung_up(error)
        if not is_gone(conn):
            conn.terminate()  # the step left it in no state for anybody else
        return gone
    return False


def is_gone(conn: _Connection) -> bool:
    """Tell whether the connection is known to be closed."""
    try:
        return conn.is_closed()
    except asyncpg.InterfaceError:
        return True  # its pool has noticed, and taken it back


def hung_up(error: BaseException) -> bool:
    """Tell whether an error means that the server is not there any more."""
    # asyncpg's own errors are about the use of a connection that may be whole.
    return is_disconnect(error) and not isinstance(error, asyncpg.InterfaceError)


def for_the_connection(error: BaseException | None) -> bool:
    """Tell whether a lost connection is why the step raised, perhaps in words of its own."""
    while error is not None:
        if is_disconnect(error):
            return True
        error = error.__cause__ or error.__context__
    return False
