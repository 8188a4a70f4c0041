"""``job.statement()``: the SQL of an enqueue, as part of the trace we are in."""

from __future__ import annotations

from fleet.client.client import traced
from fleet.model import Submission
from fleet.store import statement as store
from fleet.store.dialect import Params, Style


def statement(submission: Submission, style: Style = "asyncpg") -> tuple[str, Params]:
    """Return ``(sql, params)`` of one call of ``fleet.enqueue``, whose value is the task's id."""
    return store.statement(traced(submission), style)
