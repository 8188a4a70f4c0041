"""Enqueue, handles, results and the facade for code that does not await."""

from fleet.client.client import Client
from fleet.client.control import QueueControl
from fleet.client.failures import TaskFailure
from fleet.client.handle import Handle
from fleet.client.sync import SyncHandle, SyncQueue
from fleet.store.bulk import Cancellation, Revival
from fleet.store.results import TaskStatus

__all__ = [
    "Cancellation",
    "Client",
    "Handle",
    "QueueControl",
    "Revival",
    "SyncHandle",
    "SyncQueue",
    "TaskFailure",
    "TaskStatus",
]
