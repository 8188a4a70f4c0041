"""Whatever happens to tasks, in whatever order, the tables say what the reference model says.

Hypothesis makes up the stories: two owners, two queues, keys, unique slots, delays, failures, dying
processes and silent hosts, writes by those who have lost the task, people who cancel, revive and
delete. After every event each row is compared with tests/unit/world.py, and in the end everything
must be able to finish: nothing is stuck. The clock is frozen and moved by hand.

FLEET_TEST_EXAMPLES and FLEET_TEST_STEPS make the search longer.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import timedelta
from typing import Final

import asyncpg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    precondition,
    rule,
    run_state_machine_as_test,
)

from fleet.lifecycle import (
    Advance,
    Advanced,
    Bury,
    Completed,
    Crashed,
    Event,
    Finish,
    Lost,
    Released,
    decide,
    onward,
)
from fleet.model import Claim, Failure, OwnerId, Submission
from fleet.policy import Policy
from fleet.store import claims, enqueue
from fleet.store.outcomes import Outcome, Report, write
from tests.store.stories import (
    ERROR,
    EVERY_KIND,
    CheckedStory,
    Database,
    happenings,
    policies,
)
from tests.unit.model import EPOCH, Task, documented_arrows

OWNERS: Final = (OwnerId(1), OwnerId(2))
QUEUES: Final = ("q", "r")
KNOWN: Final = ("x/a", "x/b", "y/a", "y/b")  # and nobody knows x/c
UNSTORABLE: Final = '"\\u0000"'


class AnyStory(CheckedStory):
    """The events of a fleet, in any order."""

    # ── applications ─────────────────────────────────────────────────────────────────────────────

    @rule(
        count=st.integers(1, 3),
        queue=st.sampled_from(QUEUES),
        step=st.sampled_from(["a", "a", "a", "c"]),
        priority=st.integers(-1, 1),
        delay=st.sampled_from([None, None, 0.0, 5.0, 60.0]),
        key=st.sampled_from([None, "k", "l"]),
    )
    def tasks_are_enqueued(self, *, count, queue, step, priority, delay, key):
        task = Submission(
            job="x", step=step, queue=queue, input="1", priority=priority, delay=delay, key=key
        )
        for made in self.db.run(enqueue.insert(self.db.conn, [task] * count)):
            assert made.created
            self._enqueued(made.id, task)

    @rule(
        job=st.sampled_from(["x", "y"]),
        unique=st.sampled_from(["u", "v"]),
        scope=st.sampled_from(["while_waiting", "while_live"]),
        delay=st.sampled_from([None, None, 5.0]),
        key=st.sampled_from([None, None, "k"]),
    )
    def a_unique_task_is_enqueued(self, job, unique, scope, delay, key):
        task = Submission(
            job=job,
            step="a",
            queue="q",
            input="1",
            delay=delay,
            key=key,
            unique=unique,
            unique_scope=scope,
        )
        made = self.db.run(enqueue.insert_one(self.db.conn, task))
        holder = self.world.slot_holder(job, unique)
        assert made.created == (holder is None)
        if made.created:
            self._enqueued(made.id, task)
        else:
            assert made.id == holder

    def _enqueued(self, task_id: int, task: Submission) -> None:
        row = Task(
            id=task_id,
            queue=task.queue,
            job=task.job,
            step=task.step,
            input=task.input,
            priority=task.priority,
            key=task.key,
            unique_slot=task.unique,
            unique_scope=task.unique_scope if task.unique else None,
        )
        self.world.enqueue(row, task.delay)

    # ── owners ───────────────────────────────────────────────────────────────────────────────────

    @precondition(lambda self: self._queues_with_work())
    @rule(data=st.data(), owner=st.sampled_from(OWNERS), limit=st.integers(1, 4))
    def an_owner_claims(self, data, owner, limit):
        queue = data.draw(st.sampled_from(self._queues_with_work()), label="queue")
        again = {claim.id for claim in self._claim(owner, queue, limit)}
        # Whoever held one of them before has the right owner and the wrong fence.
        self._writes_in_vain(owner, [c for c in self._stale_of(owner) if c.id in again])

    def _queues_with_work(self) -> list[str]:
        return sorted({task.queue for task in self.world.live() if task.state == "ready"})

    def _claim(self, owner: OwnerId, queue: str, limit: int, known=KNOWN) -> list[Claim]:
        got = self.db.run(claims.claim(self.db.conn, owner, queue, limit, known))
        expected = self.world.claim(owner, queue, limit, known)
        assert [_comparable(claim) for claim in got] == [task.claim for task in expected]
        self.given += [(owner, claim) for claim in got]
        return got

    @precondition(lambda self: self._owners_with_work())
    @rule(data=st.data(), policy=policies)
    def steps_end(self, data, policy):
        owner = data.draw(st.sampled_from(self._owners_with_work()), label="owner")
        held = st.sampled_from(self._held(owner))
        some = data.draw(
            st.lists(held, min_size=1, max_size=3, unique_by=lambda claim: claim.id), label="ended"
        )
        events = [data.draw(happenings, label=f"of {claim.id}") for claim in some]
        self._write(owner, some, events, policy)

    @precondition(lambda self: self._keyed())
    @rule(data=st.data(), delay=st.sampled_from([None, 5.0]))
    def a_step_goes_on_with_another_key(self, data, delay):
        owner, claim = data.draw(st.sampled_from(self._keyed()), label="claim")
        other = "l" if claim.key == "k" else "k"
        self._write(owner, [claim], [Advanced("b", "1", delay=delay, key=other)], Policy())

    def _keyed(self) -> list[tuple[OwnerId, Claim]]:
        return [(by, c) for by, c in self.given if c.key is not None and self.world.holds(by, c)]

    @precondition(lambda self: self._owners_with_work())
    @rule(data=st.data())
    def what_was_never_started_is_given_back(self, data):
        owner = data.draw(st.sampled_from(self._owners_with_work()), label="owner")
        held, stale = self._held(owner), [claim for by, claim in self._stale() if by == owner]

        given_back = self.db.run(claims.unclaim(self.db.conn, owner, held + stale))

        assert given_back == {claim.id for claim in held}
        self.world.unclaim(held)

    @precondition(lambda self: self._stale())
    @rule(owner=st.sampled_from(OWNERS))
    def a_stalled_host_writes_what_is_no_longer_its_own(self, owner):
        self._writes_in_vain(owner, self._stale_of(owner))

    @precondition(lambda self: self._owners_with_work())
    @rule(owner=st.sampled_from(OWNERS))
    def a_stranger_writes_with_the_right_fence(self, owner):
        self._writes_in_vain(OwnerId(owner + 10), self._held(owner))

    def _writes_in_vain(self, owner: OwnerId, not_its_own: list[Claim]) -> None:
        if not not_its_own:
            return
        for event, policy in EVERY_KIND:
            report = self._send(owner, not_its_own, [event] * len(not_its_own), policy)
            assert report == Report(lost={claim.id for claim in not_its_own})

    @precondition(lambda self: self._owners_with_work())
    @rule(data=st.data())
    def one_result_of_a_batch_cannot_be_stored(self, data):
        owner = data.draw(st.sampled_from(self._owners_with_work()), label="owner")
        held = self._held(owner)
        bad = data.draw(st.sampled_from(held), label="unstorable")

        report = self._send(
            owner,
            held,
            [Completed(UNSTORABLE if claim is bad else "42") for claim in held],
            Policy(),
        )

        assert set(report.fences) == {claim.id for claim in held}
        assert report.unstorable == {bad.id}
        error = Failure(type="UntranslatableCharacterError", message="…")
        verdict = Bury("unstorable", error, bad.failures, bad.crashes, bad.losses)
        self.world.write([(claim, Finish("42")) for claim in held if claim is not bad])
        self.world.write([(bad, verdict)])

    @precondition(lambda self: self._owners_with_work())
    @rule(data=st.data(), policy=policies)
    def a_process_dies_with_all_its_steps(self, data, policy):
        owner = data.draw(st.sampled_from(self._owners_with_work()), label="owner")
        held = self._held(owner)
        self._write(owner, held, [Crashed(ERROR, suspects=len(held))] * len(held), policy)

    @precondition(lambda self: self._owners_with_work())
    @rule(owner=st.sampled_from(OWNERS), policy=policies)
    def a_silent_owner_is_taken_over(self, owner, policy):
        held = self.db.run(claims.held(self.db.conn, owner))
        expected = [task.claim for task in self.world.running(owner)]
        assert [_comparable(claim) for claim in held] == expected
        self._write(owner, held, [Lost(ERROR)] * len(held), policy)

    def _write(
        self, owner: OwnerId, held: list[Claim], events: list[Event], policy: Policy
    ) -> None:
        report = self._send(owner, held, events, policy)
        assert set(report.fences) == {claim.id for claim in held}
        assert (report.lost, report.busy, report.unstorable) == (set(), set(), set())
        written = [
            (claim, decide(claim, event, policy, 0.0))
            for claim, event in zip(held, events, strict=True)
        ]
        self.world.write(written)
        for claim, transition in written:
            fence = report.fences[claim.id]
            if isinstance(transition, Advance):
                self.given.append((owner, onward(claim, transition, fence)))
                fence -= 1
            assert fence == claim.fence
        # The reply was lost, and the same is written again.
        assert self._send(owner, held, events, policy) == Report(lost={c.id for c in held})

    def _send(
        self, owner: OwnerId, held: list[Claim], events: list[Event], policy: Policy
    ) -> Report:
        outcomes = [
            Outcome(claim, decide(claim, event, policy, 0.0), "w1", 0.1, policy.keep)
            for claim, event in zip(held, events, strict=True)
        ]
        return self.db.run(write(self.db.conn, owner, outcomes))

    def _held(self, owner: OwnerId) -> list[Claim]:
        return [claim for by, claim in self.given if by == owner and self.world.holds(by, claim)]

    def _owners_with_work(self) -> list[OwnerId]:
        return [owner for owner in OWNERS if self._held(owner)]

    def _stale(self) -> list[tuple[OwnerId, Claim]]:
        return [(by, claim) for by, claim in self.given if not self.world.holds(by, claim)]

    def _stale_of(self, owner: OwnerId) -> list[Claim]:
        """The last one of each task: nearest to what is right."""
        return list({claim.id: claim for by, claim in self._stale() if by == owner}.values())

    # ── the beat ─────────────────────────────────────────────────────────────────────────────────

    @rule(seconds=st.sampled_from([1.0, 5.0, 60.0]))
    def time_passes(self, seconds):
        step = timedelta(seconds=seconds)
        self.db.run(self.db.conn.execute("update fleet.frozen set moment = moment + $1", step))
        self.world.now += seconds

    @precondition(lambda self: any(task.state == "deferred" for task in self.world.live()))
    @rule()
    def what_is_due_is_promoted(self):
        line = {task.id: task.due_at for task in self.world.live() if task.state == "deferred"}

        assert self.db.run(claims.promote(self.db.conn)) == self.world.promote()

        rows = self.db.fetch("select id from fleet.task where state = 'ready' order by pos")
        came = [line[row["id"]] for row in rows if row["id"] in line]
        assert came == sorted(came), "the earliest due comes first"

    @precondition(lambda self: any(task.state == "waiting" for task in self.world.live()))
    @rule()
    def keys_are_granted(self):
        assert self.db.run(claims.grant_keys(self.db.conn)) == self.world.grant_keys()

    @precondition(lambda self: self.world.wishes)
    @rule()
    def wishes_that_nobody_heard_are_carried_out(self):
        ended = self.db.fetch("select fleet.cancel_leftovers()")[0][0]
        assert ended == self.world.cancel_leftovers()

    # ── people ───────────────────────────────────────────────────────────────────────────────────

    @precondition(lambda self: self.world.tasks)
    @rule(data=st.data())
    def somebody_cancels(self, data):
        task_id = data.draw(st.sampled_from(sorted(self.world.tasks)), label="task")
        answer = self.db.fetch("select fleet.cancel($1)", task_id)[0][0]
        assert answer == self.world.cancel(task_id)

    @precondition(lambda self: self._buried())
    @rule(data=st.data(), step=st.sampled_from([None, None, "a", "b"]))
    def somebody_revives(self, data, step):
        task_id = data.draw(st.sampled_from(self._buried()), label="task")
        if self.world.revive(task_id, step):
            self.db.fetch("select fleet.revive($1, $2)", task_id, step)
            return
        dead = self.world.tasks[task_id]
        holder = self.world.slot_holder(dead.job, dead.unique_slot)
        with pytest.raises(asyncpg.UniqueViolationError, match=rf"held by task {holder}\b"):
            self.db.fetch("select fleet.revive($1, $2)", task_id, step)

    @precondition(lambda self: self.world.live())
    @rule(data=st.data())
    def somebody_revives_what_is_live(self, data):
        task_id = data.draw(st.sampled_from([task.id for task in self.world.live()]), label="task")
        with pytest.raises(asyncpg.PostgresError, match=f"task {task_id} is live"):
            self.db.fetch("select fleet.revive($1)", task_id)

    @precondition(lambda self: self.world.live())
    @rule(data=st.data())
    def an_operator_deletes_a_row(self, data):
        task_id = data.draw(st.sampled_from([task.id for task in self.world.live()]), label="task")
        self.db.fetch("delete from fleet.task where id = $1", task_id)
        self.world.delete(task_id)

    def _buried(self) -> list[int]:
        return [task.id for task in self.world.tasks.values() if task.state == "buried"]

    def teardown(self) -> None:
        """Nothing is stuck: whatever state the story ends in, everything can be finished."""
        everything = (*KNOWN, "x/c")
        for owner in OWNERS:
            held = self._held(owner)
            self._write(owner, held, [Released()] * len(held), Policy())
            self.every_live_row_is_as_the_model_says()
        for _ in range(len(self.world.tasks) + 1):
            if not self.world.live():
                break
            self.time_passes(60.0)
            self.what_is_due_is_promoted()
            self.keys_are_granted()
            self.every_live_row_is_as_the_model_says()
            for queue in QUEUES:
                held = self._claim(OWNERS[0], queue, 1000, everything)
                self._write(OWNERS[0], held, [Completed("42")] * len(held), Policy())
                self.every_live_row_is_as_the_model_says()
        assert self.world.live() == []
        self.every_task_is_in_one_place()
        self.a_key_has_one_holder_and_nobody_waits_in_vain()
        self.arrows |= self.world.arrows


def _comparable(claim: Claim) -> Claim:
    """Without what the model does not know."""
    return claim._replace(enqueued_at=EPOCH)


@pytest.fixture
def database(dsn: str) -> Iterator[Database]:
    database = Database(dsn)
    yield database
    database.close()


@pytest.mark.timeout(0)
def test_u03_the_tables_do_what_the_model_does_whatever_happens(database: Database):
    walked: set[tuple[str, str]] = set()

    run_state_machine_as_test(
        lambda: AnyStory(database, walked),
        settings=settings(
            max_examples=int(os.environ.get("FLEET_TEST_EXAMPLES") or 100),
            stateful_step_count=int(os.environ.get("FLEET_TEST_STEPS") or 50),
            deadline=None,
            derandomize="CI" in os.environ,
            suppress_health_check=list(HealthCheck),
        ),
    )

    assert walked <= documented_arrows(), "docs/state-machine.md does not know this arrow"
