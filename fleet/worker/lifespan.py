"""The application's lifespan, async or plain, entered once in each worker."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fleet.app import Fleet


@contextlib.asynccontextmanager
async def lifespan(app: Fleet) -> AsyncIterator[Any]:
    """Enter the application's lifespan and yield what it yields: ``ctx.state``."""
    if app.lifespan is None:
        yield None
        return
    manager: Any = app.lifespan()
    if hasattr(manager, "__aenter__"):
        async with manager as state:
            yield state
    else:
        with manager as state:
            yield state
