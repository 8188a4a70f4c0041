"""The commands that only look, as roles that may only look, or only run tasks."""

from __future__ import annotations

import uuid

import pytest

from tests.process.commands import Commands
from tests.process.doctor.visits import as_role


@pytest.fixture
async def role(db):
    name = f"reader_{uuid.uuid4().hex[:8]}"
    await db.execute(f"create role {name} login")
    yield name
    await db.execute(f"drop owned by {name}; drop role {name}")


@pytest.mark.parametrize("level", ["app", "worker"])
async def test_a_granted_role_can_look_at_everything(fleet, dsn, role, level):
    fleet("queue", "pause", "billing")
    fleet("enqueue", "order-receipt", "{}", "--queue", "billing")
    fleet("grant", level, role)
    reader = Commands(fleet.folder, as_role(dsn, role))

    seen = reader.json("status")
    assert [(queue["queue"], queue["paused"]) for queue in seen["queues"]] == [("billing", True)]
    assert [override["key"] for override in seen["overrides"]] == ["paused"]
    assert [queue["queue"] for queue in reader.json("queue", "list")] == ["billing"]
    assert [task["queue"] for task in reader.json("task", "list")] == ["billing"]
    assert "paused" in reader("top").stdout
