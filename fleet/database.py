"""From a setting to a server that answers: the URL of the database, embedded or not."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from fleet.config import Embedded, find_database


@contextlib.contextmanager
def located(explicit: str | None = None, *, file: Path | None = None) -> Iterator[str]:
    """Yield the URL of the configured database; an embedded server runs until this is left."""
    found = find_database(explicit, file=file)
    if not isinstance(found, Embedded):
        yield found.url
        return
    from fleet.embedded import serve

    with serve(found.root) as server:
        yield server.url


@contextlib.asynccontextmanager
async def located_async(explicit: str | None = None) -> AsyncIterator[str]:
    """Yield the same, without blocking the loop while a server starts."""
    with contextlib.ExitStack() as stack:
        yield await asyncio.to_thread(stack.enter_context, located(explicit))
