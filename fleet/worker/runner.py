"""Runs the steps of claimed tasks and says what became of them.

A worker process has one, and so has ``fleet.testing.drain``. It writes nothing itself, except
the outcomes of transactional steps and of ``ctx.finish``, which must be written with the step's own
effects; those come back as ``written``.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import asyncpg

from fleet.context import Context, Host, Signal
from fleet.errors import FleetError, LeaseLost
from fleet.job import Job
from fleet.lifecycle import (
    Advance,
    Advanced,
    Completed,
    Event,
    Failed,
    Refused,
    Released,
    Snoozed,
    Transition,
    decide,
    onward,
)
from fleet.model import Claim, Failure, OwnerId, Seconds
from fleet.policy import Policy, Settings
from fleet.step import Step
from fleet.store.connections import at_once, executor_for, is_sync
from fleet.store.enqueue import children_json
from fleet.store.failures import is_disconnect, is_locked
from fleet.store.outcomes import Outcome, write_in_transaction
from fleet.store.soon import LOCKS, soon
from fleet.store.standing import Standing, Undecided
from fleet.worker.execute import Misrouted, call, event_of, failure, find_step, interpret
from fleet.worker.line import (
    DATABASE_ERRORS,
    answered,
    for_the_connection,
    hung_up,
    is_gone,
    roll_back,
)
from fleet.worker.threads import Bench, StepThread

if TYPE_CHECKING:
    from fleet.app import Fleet

_log: Final = logging.getLogger("fleet.worker")

_Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"
Connect = Callable[[], AbstractAsyncContextManager["asyncpg.Connection[asyncpg.Record]"]]
Look = Callable[[Claim], Awaitable[Standing]]


class Blocked(FleetError):
    """Somebody's open transaction is in the way of an outcome: the step runs again, at no cost."""

    def __init__(self) -> None:
        super().__init__(
            f"for over {LOCKS:g}s an open transaction of somebody's had locked what this step's "
            f"transaction writes at its end (a `unique` that ctx.enqueue names, the task, what a "
            f"deferred trigger touches), so the step is rolled back and runs again. See that "
            f"whoever has it commits soon: pg_stat_activity shows it as idle in transaction."
        )


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt's end. ``fence`` is set if the outcome is in the database already."""

    outcome: Outcome[Transition]
    fence: int | None = None

    def next(self, fence: int) -> Claim | None:
        """Return the claim to go on with once the outcome is written, if it stays ours."""
        transition = self.outcome.transition
        if isinstance(transition, Advance):
            return onward(self.outcome.claim, transition, fence)
        return None


@dataclass(slots=True)
class _Run:
    """One attempt under way."""

    claim: Claim
    job: Job[Any, Any]
    step: Step
    policy: Policy
    started: float
    context: Context
    finished: Outcome[Transition] | None = None


class Runner(Host):
    """Executes claims of one owner, in this process."""

    def __init__(
        self,
        app: Fleet,
        owner: OwnerId,
        worker: str,
        *,
        connect: Connect,
        look: Look,
        state: Any = None,
        draining: Callable[[str], Signal] | None = None,
        on_progress: Callable[[Claim, Seconds, str], None] | None = None,
        below: Callable[[str], tuple[Settings, ...]] | None = None,
        bench: Bench | None = None,
    ) -> None:
        self.app = app
        self.owner = owner
        self.worker = worker
        self.state = state
        self._draining = draining or (lambda _: Signal())  # of a queue
        self._connect = connect
        self._look = look
        self._on_progress = on_progress
        self._below = below or (lambda _: ())  # what stands below a job's own, by queue
        self._runs: dict[int, _Run] = {}
        self._bench = bench or StepThread()

    def close(self) -> None:
        """Let the thread of ``def`` steps go, without waiting for one that will not end."""
        self._bench.close()

    def cancel(self, task_id: int) -> None:
        """Tell the step of a task, if it runs here, that it is cancelled."""
        if run := self._runs.get(task_id):
            run.context.cancelled.set()

    async def run(self, claim: Claim) -> Attempt:
        """Execute one attempt; whatever happens in it, an outcome comes back.

        Where no connection can be had for a transactional step, nothing has happened: that is
        raised.
        """
        started = time.monotonic()
        try:
            job, step = find_step(self.app.jobs, claim)
        except Misrouted as error:
            return self._misrouted(claim, error, started)
        claim = claim._replace(step=step.name)
        context = Context(
            claim,
            step.name,
            jobs=self.app.jobs.get,
            host=self,
            state=self.state,
            draining=self._draining(claim.queue),
        )
        policy = job.policy(step, *self._below(claim.queue))
        run = _Run(claim, job, step, policy, started, context)
        self._runs[claim.id] = run
        try:
            return await (self._in_transaction(run) if step.transactional else self._plain(run))
        finally:
            del self._runs[claim.id]

    # ── a step on its own ───────────────────────────────────────────────────────────────────────

    async def _plain(self, run: _Run) -> Attempt:
        try:
            event = interpret(run.job, run.step, await self._call(run))
        except BaseException as error:
            event = self._raised(run, error)
        if run.finished is not None:
            return await self._after_finish(run, run.finished, event)
        return Attempt(self._outcome(run, event))

    async def _call(self, run: _Run) -> Any:
        value = run.step.decode(run.claim.input) if run.step.takes_input else None
        return await call(
            run.context,
            run.step,
            value,
            timeout=run.policy.timeout,
            middleware=self.app.middleware,
            bench=self._bench,
        )

    def _raised(self, run: _Run, error: BaseException) -> Event:
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
            if not run.context.cancelled.is_set():
                raise error  # not the step's doing: whoever runs us is being stopped
            task.uncancel()
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise error
        return event_of(error, cancelled=run.context.cancelled.is_set())

    # ── a step in a transaction ─────────────────────────────────────────────────────────────────

    async def _in_transaction(self, run: _Run) -> Attempt:
        """Run the step and write its outcome in one transaction: both happen, or neither."""
        async with self._connect() as conn:
            transaction = conn.transaction()
            try:
                with answered(conn):
                    await transaction.start()
                run.context._tx = conn
                outcome = self._outcome(run, interpret(run.job, run.step, await self._call(run)))
                fence = await self._write(conn, outcome)
            except BaseException as error:
                gone = await roll_back(conn, transaction)
                return Attempt(self._outcome(run, self._broken(run, error, gone)))
            finally:
                run.context._tx = None
            try:
                with answered(conn):
                    await transaction.commit()
            except DATABASE_ERRORS as error:
                if not is_gone(conn) and not hung_up(error):
                    # The server answered: a deferred constraint, a serialization failure.
                    blocked = is_locked(error)
                    event = Released(failure(Blocked())) if blocked else Failed(failure(error))
                    return Attempt(self._outcome(run, event))
            else:
                return Attempt(outcome, fence)
        return await self._in_doubt(run, outcome)

    async def _write(self, conn: _Connection, outcome: Outcome[Transition]) -> int:
        with answered(conn):
            try:
                await soon(conn)
                fence = await write_in_transaction(conn, self.owner, outcome)
            except asyncpg.LockNotAvailableError as error:
                raise Blocked from error
        if fence is None:
            raise LeaseLost(outcome.claim.id, outcome.claim.fence)
        return fence

    def _broken(self, run: _Run, error: BaseException, gone: bool) -> Event:
        if isinstance(error, LeaseLost):
            _log.warning("%s", error)
            return Released()  # its write is fenced too, and will do nothing
        if isinstance(error, Blocked):
            return Released(failure(error))
        event = self._raised(run, error)
        if gone and isinstance(event, Failed) and for_the_connection(error):
            # The database went away under the step, which is not the step's fault.
            return Released(event.error)
        return event

    async def _in_doubt(self, run: _Run, outcome: Outcome[Transition]) -> Attempt:
        """COMMIT was sent and no answer came: look whether it happened."""
        try:
            found = await self._look(run.claim)
        except Exception as error:
            return self._unseen(run, error)
        if found.how == "held":
            told = "the connection broke at COMMIT; it had not happened, so the step runs again"
            return Attempt(self._outcome(run, Released(Failure(type="LostCommit", message=told))))
        _log.info("task %s: the answer to COMMIT was lost, it had happened", run.claim.id)
        return Attempt(outcome, found.fence)

    # ── ctx.finish ──────────────────────────────────────────────────────────────────────────────

    def finish(self, context: Context, value: Any, conn: Any) -> Awaitable[None]:
        """Write the outcome on the user's own connection; see ``Context.finish``."""
        run = self._runs[context.task_id]
        if run.step.transactional:
            raise FleetError("a transactional step writes its outcome itself: just return")
        if run.finished is not None:
            raise FleetError("ctx.finish was called twice in one attempt")
        outcome = self._outcome(run, interpret(run.job, run.step, value))
        executor = executor_for(conn)

        async def write() -> None:
            fence = await write_in_transaction(executor, self.owner, outcome)
            if fence is None:
                raise LeaseLost(run.claim.id, run.claim.fence)
            run.finished = outcome

        if not is_sync(conn):
            return write()
        at_once(write())
        return _ALREADY_DONE

    async def _after_finish(
        self, run: _Run, finished: Outcome[Transition], event: Event
    ) -> Attempt:
        """The step has ended; did the transaction it finished in commit?"""
        state = "was never committed"
        try:
            found = await self._look(run.claim)
        except Undecided:
            state = "is still open"
        except Exception as error:
            return self._unseen(run, error)
        else:
            if found.how != "held":
                return Attempt(finished, found.fence)
        if isinstance(event, Failed | Refused | Released):
            return Attempt(self._outcome(run, event))
        told = (
            f"ctx.finish was called, but the transaction it was called in {state}: commit it, or "
            f"leave its `with` block, before the step returns"
        )
        # The outcome cannot be written while that transaction has the row, so it is said here, too.
        _log.warning("task %s: %s", run.claim.id, told)
        return Attempt(self._outcome(run, Failed(Failure(type="NotCommitted", message=told))))

    def _unseen(self, run: _Run, error: Exception) -> Attempt:
        """Nobody could look. What is said now is fenced, and counts only if nothing was written."""
        away = is_disconnect(error) or isinstance(error, Undecided)
        event = Released(failure(error)) if away else Failed(failure(error))
        return Attempt(self._outcome(run, event))

    # ── outcomes ────────────────────────────────────────────────────────────────────────────────

    def _outcome(self, run: _Run, event: Event) -> Outcome[Transition]:
        went_well = isinstance(event, Advanced | Completed | Snoozed)
        return Outcome(
            run.claim,
            decide(run.claim, event, run.policy, random.random()),
            self.worker,
            time.monotonic() - run.started,
            run.policy.keep,
            children_json(run.context._children) if went_well else None,
        )

    def _misrouted(self, claim: Claim, error: Misrouted, started: float) -> Attempt:
        event = Released(Failure(type="Misrouted", message=str(error)))
        policy = Policy()
        transition = decide(claim, event, policy, 0.0)
        took = time.monotonic() - started
        return Attempt(Outcome(claim, transition, self.worker, took, policy.keep))

    def progress(self, context: Context, fraction: float, message: str) -> None:
        """Pass a step's progress on."""
        if self._on_progress is not None:
            self._on_progress(context._claim, fraction, message)


class _AlreadyDone:
    """Awaiting it does nothing, and so does not awaiting it."""

    def __await__(self) -> Generator[None, None, None]:
        return
        yield


_ALREADY_DONE: Final = _AlreadyDone()
