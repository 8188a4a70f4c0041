"""What the supervisor runs by: ``fleet.toml``, then ``FLEET_*`` variables, then flags.

The strongest comes last, key by key. A variable is the key's path in capitals, joined by ``_``::

    supervisor.lease              FLEET_SUPERVISOR_LEASE=5s
    fetch.batch                   FLEET_FETCH_BATCH=200
    queues.images.max_memory      FLEET_QUEUES_IMAGES_MAX_MEMORY=512MiB
    queues.images.retry.initial   FLEET_QUEUES_IMAGES_RETRY_INITIAL=2s
    queues.bulk-mail.limit        FLEET_QUEUES_BULK__MAIL_LIMIT=20
    queues.eu.images.limit        FLEET_QUEUES_EU___IMAGES_LIMIT=20

In a queue's name ``_`` is ``_``, ``__`` is ``-`` and ``___`` is ``.``. A queue that the file does
not have is made. A flag is the key's dotted path, ``queues.eu.images.limit``; ``None`` says
nothing.
"""

from fleet.settings.model import (
    Address,
    Balance,
    FetchSettings,
    QueueSettings,
    RunSettings,
    SupervisorSettings,
    TelemetrySettings,
)
from fleet.settings.read import run_settings

__all__ = [
    "Address",
    "Balance",
    "FetchSettings",
    "QueueSettings",
    "RunSettings",
    "SupervisorSettings",
    "TelemetrySettings",
    "run_settings",
]
