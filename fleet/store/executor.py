"""What the store asks of a connection: one method, so that any driver can serve.

asyncpg's connections have it as they are. ``fleet.store.connections`` gives it to psycopg,
SQLAlchemy and Django connections, so that the very same statements run on those.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, Protocol, overload

# Of every connection that is Fleet's own: what looks again under a lock must see what was committed
# meanwhile, whatever the database's default is.
OWN: Final = {"default_transaction_isolation": "read committed"}


class Row(Protocol):
    """A row: by column name, by position, and as an iterable of its values."""

    @overload
    def __getitem__(self, key: str, /) -> Any: ...
    @overload
    def __getitem__(self, key: int, /) -> Any: ...
    def __getitem__(self, key: Any, /) -> Any:
        """Return one value."""

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the values in the order of the select list."""


class Executor(Protocol):
    """Runs one statement with ``$1`` parameters and returns its rows."""

    async def fetch(self, query: str, /, *args: Any) -> Sequence[Row]:
        """Run ``query`` and return what it returns."""
