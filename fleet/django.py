"""Enqueue on Django's own connection: the task commits and rolls back with ``atomic()``.

    from fleet import django as fleet_django

    with transaction.atomic():
        order.save()
        fleet_django.enqueue(receipts, Order(order.id))

Outside ``atomic()`` Django commits each statement, and so this one. In an async view, wrap the call
with ``asgiref.sync.sync_to_async`` as any other use of Django's connection.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from fleet.client.sync import SyncHandle
from fleet.submit import EnqueueOptions

if TYPE_CHECKING:
    from fleet.job import Job

__all__ = ["enqueue", "enqueue_many"]

I = TypeVar("I")  # noqa: E741 -- Job[I, O] is how the design writes it
O = TypeVar("O")  # noqa: E741


@overload
def enqueue(
    job: Job[None, O],
    input: None = None,
    *,
    using: str = "default",
    **options: Unpack[EnqueueOptions],
) -> SyncHandle[O]: ...
@overload
def enqueue(
    job: Job[I, O], input: I, *, using: str = "default", **options: Unpack[EnqueueOptions]
) -> SyncHandle[O]: ...
def enqueue(
    job: Job[Any, Any],
    input: Any = None,  # noqa: A002 -- the name is part of the contract
    *,
    using: str = "default",
    **options: Unpack[EnqueueOptions],
) -> SyncHandle[Any]:
    """Write one task through ``django.db.connections[using]``."""
    return job.app.sync.enqueue(job, input, conn=_connection(using), **options)


def enqueue_many(
    job: Job[I, O],
    inputs: Iterable[I],
    *,
    using: str = "default",
    **options: Unpack[EnqueueOptions],
) -> list[SyncHandle[O]]:
    """Write many tasks through ``django.db.connections[using]``; handles come in order."""
    return job.app.sync.enqueue_many(job, inputs, conn=_connection(using), **options)


def _connection(using: str) -> object:
    from django.db import connections  # type: ignore[import-untyped]  # it has no types

    connection: object = connections[using]
    return connection
