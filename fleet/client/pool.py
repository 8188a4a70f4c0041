"""A few connections with a budget: within five seconds a call is carried out, or says why not.

Before anything was sent, a lost or refused connection is nobody's business: the call tries again,
quietly, until the budget is spent. Once a statement is under way, a connection that breaks leaves
it in doubt, and only the caller can know whether a repeat is safe.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias, TypeVar

import asyncpg
from tenacity import AsyncRetrying, retry_if_exception_type, wait_exponential

from fleet.client.refusals import translate
from fleet.config import mask
from fleet.errors import DatabaseError, DatabaseUnavailable, FleetError, NotOpen
from fleet.model import Seconds
from fleet.store.executor import OWN
from fleet.store.failures import is_disconnect, is_passing, is_refusal, sqlstate

T = TypeVar("T")
# What create_pool makes; a proxy of a connection has every method of one.
Connection: TypeAlias = Any
Act: TypeAlias = Callable[[Connection], Awaitable[T]]

_log = logging.getLogger("fleet.client")

BUDGET: Final[Seconds] = 5.0
# Tries of a call while the database is away: at 0, 0.1, 0.3, 0.7 s, then two a second.
_BACKOFF: Final = wait_exponential(multiplier=0.1, max=0.5)
_GOODBYE: Final[Seconds] = 2.0

# A plan made for an empty table stays cached while the table fills, and then reads all of it for
# every task awaited. Before version 18 a scan that is off but the only way looks so expensive
# that the server compiles the statement first: 5 ms, each time.
_SETTINGS: Final = {
    "application_name": "fleet client",
    "enable_seqscan": "off",
    "jit": "off",
    **OWN,
}
# 26000 and 42P05: a prepared statement is missing, or there already, because a pooler in
# transaction mode gave us another server.
_POOLER: Final = frozenset({"26000", "42P05"})
# asyncpg's own errors: it noticed before it sent anything. The second is how it says that the
# server ended the connection while nobody used it.
_UNSENT: Final = (asyncpg.InterfaceError, asyncpg.InternalClientError)
# The server said itself that it aborted: it was told to end the connection, or cannot write.
_ABORTED: Final = frozenset({"57P01", "57P05", "25006"})
# No second try within five seconds would change these: password, database, role, TLS.
_HOPELESS: Final = (
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
    asyncpg.InsufficientPrivilegeError,
    asyncpg.ClientConfigurationError,
)


class _NotDone(Exception):
    """Nothing was written: the same call may be tried again."""


class ConnectionsBusy(DatabaseUnavailable):
    """Other calls of this client had all of its connections until the time was over."""

    def __init__(self, size: int) -> None:
        self.in_doubt = False
        Exception.__init__(
            self,
            f"all {size} connections of this client are busy with other calls, and none came free "
            f"in time: nothing was sent. Make fewer calls at once and enqueue_many smaller, or "
            f"give enqueue_many a connection of your own (conn=), and try again.",
        )


class Database(ABC):
    """Carries calls out on some connection to one database."""

    def __init__(self, url: str, budget: Seconds = BUDGET) -> None:
        self._url = url
        self._budget = budget
        self._behind_pooler = False
        self._closed = False

    @abstractmethod
    async def _take(self, timeout: Seconds) -> Connection: ...
    @abstractmethod
    async def _give_back(self, conn: Connection) -> None: ...
    @abstractmethod
    async def _expire(self) -> None:
        """See that no connection that is open now is taken again."""

    async def run(
        self, act: Act[T], *, repeatable: bool = False, within: Seconds | None = None
    ) -> T:
        """Carry ``act`` out on a connection; ``repeatable`` if doing it twice does no harm.

        What the server refuses for its data is raised as it came, so that a batch can be halved.
        """
        budget = self._budget if within is None else within
        deadline = asyncio.get_running_loop().time() + budget
        try:
            return await self._attempt(act, deadline, repeatable)
        except _NotDone as error:
            if asyncio.get_running_loop().time() >= deadline:
                raise self._unavailable(error.__cause__ or error) from error.__cause__
            return await self._again(act, deadline, repeatable)

    async def _again(self, act: Act[T], deadline: Seconds, repeatable: bool) -> T:
        # Apart from the first attempt, which is nearly always the only one: tenacity costs 40 µs.
        clock = asyncio.get_running_loop().time
        retrying = AsyncRetrying(
            retry=retry_if_exception_type(_NotDone),
            wait=_BACKOFF,
            stop=lambda call: clock() + call.upcoming_sleep >= deadline,
            reraise=True,
        )
        try:
            return await retrying(self._attempt, act, deadline, repeatable)
        except _NotDone as error:
            raise self._unavailable(error.__cause__ or error) from error.__cause__

    async def _attempt(self, act: Act[T], deadline: Seconds, repeatable: bool) -> T:
        conn = await self._acquire(deadline)
        try:
            # What may not be repeated is not cut off: a large enqueue_many takes its time, and each
            # of its statements has a limit.
            async with asyncio.timeout_at(deadline if repeatable else None):
                return await act(conn)
        except FleetError:
            raise
        except Exception as error:
            if is_refusal(error):
                raise
            raise await self._explain(conn, error, repeatable) from error
        finally:
            with contextlib.suppress(OSError, TimeoutError, asyncpg.InterfaceError):
                await self._give_back(conn)

    async def _acquire(self, deadline: Seconds) -> Connection:
        left = deadline - asyncio.get_running_loop().time()
        if self._closed:
            raise NotOpen
        try:
            return await self._take(max(left, 0.05))
        except ConnectionsBusy:
            raise
        except _HOPELESS as error:
            raise self._unavailable(error) from error
        except Exception as error:
            if self._closed:
                raise NotOpen from error
            if await self._is_pooler(error) or is_disconnect(error):
                raise _NotDone from error
            raise self._unavailable(error) from error

    async def _explain(self, conn: Connection, error: Exception, repeatable: bool) -> Exception:
        """Decide what an error under a statement means for the call."""
        if is_passing(error) or await self._is_pooler(error):
            return _NotDone()
        unsent = isinstance(error, _UNSENT)
        if unsent or is_disconnect(error):
            # close() would wait for the answer of a server that may be gone.
            conn.terminate()
            if unsent or repeatable or _aborted(error):
                return _NotDone()
            return self._unavailable(error, in_doubt=True)
        return translate(error) or DatabaseError(f"PostgreSQL at {mask(self._url)}: {error}")

    async def _is_pooler(self, error: Exception) -> bool:
        if sqlstate(error) not in _POOLER and "startup parameter" not in str(error):
            return False
        if not self._behind_pooler:
            _log.warning(
                "PostgreSQL at %s is behind a pooler in transaction mode (%s): preparing nothing "
                "from now on, which costs a round trip a statement",
                mask(self._url),
                error,
            )
            self._behind_pooler = True
            await self._expire()
        return True

    async def _connect(self, *args: Any, **options: Any) -> Any:
        plain = {"application_name": _SETTINGS["application_name"]}
        return await asyncpg.connect(
            *args,
            **options,
            timeout=self._budget,
            command_timeout=self._budget,
            statement_cache_size=0 if self._behind_pooler else 100,
            server_settings=plain if self._behind_pooler else _SETTINGS,
        )

    def _unavailable(self, error: BaseException, *, in_doubt: bool = False) -> DatabaseUnavailable:
        cause = str(error) or f"no reply within {self._budget:g}s"
        return DatabaseUnavailable(mask(self._url), cause.rstrip("."), in_doubt=in_doubt)


class Pool(Database):
    """At most ``size`` connections, opened when they are first needed."""

    def __init__(self, url: str, *, size: int, budget: Seconds = BUDGET) -> None:
        super().__init__(url, budget)
        self._size = size
        self._taken = 0
        # No session state is ever left behind, so the round trip to reset it is saved.
        self._pool = asyncpg.create_pool(
            url, min_size=0, max_size=size, connect=self._connect, reset=_nothing
        )

    async def open(self) -> None:
        """Get ready; no connection is made yet."""
        await self._pool

    async def close(self) -> None:
        """Close all connections; those that do not close in time are dropped."""
        self._closed = True
        try:
            async with asyncio.timeout(_GOODBYE):
                await self._pool.close()
        except (TimeoutError, OSError, asyncpg.InterfaceError):
            self._pool.terminate()

    async def _take(self, timeout: Seconds) -> Connection:
        try:
            conn = await self._pool.acquire(timeout=timeout)
        except TimeoutError as error:
            # Otherwise one was free, and could not connect.
            if self._taken >= self._size:
                raise ConnectionsBusy(self._size) from error
            raise
        self._taken += 1
        return conn

    async def _give_back(self, conn: Connection) -> None:
        self._taken -= 1
        await self._pool.release(conn)

    async def _expire(self) -> None:
        await self._pool.expire_connections()


class Line(Database):
    """One connection, kept at hand for one caller at a time: a pool's bookkeeping takes 60 µs."""

    def __init__(self, url: str, budget: Seconds = BUDGET) -> None:
        super().__init__(url, budget)
        self._conn: Connection = None

    async def close(self) -> None:
        """Close the connection; drop it if that takes long."""
        self._closed = True
        await self._expire()

    async def _take(self, timeout: Seconds) -> Connection:
        if self._conn is None or self._conn.is_closed():
            async with asyncio.timeout(timeout):
                self._conn = await self._connect(self._url)
        return self._conn

    async def _give_back(self, conn: Connection) -> None:
        """Keep it."""

    async def _expire(self) -> None:
        if self._conn is not None:
            with contextlib.suppress(TimeoutError, OSError, asyncpg.InterfaceError):
                await self._conn.close(timeout=_GOODBYE)  # terminates when the time is over


def _aborted(error: Exception) -> bool:
    # What the server said last is the cause of asyncpg's "closed in the middle of operation".
    return any(cause and sqlstate(cause) in _ABORTED for cause in (error, error.__cause__))


async def _nothing(_: object) -> None:
    return
