"""The tables beside the model of them: what must be so after every event of a story."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, Final, TypeVar

import asyncpg
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
)

from fleet.lifecycle import (
    Advanced,
    Cancelled,
    Completed,
    Crashed,
    Failed,
    Refused,
    Released,
    Snoozed,
)
from fleet.model import Claim, Failure, OwnerId
from fleet.policy import Policy
from fleet.retry import Retry
from fleet.store import claims
from tests.unit.model import Task
from tests.unit.world import World

T = TypeVar("T")

_FREEZE: Final = """
create table fleet.frozen as select '2030-01-01 00:00+00'::timestamptz as moment;
create or replace function fleet.now() returns timestamptz
language sql stable as 'select moment from fleet.frozen';
"""

_EMPTY: Final = """
truncate fleet.task, fleet.archive, fleet.attempt, fleet.buried, fleet.key, fleet.cancellation
    restart identity;
update fleet.frozen set moment = '2030-01-01 00:00+00';
"""

_LIVE: Final = """
select id, queue::text, job::text, step, input::text, state, fence, owner, visit, failures,
       crashes, losses, releases, prior, priority, rank = -2 * priority as front, alone, granted,
       key, extract(epoch from due_at - '2030-01-01 00:00+00')::float8 as due_at,
       extract(epoch from ready_at - '2030-01-01 00:00+00')::float8 as ready_at,
       unique_slot, unique_scope, error ->> 'type' as error, pos
  from fleet.task
"""

_ENDED: Final = """
select id, outcome as state, fence, visit, attempt, failures, crashes, losses, releases, priority,
       queue, job, step, key, input::text, null as reason
  from fleet.archive
union all
select id, 'buried', fence, visit, attempt, failures, crashes, losses, releases, priority,
       queue, job, step, key, input::text, reason
  from fleet.buried
"""

_HISTORY: Final = """
select task_id, fence, visit, attempt, step, outcome from fleet.attempt order by task_id, fence
"""

_KEYS: Final = "select queue, key, holder from fleet.key"

# fmt: off
ENDED: Final = (
    "id", "state", "fence", "visit", "failures", "crashes", "losses", "releases", "priority",
    "queue", "job", "step", "key", "input", "reason",
)
# fmt: on
GONE: Final = frozenset({"ready", "running", "deferred", "waiting", "deleted"})


ERROR: Final = Failure(type="ValueError", message="boom")

next_steps = st.builds(
    Advanced,
    st.sampled_from(["a", "b"]),
    st.sampled_from(["1", "2"]),
    delay=st.sampled_from([None, None, 5.0]),
    priority=st.sampled_from([None, None, 2]),
    key=st.sampled_from([None, "k", "l"]),
)
happenings = st.one_of(
    next_steps,
    next_steps,
    st.just(Completed("42")),
    st.just(Snoozed(5.0)),
    st.builds(Failed, st.just(ERROR), st.booleans()),
    st.builds(Refused, st.sampled_from(["fatal", "undecodable"]), st.just(ERROR)),
    st.builds(Crashed, st.just(ERROR), st.integers(1, 2)),
    st.builds(Released, st.sampled_from([None, ERROR])),
    st.just(Cancelled()),
)
# One for each statement there is.
EVERY_KIND: Final = (
    (Advanced("b", "1"), Policy()),
    (Advanced("b", "1", key="stale"), Policy()),
    (Completed("42"), Policy()),
    (Completed("42"), Policy(on_success="delete")),
    (Snoozed(5.0), Policy()),
    (Refused("fatal", ERROR), Policy()),
    (Refused("fatal", ERROR), Policy(on_failure="delete")),
    (Cancelled(), Policy()),
)
policies = st.builds(
    Policy,
    retry=st.builds(
        Retry, max_attempts=st.integers(1, 3), initial=st.sampled_from([0, 10]), jitter=st.just(0)
    ),
    on_success=st.sampled_from(["archive", "archive", "delete"]),
    on_failure=st.sampled_from(["bury", "bury", "delete"]),
)


class Database:
    """One connection, driven from Hypothesis's rules, which are not async."""

    def __init__(self, dsn: str) -> None:
        self._runner = asyncio.Runner()
        self.conn = self.run(asyncpg.connect(dsn, server_settings=claims.SETTINGS))
        self.run(self.conn.execute(_FREEZE))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    def fetch(self, query: str, *args: object) -> list[asyncpg.Record]:
        return self.run(self.conn.fetch(query, *args))

    def close(self) -> None:
        self.run(self.conn.close())
        self._runner.close()


class CheckedStory(RuleBasedStateMachine):
    """What must be so, whatever happened."""

    def __init__(self, db: Database, arrows: set[tuple[str, str]]) -> None:
        super().__init__()
        self.db = db
        self.world = World()
        self.given: list[tuple[OwnerId, Claim]] = []  # every claim there ever was
        self.last_position = 0
        self.arrows = arrows

    @initialize()
    def an_empty_database(self) -> None:
        self.db.run(self.db.conn.execute(_EMPTY))
        self.last_position = self.db.fetch("select nextval('fleet.position')")[0][0]

    @invariant()
    def every_live_row_is_as_the_model_says(self):
        rows = {row["id"]: Task(**row) for row in self.db.fetch(_LIVE)}
        drew = {task_id for task_id in self.world.drew if task_id in rows}
        self.world.drew.clear()
        for task_id in drew:
            if self.world.tasks[task_id].live:
                self._placed(task_id, rows[task_id].pos)
        self.last_position = max(
            [self.last_position] + [rows[task_id].pos or 0 for task_id in drew]
        )
        assert rows == {task.id: task for task in self.world.live()}

    def _placed(self, task_id: int, position: int | None) -> None:
        assert position is not None
        assert position > self.last_position, "a fresh position is behind all others"
        self.world.tasks[task_id] = replace(self.world.tasks[task_id], pos=position)

    @invariant()
    def every_task_is_in_one_place(self):
        ended = self.db.fetch(_ENDED)
        expected = [task for task in self.world.tasks.values() if task.state not in GONE]
        assert {row["id"]: dict(row) for row in ended} == {t.id: _ended(t) for t in expected}
        assert len(ended) == len(expected), "a task ended twice"

    @invariant()
    def columns_fit_the_state(self):
        for row in self.db.fetch("select * from fleet.task"):
            state = row["state"]
            assert (row["waiting_for"] is not None) == (state == "waiting")
            assert (row["claimed_at"] is not None) == (state == "running")
            assert row["due_at"] is None or state in ("deferred", "waiting")
            assert row["waiting_for"] in (None, row["key"])
            assert row["key"] is not None or not row["granted"]

    @invariant()
    def a_key_has_one_holder_and_nobody_waits_in_vain(self):
        keys = {(row["queue"], row["key"]): row["holder"] for row in self.db.fetch(_KEYS)}
        assert keys == self.world.keys
        granted = [(task.place, task.id) for task in self.world.live() if task.granted]
        assert len(granted) == len(dict(granted)), "two tasks have the same key"
        assert dict(granted) == {place: holder for place, holder in keys.items() if holder}
        for task in self.world.live():
            if task.state == "waiting" and task.due_at is None:
                assert task.place in keys

    @invariant()
    def history_is_complete_and_in_the_order_of_fences(self):
        history = [tuple(row) for row in self.db.fetch(_HISTORY)]
        assert history == sorted(self.world.history)
        ends = [(task_id, fence) for task_id, fence, *_ in history]
        assert len(ends) == len(set(ends)), "one claim was written twice"

    @invariant()
    def wishes_stand_until_they_are_heard(self):
        rows = self.db.fetch("select task_id from fleet.cancellation")
        assert {row["task_id"] for row in rows} == self.world.wishes


def _ended(task: Task) -> dict[str, Any]:
    return {name: getattr(task, name) for name in ENDED} | {"attempt": task.ended_at_attempt}
