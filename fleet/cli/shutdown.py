"""``fleet shutdown``: tell supervisors to drain and end, and wait until they have."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Any, Final

import click

from fleet.cli.common import (
    Database,
    Where,
    as_duration,
    as_json,
    database_options,
    out,
    print_json,
    run,
    safe,
    warn,
)
from fleet.errors import DatabaseError
from fleet.model import Seconds
from fleet.people import me
from fleet.store import control
from fleet.store.control import Owner

_LOOK: Final[Seconds] = 0.1


@click.command()
@database_options
@click.option("--host", metavar="NAME", help="Only the supervisors of this host.")
@click.option("--queue", metavar="NAME", help="Only the workers of this queue, on every host.")
@click.option("--wait", is_flag=True, help="Until all are down; exit 1 if they are not in time.")
@click.option(
    "--timeout", type=as_duration, default="60s", show_default=True, help="With --wait: how long."
)
@as_json
def shutdown(
    where: Where,
    *,
    host: str | None,
    queue: str | None,
    wait: bool,
    timeout: Seconds,
    as_json: bool,
) -> None:
    """Tell the fleet, a host or a queue's workers to drain and end.

    They claim no more at once, let running steps end until supervisor.drain_timeout, and release
    the rest at no cost. A queue that was shut down is served again when its supervisors have been
    restarted; `fleet queue pause` is for a while. Supervisors that start later are not meant.

    --wait ends when each has said that it is down. Who has been silent for its whole lease, or
    disappeared without a word, is waited for no longer: a warning names it, and its tasks run
    elsewhere.
    """

    async def act(db: Database) -> Watch:
        watch = Watch(db, await _meant(db, host, queue), talk=not as_json)
        if watch.owners:
            watch.number = await control.request_shutdown(db.conn, host, queue, me())
            await watch.follow(timeout if wait else 0.0)
        return watch

    watch = run(where, act)
    if as_json:
        print_json(watch.as_dict())
    elif not watch.owners:
        out().print("Nobody runs tasks at the moment: nothing to shut down.")
    elif not wait:
        out().print(f"{len(watch.owners)} told. To wait for their end: --wait; who is left: status")
    for owner in watch.unheard:
        warn(
            f"{watch.name(owner)} never said that it is down. Its lease is over, so its tasks run "
            f"elsewhere; if it was not killed, look at that host"
        )
    if wait and watch.left:
        names = ", ".join(watch.name(owner) for owner in watch.left)
        raise DatabaseError(
            f"not down after {timeout:g}s: {names}. They go on draining; a second SIGTERM to the "
            f"process ends it at once"
        )


async def _meant(db: Database, host: str | None, queue: str | None) -> list[Owner]:
    owners = await control.owners(db.conn)
    meant = [owner for owner in owners if owner.meant(host, queue)]
    if owners and not meant:
        hosts = ", ".join(sorted({safe(owner.host) for owner in owners}))
        queues = ", ".join(sorted({queue for owner in owners for queue in owner.serves}))
        scope = " and ".join(
            f"{what} {name!r}" for what, name in (("host", host), ("queue", queue)) if name
        )
        raise DatabaseError(f"no supervisor has {scope}. Hosts: {hosts}. Queues: {queues or '-'}")
    return meant


class Watch:
    """Who was told, and what has become of each."""

    def __init__(self, db: Database, owners: list[Owner], *, talk: bool) -> None:
        self._db = db
        self._talk = talk
        self.owners = {owner.id: owner for owner in owners}
        self.states = {owner.id: "told" for owner in owners}
        self.number: int | None = None
        # No clock is compared: silent is whose counter we have seen stand still for a lease.
        self._beats = {owner.id: (owner.beat, time.monotonic()) for owner in owners}
        self._seen = {owner.id: time.monotonic() for owner in owners}

    @property
    def left(self) -> list[int]:
        """Those that are not down yet."""
        return [owner for owner, state in self.states.items() if state in ("told", "draining")]

    @property
    def unheard(self) -> list[int]:
        """Those that ended, as far as one can know, and have not said so."""
        return [owner for owner, state in self.states.items() if state in ("silent", "gone")]

    async def follow(self, patience: Seconds) -> None:
        """Look until all are down, or time is up."""
        deadline = time.monotonic() + patience
        while self.left and time.monotonic() < deadline:
            await self._look()
            await asyncio.sleep(_LOOK if self.left else 0)

    async def _look(self) -> None:
        assert self.number is not None
        answers = await control.answers(self._db.conn, self.number)
        there = {owner.id: owner for owner in await control.owners(self._db.conn)}
        for owner in self.left:
            if answers.get(owner) == "down":
                self._becomes(owner, "down")
            elif owner not in there:
                if self._is_gone(owner, there.values()):
                    self._becomes(owner, "gone")
            elif self._is_silent(there[owner]):
                self._becomes(owner, "silent")
            else:
                self._seen[owner] = time.monotonic()
                self._becomes(owner, answers.get(owner, "told"))

    def _is_gone(self, owner: int, there: Iterable[Owner]) -> bool:
        """Tell whether one whose lease was lost is not merely about to start again, and to obey."""
        lost = self.owners[owner]
        if any((o.host, o.pid) == (lost.host, lost.pid) for o in there):
            self._seen[owner] = time.monotonic()  # it is another owner now
            return False
        return time.monotonic() - self._seen[owner] > lost.lease

    def _is_silent(self, owner: Owner) -> bool:
        beat, since = self._beats[owner.id]
        if owner.beat != beat:
            self._beats[owner.id] = (owner.beat, time.monotonic())
            return False
        return time.monotonic() - since > owner.lease

    def _becomes(self, owner: int, state: str) -> None:
        if state == self.states[owner]:
            return
        self.states[owner] = state
        if self._talk:
            told = {
                "draining": "drains",
                "down": "is down",
                "silent": "has been silent for its whole lease and is taken for dead",
                "gone": "disappeared without a word",
            }
            out().print(f"{self.name(owner)} {told[state]}")

    def name(self, owner: int) -> str:
        """Return how a person calls it."""
        found = self.owners[owner]
        return f"{safe(found.host)} (pid {found.pid}, owner {owner})"

    def as_dict(self) -> dict[str, Any]:
        """Return it for a script."""
        return {
            "request": self.number,
            "owners": [
                {"owner": o.id, "host": o.host, "pid": o.pid, "state": self.states[o.id]}
                for o in self.owners.values()
            ],
        }
