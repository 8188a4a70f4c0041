"""Short words for the store's tests."""

from __future__ import annotations

from urllib.parse import urlsplit

import asyncpg
import pytest

from fleet.lifecycle import Event, decide
from fleet.model import Claim, OwnerId, Submission
from fleet.policy import Policy
from fleet.store import claims
from fleet.store.enqueue import insert_many
from fleet.store.outcomes import Outcome, Report, write

ALICE, BOB = OwnerId(1001), OwnerId(1002)


class Table:
    """One database's tasks, and what owners do to them."""

    def __init__(self, db: asyncpg.Connection, policy: Policy) -> None:
        self.db = db
        self.policy = policy
        self.keep = 86_400.0

    async def enqueue(self, *inputs: str, **options) -> list[int]:
        options = {"job": "resize", "step": "one", "queue": "images"} | options
        return await insert_many(self.db, [Submission(input=i, **options) for i in inputs])

    async def claim(self, owner: OwnerId = ALICE, limit: int = 1, queue: str = "images"):
        await claims.promote(self.db)
        await claims.grant_keys(self.db)
        known = ["resize/one", "resize/two", "resize/"]
        return await claims.claim(self.db, owner, queue, limit, known)

    async def claim_one(self, owner: OwnerId = ALICE) -> Claim:
        (claim,) = await self.claim(owner)
        return claim

    def outcome(self, claim: Claim, event: Event, policy: Policy | None = None) -> Outcome:
        transition = decide(claim, event, policy or self.policy, 0.5)
        return Outcome(claim, transition, "worker-1", 0.25, self.keep)

    async def settle(self, owner: OwnerId, *pairs: tuple[Claim, Event]) -> Report:
        return await write(self.db, owner, [self.outcome(c, e) for c, e in pairs])

    async def row(self, task_id: int) -> dict:
        found = await self.db.fetchrow("select * from fleet.task where id = $1", task_id)
        return dict(found) if found else {}

    async def state(self, task_id: int) -> str:
        return await self.db.fetchval(
            """
            select coalesce((select state from fleet.task where id = $1),
                            (select outcome from fleet.archive where id = $1),
                            (select 'buried' from fleet.buried where id = $1), 'nowhere')
            """,
            task_id,
        )


@pytest.fixture
def table(db: asyncpg.Connection) -> Table:
    return Table(db, Policy())


@pytest.fixture
def django_db(dsn: str):
    import django
    from django.conf import settings
    from django.db import connections

    if not settings.configured:
        settings.configure(
            DATABASES={"default": {"ENGINE": "django.db.backends.postgresql"}}, USE_TZ=True
        )
        django.setup()
    parts = urlsplit(dsn)
    connections["default"].settings_dict.update(
        NAME=parts.path.lstrip("/"),
        USER=parts.username,
        PASSWORD=parts.password or "",
        HOST=parts.hostname,
        PORT=str(parts.port),
    )
    yield connections["default"]
    connections["default"].close()
