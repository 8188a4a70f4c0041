"""A handle: a task's id, and what one may ask about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from fleet.model import TaskId
from fleet.store.results import Cancelled, TaskStatus

if TYPE_CHECKING:
    from fleet.client.client import Client
    from fleet.options import Duration

O = TypeVar("O", covariant=True)  # noqa: E741, PLC0105 -- Handle[O] is how the design writes it


@dataclass(frozen=True, slots=True)
class Handle(Generic[O]):
    """A task: its ``id``, the name of its ``job``, and whether this call ``created`` it.

    ``created`` is False where ``unique=`` found a task that was there already.

    >>> handle = app.handle(42)                                        # doctest: +SKIP
    >>> await handle.result(timeout=30)                                # doctest: +SKIP
    'receipts/42.pdf'
    """

    id: TaskId
    job: str | None = field(default=None, compare=False)
    created: bool = field(default=True, compare=False)
    _client: Client = field(repr=False, compare=False, kw_only=True)

    async def status(self) -> TaskStatus:
        """Return where the task is now; ``TaskNotFound`` if it is nowhere."""
        return await self._client.status(self.id)

    async def result(self, timeout: Duration | None = None) -> O:
        """Wait for the task to end and return its value.

        Raises ``TaskBuried``, ``TaskCancelled``, ``ResultGone`` (deleted on success, long ago, or
        never committed) or ``ResultTimeout``; the task goes on after a timeout.
        """
        value: O = await self._client.result(self.id, timeout)
        return value

    async def cancel(self) -> Cancelled:
        """Stop the task: ``cancelled``, ``requested`` if it runs now, ``ended`` if too late."""
        return await self._client.cancel(self.id)
