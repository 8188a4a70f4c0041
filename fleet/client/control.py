"""``app.queue(name)``, ``app.cancel()``, ``app.revive()``: what people tell the fleet, from Python.

All of it stands in the database and holds for every host, within a second; each writes its line of
``fleet log``. What is done in bulk is done in batches, each with the five seconds of any call.
"""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, get_args

from fleet.errors import InvalidOption, ReviveRefused, TaskNotFound
from fleet.job import Job
from fleet.model import BuryReason, Seconds, TaskId
from fleet.names import check_name, check_step
from fleet.options import Duration, label, moment, seconds
from fleet.people import me
from fleet.settings.overrides import read_override
from fleet.store import bulk, clock, control, tasks
from fleet.store.bulk import Cancellation, Revival
from fleet.store.executor import Executor

if TYPE_CHECKING:
    from fleet.client.client import Client


class QueueControl:
    """What may be said to one queue; it holds for the whole fleet.

    >>> images = app.queue("images")                                   # doctest: +SKIP
    >>> await images.pause(for_=3600)                                  # doctest: +SKIP
    """

    def __init__(self, client: Client, name: str) -> None:
        self.name = check_name("queue", name)
        self._client = client

    def __repr__(self) -> str:
        return f"<queue {self.name!r}>"

    async def pause(self, *, for_: Duration | None = None, until: datetime | None = None) -> None:
        """Let nobody claim from it: until it is resumed, or for so long. What runs goes on."""

        async def act(conn: Executor) -> None:
            await control.pause(conn, self.name, await _length(conn, for_, until), me())

        await self._client.tell(act)

    async def resume(self) -> bool:
        """Let it be claimed again; False if it was not paused."""
        return await self._client.tell(lambda conn: control.resume(conn, self.name, me()))

    async def set(
        self, *, for_: Duration | None = None, until: datetime | None = None, **settings: object
    ) -> None:
        """Let settings beat every host's file: what ``fleet queue set`` takes, checked alike."""
        if not settings:
            raise InvalidOption("settings", settings, "give one or more, like limit=20")
        wanted = {key: read_override(self.name, key, value) for key, value in settings.items()}

        async def act(conn: Executor) -> None:
            await control.override(conn, self.name, wanted, await _length(conn, for_, until), me())

        await self._client.tell(act)

    async def reset(self, *keys: str) -> bool:
        """Let the files count again, for these keys or for all; False if nothing was set."""
        return await self._client.tell(lambda conn: control.reset(conn, self.name, keys, me()))

    async def purge(self, *, buried: bool = False) -> int:
        """Delete what waits, or the dead letters; never what runs. Returns how many."""
        up_to = await self._client.tell(lambda conn: bulk.newest(conn, buried=buried))
        batch = bulk.purge(self.name, buried=buried, up_to=up_to, by=me())
        return sum([n async for n in bulk.in_batches(self._client.tell, batch)])


async def cancel(
    client: Client,
    ids: tuple[TaskId, ...],
    *,
    queue: str | None,
    job: Job[Any, Any] | str | None,
    key: str | None,
) -> Cancellation:
    """Stop these tasks, or all that match everything given."""
    name = _name(job)
    _one_of("ids", ids, queue=queue, job=name, key=key)
    if ids:
        said = [await _cancel_one(client, task_id) for task_id in dict.fromkeys(ids)]
        return Cancellation(said.count("cancelled"), said.count("requested"))
    if queue is not None:
        check_name("queue", queue)
    if key is not None:
        label("key", key)
    up_to = await client.tell(bulk.newest)
    batch = bulk.cancel(queue=queue, job=name, key=key, up_to=up_to, by=me())
    done = [each async for each in bulk.in_batches(client.tell, batch)]
    return Cancellation(sum(d.cancelled for d in done), sum(d.requested for d in done))


async def _cancel_one(client: Client, task_id: TaskId) -> str:
    try:
        return await client.cancel(client.handle(task_id).id)
    except TaskNotFound:
        return "nowhere"


async def revive(
    client: Client,
    ids: tuple[TaskId, ...],
    *,
    queue: str | None,
    job: Job[Any, Any] | str | None,
    reason: BuryReason | None,
    since: datetime | None,
    step: str | None,
) -> Revival:
    """Bring these dead letters back, or all that match everything given."""
    name = _name(job)
    _one_of("ids", ids, queue=queue, job=name, reason=reason, since=since)
    if step is not None:
        check_step(step)
    if ids:
        return await _revive_these(client, ids, step)
    if queue is not None:
        check_name("queue", queue)
    if reason is not None and reason not in get_args(BuryReason):
        raise InvalidOption("reason", reason, f"one of {', '.join(get_args(BuryReason))}")
    start = None if since is None else moment("since", since)
    up_to = await client.tell(lambda conn: bulk.newest(conn, buried=True))
    batch = bulk.revive(
        queue=queue, job=name, reason=reason, since=start, step=step, up_to=up_to, by=me()
    )
    whole = Revival([], {})
    async for done in bulk.in_batches(client.tell, batch):
        whole.revived.extend(done.revived)
        whole.refused.update(done.refused)
    return whole


async def _revive_these(client: Client, ids: tuple[TaskId, ...], step: str | None) -> Revival:
    done = Revival([], {})

    for task_id in dict.fromkeys(ids):
        try:
            checked = client.handle(task_id).id
            await client.tell(partial(tasks.revive, task_id=checked, step=step, by=me()))
        except ReviveRefused as error:
            done.refused[task_id] = str(error)
        else:
            done.revived.append(task_id)
    return done


def _name(job: Job[Any, Any] | str | None) -> str | None:
    if job is None:
        return None
    return check_name("job", job.name if isinstance(job, Job) else job)


def _one_of(what: str, ids: tuple[TaskId, ...], **filters: object) -> None:
    given = [name for name, value in filters.items() if value is not None]
    if bool(ids) == bool(given):
        hint = f"give ids, or what they have in common: {', '.join(f'{name}=' for name in filters)}"
        raise InvalidOption(what, ids, hint)


async def _length(conn: Executor, for_: Duration | None, until: datetime | None) -> Seconds | None:
    """Return for how long, by the database's clock."""
    if for_ is not None and until is not None:
        raise InvalidOption("until", until, "give for_= or until=, not both")
    if until is None:
        return None if for_ is None else seconds("for_", for_)
    left = (moment("until", until) - await clock.now(conn)).total_seconds()
    if left <= 0:
        raise InvalidOption("until", until, "is over")
    return left
