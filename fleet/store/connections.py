"""The user's own connection, of whatever driver, as an ``Executor``.

A statement runs through that very object, so that it commits and rolls back with what else the user
does on it. Drivers are recognised by the names of their classes and never imported for it: whoever
has an object of psycopg has imported psycopg.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Sequence
from functools import cache
from typing import Any, Final, NamedTuple, TypeVar

from fleet.errors import InvalidOption
from fleet.store.dialect import render
from fleet.store.executor import Executor, Row

T = TypeVar("T")

TAKEN: Final = (
    "a connection of asyncpg or psycopg 3 (sync or async), a Connection, Session, AsyncConnection "
    "or AsyncSession of SQLAlchemy, or a connection of Django"
)
_OPEN_ONE: Final = (
    "it is outside a transaction, so that the task could not commit or roll back with your "
    "writes. Open one ({how}), or leave conn= out"
)


class Kind(NamedTuple):
    """What is known about a driver's class: how to execute, and whether that blocks."""

    adapt: Callable[[Any], Executor]
    sync: bool


def executor_for(conn: object) -> Executor:
    """Return what runs our statements on ``conn``; refuse what cannot be atomic with the user's."""
    return _kind_of(conn).adapt(conn)


def is_sync(conn: object) -> bool:
    """Tell whether ``conn`` executes by blocking, so that it serves without an event loop too."""
    return _kind_of(conn).sync


def is_django(conn: object) -> bool:
    """Tell whether ``conn`` is Django's, which must not be used where an event loop runs."""
    return _kind_of(conn).adapt is _Django


def at_once(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine over a connection that blocks, which never waits for anything, to its end."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        value: T = end.value
        return value
    coroutine.close()
    raise AssertionError("a blocking connection was waited for")


def _kind_of(conn: object) -> Kind:
    kind = _find(type(conn).__mro__)
    if kind is None:
        raise InvalidOption("conn", type(conn), f"not a connection Fleet knows. Give {TAKEN}")
    return kind


@cache
def _find(mro: tuple[type, ...]) -> Kind | None:
    for base in mro:
        kind = _KINDS.get((base.__module__.partition(".")[0], base.__name__))
        if kind is not None:
            return kind
    return None


class NamedRow:
    """A row of a driver that gives plain tuples: by name and by position, like asyncpg's."""

    __slots__ = ("_names", "_values")

    def __init__(self, names: Sequence[str], values: Sequence[Any]) -> None:
        self._names, self._values = names, values

    def __getitem__(self, key: str | int) -> Any:
        return self._values[self._names.index(key) if isinstance(key, str) else key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values)


def _rows(cursor: Any, fetched: Sequence[Sequence[Any]]) -> list[Row]:
    names = [column[0] for column in cursor.description]
    return [NamedRow(names, values) for values in fetched]


# -- asyncpg --------------------------------------------------------------------------------------


def _asyncpg(conn: Any) -> Executor:
    if not conn.is_in_transaction():
        how = "async with conn.transaction():"
        raise InvalidOption("conn", type(conn), _OPEN_ONE.format(how=how))
    return conn  # type: ignore[no-any-return]  # its fetch() is what an Executor is made after


# -- psycopg 3 ------------------------------------------------------------------------------------


def _check_psycopg(conn: Any) -> None:
    # Outside autocommit, psycopg begins a transaction with our statement, which the user commits.
    if conn.autocommit and conn.info.transaction_status.name == "IDLE":
        how = "with conn.transaction():, async with if it is async"
        raise InvalidOption("conn", type(conn), _OPEN_ONE.format(how=how))


class _Psycopg:
    def __init__(self, conn: Any) -> None:
        _check_psycopg(conn)
        self._conn = conn

    async def fetch(self, query: str, /, *args: Any) -> Sequence[Row]:
        # The plain classes: the connection's own row_factory and cursor_factory are the user's,
        # and may give dicts, or want other placeholders.
        from psycopg import Cursor
        from psycopg.rows import tuple_row

        with Cursor(self._conn, row_factory=tuple_row) as cursor:
            cursor.execute(*render(query, args, "psycopg"))
            return _rows(cursor, cursor.fetchall()) if cursor.description else []


class _AsyncPsycopg:
    def __init__(self, conn: Any) -> None:
        _check_psycopg(conn)
        self._conn = conn

    async def fetch(self, query: str, /, *args: Any) -> Sequence[Row]:
        from psycopg import AsyncCursor
        from psycopg.rows import tuple_row

        async with AsyncCursor(self._conn, row_factory=tuple_row) as cursor:
            await cursor.execute(*render(query, args, "psycopg"))
            return _rows(cursor, await cursor.fetchall()) if cursor.description else []


# -- SQLAlchemy -----------------------------------------------------------------------------------


class _Sqlalchemy:
    def __init__(self, conn: Any) -> None:
        self._conn = conn

    async def fetch(self, query: str, /, *args: Any) -> Sequence[Row]:
        return _through_sqlalchemy(self._conn, query, args)


class _AsyncSqlalchemy:
    def __init__(self, conn: Any) -> None:
        self._conn = conn

    async def fetch(self, query: str, /, *args: Any) -> Sequence[Row]:
        rows: Sequence[Row] = await self._conn.run_sync(_through_sqlalchemy, query, args)
        return rows


def _scoped(adapter: Callable[[Any], Executor]) -> Callable[[Any], Executor]:
    return lambda registry: adapter(registry())


def _through_sqlalchemy(target: Any, query: str, args: Sequence[Any]) -> Sequence[Row]:
    from sqlalchemy import Connection, text

    # A session's connection is in the session's transaction, and knows nothing of what subclasses
    # (SQLModel's, Flask's) make of Session.execute.
    conn = target if isinstance(target, Connection) else target.connection()
    if conn.dialect.name != "postgresql":
        raise InvalidOption("conn", type(target), f"it is connected to {conn.dialect.name}")
    # What the driver does counts, however it was told: by the engine, by an option, by itself. All
    # of them, and SQLAlchemy's adapters of the async ones, know it without asking the server.
    driver: Any = conn.connection.dbapi_connection
    if driver.autocommit:
        how = "an isolation level other than AUTOCOMMIT"
        raise InvalidOption("conn", type(target), _OPEN_ONE.format(how=how))
    sql, params = render(query, args, "named")
    result = conn.execute(text(sql), params)
    if not result.returns_rows:
        return []
    names = list(result.keys())
    return [NamedRow(names, row) for row in result]


# -- Django ---------------------------------------------------------------------------------------


class _Django:
    """Taken in autocommit too: that is Django's default, and its atomic() decides."""

    def __init__(self, conn: Any) -> None:
        if conn.vendor != "postgresql":
            raise InvalidOption("conn", type(conn), f"it is connected to {conn.vendor}")
        self._conn = conn

    async def fetch(self, query: str, /, *args: Any) -> Sequence[Row]:
        with self._conn.cursor() as cursor:
            cursor.execute(*render(query, args, "psycopg"))
            return _rows(cursor, cursor.fetchall()) if cursor.description else []


_KINDS: Final[dict[tuple[str, str], Kind]] = {
    ("asyncpg", "Connection"): Kind(_asyncpg, sync=False),
    ("asyncpg", "PoolConnectionProxy"): Kind(_asyncpg, sync=False),
    ("psycopg", "Connection"): Kind(_Psycopg, sync=True),
    ("psycopg", "AsyncConnection"): Kind(_AsyncPsycopg, sync=False),
    ("sqlalchemy", "Connection"): Kind(_Sqlalchemy, sync=True),
    ("sqlalchemy", "Session"): Kind(_Sqlalchemy, sync=True),
    ("sqlalchemy", "scoped_session"): Kind(_scoped(_Sqlalchemy), sync=True),
    ("sqlalchemy", "AsyncConnection"): Kind(_AsyncSqlalchemy, sync=False),
    ("sqlalchemy", "AsyncSession"): Kind(_AsyncSqlalchemy, sync=False),
    ("sqlalchemy", "async_scoped_session"): Kind(_scoped(_AsyncSqlalchemy), sync=False),
    ("django", "BaseDatabaseWrapper"): Kind(_Django, sync=True),
    ("django", "ConnectionProxy"): Kind(_Django, sync=True),
}
