"""The child process: boots the application, runs the steps it is given, and reports.

    boot:   own process group ─▶ lifeline ─▶ import the application ─▶ lifespan ─▶ "ready"
    run:    frames in ─▶ pending ─▶ running (board) ─▶ outcomes out, a frame a turn of the loop
    end:    "stop", once nothing runs; or the end of the channel, at once

It talks to nobody but its supervisor; only transactional steps have a connection to the database.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import socket
import sys
import time
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import forkserver
from typing import Any, Final, TypeVar

import orjson
import setproctitle
import uvloop

from fleet.app import Fleet
from fleet.context import Signal
from fleet.errors import FleetError
from fleet.lifecycle import Cancelled, Released, Transition, decide
from fleet.model import Claim, Failure, OwnerId, Seconds
from fleet.policy import Policy, Settings
from fleet.store.failures import is_disconnect
from fleet.store.outcomes import Outcome
from fleet.wire.board import Board
from fleet.wire.channel import Channel
from fleet.wire.messages import pack_outcome, unpack_claim
from fleet.worker import logs
from fleet.worker.execute import MAX_MESSAGE, clean, event_of, failure, find_step
from fleet.worker.lifeline import tie
from fleet.worker.lifespan import lifespan
from fleet.worker.load import abilities, load
from fleet.worker.runner import Runner
from fleet.worker.threads import StepThread
from fleet.worker.transactions import Transactions

T = TypeVar("T")

BOOT_FAILED: Final = 78  # EX_CONFIG
CANCEL_GRACE: Final[Seconds] = 5.0
NO_CONNECTION: Final[Seconds] = 0.5
DRAINED: Final = Released(
    Failure(type="Drained", message="its worker was shut down before the step had ended")
)
_NOTHING: Final = Settings()


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """Everything a worker must know; it travels through the fork server."""

    app: str
    path: tuple[str, ...]
    worker: str
    title: str
    owner: int
    concurrency: int
    database_url: str
    lease: Seconds
    queues: dict[str, Settings]
    defaults: Settings

    def below(self, queue: str) -> tuple[Settings, ...]:
        """Return what counts less than a step's and a job's own settings, the strongest first."""
        return self.queues.get(queue, _NOTHING), self.defaults


def new_loop() -> asyncio.AbstractEventLoop:
    """Make the event loop of a worker."""
    return uvloop.new_event_loop()


async def main(sock: socket.socket, lifeline: Any, board: Any, orders: Orders) -> None:
    """Run a worker until it is told to stop or its supervisor is gone."""
    with contextlib.suppress(OSError):  # already the leader of its group
        os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    setproctitle.setproctitle(f"fleet: worker {orders.title} booting")
    tie(lifeline.detach())
    fd = board.detach()
    worker = Worker(orders, Board(fd, orders.concurrency))
    Board.seal(fd)
    os.close(fd)
    _let_go_of_the_fork_server()
    await worker.serve(sock)


def _let_go_of_the_fork_server() -> None:
    """Close the pipe by which it sees who lives: a byte that a step writes into it ends it."""
    server: Any = forkserver._forkserver
    fd, server._forkserver_alive_fd = server._forkserver_alive_fd, None
    if fd is not None:
        os.close(fd)


class Worker:
    """The state of one worker process."""

    def __init__(self, orders: Orders, board: Board) -> None:
        self.orders = orders
        self.board = board
        self.pending: deque[Claim] = deque()
        self.running: dict[int, asyncio.Task[None]] = {}
        self.solo = False  # a def step runs: it has the process to itself
        self.outbox: list[orjson.Fragment] = []
        self.notes: dict[int, tuple[int, int, float, str]] = {}
        self.stopping = asyncio.Event()
        self.idle = asyncio.Event()
        self.idle.set()
        self._flushing = False
        self._draining: defaultdict[str, Signal] = defaultdict(Signal)  # by queue
        self._released: set[int] = set()  # running tasks that are to be put back

    async def serve(self, sock: socket.socket) -> None:
        """Boot, then run until the end."""
        self.loop = asyncio.get_running_loop()
        self.channel = await Channel.open(sock, self._on_message, self._on_end)
        try:
            app = load(self.orders.app, self.orders.path)
            logs.inherit()
            async with lifespan(app) as state:
                await self._work(app, state)
        except Exception as error:
            if self.stopping.is_set():
                raise
            self.stopping.set()  # the end of the channel is ours, not the supervisor's
            told = failure(error)
            self.channel.send("failed", {"traceback": told.traceback, "error": told.message})
            self.channel.close()
            await asyncio.sleep(0.1)  # let it go out
            sys.exit(BOOT_FAILED)

    async def _work(self, app: Fleet, state: Any) -> None:
        self.app = app
        transactions = Transactions(
            self.orders.database_url,
            OwnerId(self.orders.owner),
            limit=self.orders.concurrency,
            patience=self.orders.lease,
        )
        self.runner = Runner(
            app,
            OwnerId(self.orders.owner),
            self.orders.worker,
            connect=transactions.connect,
            look=transactions.look,
            state=state,
            draining=self._draining.__getitem__,
            on_progress=self._on_progress,
            below=self.orders.below,
            bench=_ToTheEnd(),
        )
        self._title("idle")
        self.channel.send("ready", abilities(app, self.orders.below) | _preloaded())
        await self.stopping.wait()
        await self.idle.wait()
        self._flush()
        self.runner.close()
        transactions.close()
        self.channel.close()

    # ── what the supervisor says ────────────────────────────────────────────────────────────────

    def _on_message(self, kind: str, body: Any) -> None:
        match kind:
            case "run":
                self.pending.extend(unpack_claim(packed) for packed in body)
                self._pump()
            case "cancel":
                for task_id in body:
                    self._cancel(task_id)
            case "return":
                self._give_back(set(body))
            case "drain":
                for queue in list(self._draining) if body is None else body:
                    self._draining[queue].set()
            case "release":
                self._release(body)
            case "ping":
                self.channel.send("pong", body)
            case "stop":
                self.stopping.set()

    def _on_end(self) -> None:
        # The supervisor is gone, and with it the right to write anything.
        if not self.stopping.is_set():
            os.kill(0, signal.SIGKILL)

    def _give_back(self, wanted: set[int]) -> None:
        unstarted = [claim.id for claim in self.pending if claim.id in wanted]
        self.pending = deque(claim for claim in self.pending if claim.id not in wanted)
        self.channel.send("returned", unstarted)

    def _cancel(self, task_id: int) -> None:
        for claim in self.pending:
            if claim.id == task_id:
                self.pending.remove(claim)
                transition = decide(claim, Cancelled(), Policy(), 0.0)
                outcome = Outcome(claim, transition, self.orders.worker, 0.0, Policy().keep)
                self._report(_sealed(outcome, None))
                return
        if task := self.running.get(task_id):
            self.runner.cancel(task_id)
            # Cooperative first; a coroutine that takes no notice is cancelled. A def step takes no
            # notice of that either, and is the supervisor's to kill.
            self.loop.call_later(CANCEL_GRACE, task.cancel)

    def _release(self, ids: list[int]) -> None:
        """Stop steps that may not go on here, at no cost; a def step goes with its process."""
        for task_id in ids:
            if task := self.running.get(task_id):
                self._released.add(task_id)
                task.cancel()

    # ── running ─────────────────────────────────────────────────────────────────────────────────

    def _pump(self) -> None:
        """Start what may start, in the order it came."""
        while self.pending and not self.solo:
            claim = self.pending[0]
            exclusive = claim.alone or not self._is_async(claim)
            if (exclusive and self.running) or len(self.running) >= self.orders.concurrency:
                return
            self.pending.popleft()
            self.solo = exclusive
            self.idle.clear()
            slot = self.board.enter(claim.id, claim.fence)
            self._start(claim, slot)

    def _start(self, claim: Claim, slot: int) -> None:
        work = self._run(claim, slot)
        if sys.version_info >= (3, 12):
            task = asyncio.Task(work, loop=self.loop, eager_start=True)
            if task.done():
                return
        else:
            task = self.loop.create_task(work)
        self.running[claim.id] = task
        if self.solo:
            self._title(f"running {claim.job}.{claim.step}")

    async def _run(self, claim: Claim, slot: int) -> None:
        # SystemExit passes through here and ends the process: the board must say who was running.
        started = time.monotonic()
        try:
            attempt = await self.runner.run(claim)
            sealed = _sealed(attempt.outcome, attempt.fence)
        except (Exception, asyncio.CancelledError) as error:
            sealed = await self._mishap(claim, error, started)
        self._report(sealed)
        self.board.leave(slot)
        self.running.pop(claim.id, None)
        self._released.discard(claim.id)
        if self.solo:
            self.solo = False
            self._title("idle")
        if not self.running and not self.pending:
            self.idle.set()
        self.loop.call_soon(self._pump)

    async def _mishap(self, claim: Claim, error: BaseException, started: float) -> orjson.Fragment:
        """Say what becomes of a task whose step could not be run to an end.

        Without a connection for its transaction the step has not even begun: that is free, and
        the pause keeps it from coming back at once, again and again.
        """
        event = event_of(error, cancelled=False)
        if claim.id in self._released and isinstance(error, asyncio.CancelledError):
            event = DRAINED
        elif is_disconnect(error):
            event = Released(failure(error))
            await asyncio.sleep(NO_CONNECTION)
        job, step = find_step(self.app.jobs, claim)
        policy = job.policy(step, *self.orders.below(claim.queue))
        transition = decide(claim, event, policy, random.random())
        took = time.monotonic() - started
        return _sealed(Outcome(claim, transition, self.orders.worker, took, policy.keep), None)

    def _is_async(self, claim: Claim) -> bool:
        job = self.app.jobs.get(claim.job)
        if job is None:
            return True
        if not claim.step:
            return job.first.is_async
        return next((s.is_async for s in job.steps if s.name == claim.step), True)

    # ── reporting ───────────────────────────────────────────────────────────────────────────────

    def _report(self, sealed: orjson.Fragment) -> None:
        self.outbox.append(sealed)
        if not self._flushing:
            self._flushing = True
            self.loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        self._flush_notes()
        if self.outbox:
            self.channel.send("done", self.outbox)
            self.outbox = []

    def _on_progress(self, claim: Claim, fraction: float, message: str) -> None:
        note = (claim.id, claim.fence, fraction, clean(message)[:MAX_MESSAGE])
        self.loop.call_soon_threadsafe(self._note, note)

    def _note(self, note: tuple[int, int, float, str]) -> None:
        if not self.notes:
            # Not at once: a step may report a thousand times a second.
            self.loop.call_later(0.1, self._flush_notes)
        self.notes[note[0]] = note

    def _flush_notes(self) -> None:
        if self.notes:
            self.channel.send("progress", list(self.notes.values()))
            self.notes.clear()

    def _title(self, doing: str) -> None:
        setproctitle.setproctitle(f"fleet: worker {self.orders.title} {doing}")


def _sealed(outcome: Outcome[Transition], fence: int | None) -> orjson.Fragment:
    """Return an outcome as it travels. Each by itself: one that cannot must not hold up others."""
    try:
        return orjson.Fragment(orjson.dumps(pack_outcome(outcome, fence)))
    except TypeError as error:
        raise FleetError(f"what became of the step has no form as JSON: {error}") from error


class _ToTheEnd(StepThread):
    """Waits for a ``def`` step until it has ended, whatever its timeout or a cancel says.

    A function cannot be stopped, only its process can: as long as it runs the board says so, and
    at its timeout the supervisor ends them both. One that ends in the last moment is too late.
    """

    async def run(self, fn: Callable[[], T]) -> T:
        running = asyncio.ensure_future(super().run(fn))
        stopped: asyncio.CancelledError | None = None
        while not running.done():
            try:
                await asyncio.wait([running])
            except asyncio.CancelledError as error:
                stopped = error
        if stopped is not None:
            running.exception()
            raise stopped
        return running.result()


def _preloaded() -> dict[str, Any]:
    """Say what the fork server found that forbids forking from it, if we came from one."""
    preload = sys.modules.get("fleet.worker.preload")
    return {"preload": getattr(preload, "FORBIDS", None)}
