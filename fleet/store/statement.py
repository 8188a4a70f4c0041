"""The SQL that enqueues one task, for whoever executes it on their own."""

from __future__ import annotations

from typing import Any, Final

from fleet.model import Submission
from fleet.store.dialect import Params, Style, render
from fleet.store.enqueue import interval

# Casts, because drivers send text where PostgreSQL would look for a function that takes text.
_TYPES: Final = {
    "job": "text",
    "input": "text::jsonb",
    "queue": "text",
    "step": "text",
    "priority": "int",
    "delay": "text::interval",
    "at": "timestamptz",
    "key": "text",
    "unique_key": "text",
    "unique_scope": "text",
    "traceparent": "text",
    "unique_for": "text::interval",
    "on_repeat": "text",
}


def statement(submission: Submission, style: Style = "asyncpg") -> tuple[str, Params]:
    """Return ``(sql, params)`` of one call that enqueues and returns the task's id.

    Python says all it knows, so nothing is looked up: the key of a registered job, which SQL
    would fill in, may be another version's.

    >>> order = Submission(job="order", step="render", queue="billing", input='{"id":1}')
    >>> sql, params = statement(order, "named")
    >>> sql[:83]
    'select id from fleet.enqueue_one(job => cast(:job as text), input => cast(:input as'
    >>> params
    {'job': 'order', 'input': '{"id":1}', 'queue': 'billing', 'step': 'render', 'priority': 0}
    """
    given = {name: value for name, value in _arguments(submission).items() if value is not None}
    call = ", ".join(
        f"{name} => ${number}::{_TYPES[name]}" for number, name in enumerate(given, start=1)
    )
    sql = f"select id from fleet.enqueue_one({call})"
    return render(sql, list(given.values()), style, list(given))


def _arguments(s: Submission) -> dict[str, Any]:
    return {
        "job": s.job,
        "input": s.input,
        "queue": s.queue,
        "step": s.step,
        "priority": s.priority,
        "delay": interval(s.delay),
        "at": s.at,
        "key": s.key,
        "unique_key": s.unique,
        "unique_scope": s.unique_scope if s.unique is not None else None,
        "traceparent": s.trace,
        "unique_for": interval(s.unique_for),
        "on_repeat": s.on_repeat if s.on_repeat != "keep" else None,
    }
