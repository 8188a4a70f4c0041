"""A role to try things with."""

from __future__ import annotations

import pytest


@pytest.fixture
async def role(db, fleet):
    """A role that may do nothing yet, gone after the test."""
    await db.execute("create role patient login")
    yield "patient"
    await db.execute("drop owned by patient; drop role patient")
