"""One worker process: its start, its channel, its board, and the certain knowledge of its death.

Death is what a pidfd says, because that cannot be wrong; the cause is what the exit code says.
Where there is none (macOS, or FLEET_PIDFD=off, which is for the tests) the sentinel says when to
look: if the fork server dies, every sentinel fires with exit code 255 while the children still run.
When a child is dead its whole process group is killed, the channel is read to its end, and only
then is anything decided about its tasks: what it reported before it died counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, TypeAlias

from fleet.lifecycle import Event
from fleet.model import Claim, Seconds, TaskId
from fleet.wire.board import Board, Running
from fleet.wire.channel import Channel
from fleet.wire.messages import pack_claim
from fleet.worker.main import Orders
from supervisor.causes import RETIRED, Cause, cause_of, oom_kills
from supervisor.lines import Kind
from supervisor.spawning import Spawner, WorkerProcess

State: TypeAlias = Literal["booting", "ready", "retiring", "dead"]

PIDFD: Final = "FLEET_PIDFD"
FORK_SERVER_DIED: Final = 255  # what multiprocessing says then; a process may also exit so
LOOK: Final[Seconds] = 0.05

_LAST_WORDS: Final[Seconds] = 1.0
DEAF: Final[Seconds] = 0.5  # from the end of its channel to its death
LEAVING: Final[Seconds] = 10.0  # the same for one that was told to go: its lifespan ends meanwhile


class Parent(Protocol):
    """What a child tells."""

    def child_stirs(self, child: Child) -> None:
        """It has something to do, or is to end."""

    def child_ready(self, child: Child, abilities: dict[str, Any]) -> None:
        """It has loaded the application."""

    def child_failed(self, child: Child, told: dict[str, Any]) -> None:
        """It could not load the application, and will exit."""

    def child_done(self, child: Child, outcomes: list[list[Any]]) -> None:
        """Steps have ended."""

    def child_returned(self, child: Child, ids: list[TaskId]) -> None:
        """It gave back what it had not started."""

    def child_progress(self, child: Child, notes: list[list[Any]]) -> None:
        """Steps have come further."""

    def child_dead(self, child: Child, cause: Cause) -> None:
        """It is gone, and nothing more will come from it."""


@dataclass(slots=True)
class Held:
    """A task in a child's hands."""

    claim: Claim
    sent_at: float
    kind: Kind
    cancelled_at: float | None = None
    ending: bool = False  # its process is being ended because of it


class Child:
    """A worker process as its supervisor sees it."""

    def __init__(self, parent: Parent, pool: str, orders: Orders) -> None:
        self.parent = parent
        self.pool = pool
        self.orders = orders
        self.state: State = "booting"
        self.held: dict[TaskId, Held] = {}
        self.finished = 0
        self.exclusive = False  # a suspect has it to itself, or will once it is idle
        self.kept = False  # for a def step, once it is idle: it is given nothing else meanwhile
        self.started_at = self.retired_at = time.monotonic()
        self.booted = False
        self.intent: str | None = None
        self.verdicts: dict[TaskId, Event] = {}  # what a planned end means for its tasks
        self.abilities: dict[str, Any] = {}
        self._process: WorkerProcess | None = None
        self._ended = asyncio.Event()
        self._dying: asyncio.Task[None] | None = None
        self._pongs: dict[int, asyncio.Future[None]] = {}
        self._pings = 0

    @property
    def pid(self) -> int | None:
        """Its process id, once it is started."""
        return self._process.aio_process.pid if self._process else None

    # ── life ────────────────────────────────────────────────────────────────────────────────────

    async def start(self, spawner: Spawner) -> None:
        """Start the process; it tells when it is ready."""
        self._oom_before = oom_kills()
        ours, theirs = socket.socketpair()
        reading, self._lifeline = os.pipe()
        memory = Board.create(self.orders.concurrency)
        self.board = Board(memory, self.orders.concurrency)
        try:
            self.channel = await Channel.open(ours, self._on_message, self._on_end)
            self._process = await spawner.start(theirs, reading, memory, self.orders)
        except BaseException:
            # Whatever has been started after all dies of its lifeline.
            os.close(self._lifeline)
            self.board.close()
            ours.close()
            raise
        finally:
            theirs.close()
            os.close(reading)
            os.close(memory)
        self._watch()

    def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        assert self._process is not None
        assert self.pid is not None
        watched = _pidfd(self.pid)
        certain = watched is not None
        fd = os.dup(self._process.sentinel) if watched is None else watched
        loop.add_reader(fd, self._on_sign, fd, certain)

    def _on_sign(self, fd: int, certain: bool) -> None:
        asyncio.get_running_loop().remove_reader(fd)
        os.close(fd)
        self._look_whether_dead(certain=certain)

    def _look_whether_dead(self, *, certain: bool = False) -> None:
        loop = asyncio.get_running_loop()
        if certain or not self._is_there():
            self._dying = loop.create_task(self._bury())
        else:
            # It has closed its descriptors, or the fork server died: nobody else will tell.
            loop.call_later(LOOK, self._look_whether_dead)

    def _is_there(self) -> bool:
        assert self._process is not None
        code = self._process.exit_code
        return code is None or (code == FORK_SERVER_DIED and _exists(self.pid))

    def _on_end(self) -> None:
        self._ended.set()
        if self.state != "dead":
            # It may have closed its descriptors, or said what nobody understands, and live on.
            patience = DEAF if self.state == "ready" else LEAVING
            asyncio.get_running_loop().call_later(patience, self._kill_if_deaf)

    def _kill_if_deaf(self) -> None:
        if self.state != "dead" and self._dying is None:
            self.kill("channel: it was closed while the process lived on")

    async def _bury(self) -> None:
        self._kill_children()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS):
                await self._ended.wait()
        self.channel.close()
        os.close(self._lifeline)
        self.state = "dead"
        cause = cause_of(
            await self._exit_code(),
            self.intent,
            booted=self.booted,
            oom=oom_kills() > self._oom_before,
        )
        self.parent.child_dead(self, cause)
        self.board.close()

    async def _exit_code(self) -> int | None:
        """Ask the fork server for the exit code; it needs a moment to reap."""
        assert self._process is not None
        for _ in range(100):
            code = self._process.exit_code
            if code is not None:
                return code
            await asyncio.sleep(0.005)
        return None

    def kill(self, intent: str) -> None:
        """End it now, with everything it has started; ``intent`` is the cause that is recorded."""
        self._mean(intent)
        self._kill_group()

    def _mean(self, intent: str) -> None:
        if self.state != "dead" and self.intent in (None, RETIRED):
            self.intent = intent
        if self.state == "ready":
            self.state = "retiring"

    def terminate(self, intent: str) -> None:
        """Ask the process to end; whoever does not is killed."""
        self._mean(intent)
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)

    def _kill_group(self) -> None:
        if self.pid is None or self._dying is not None:
            return  # not started, or dead: its number may be another's by now
        self._kill_children()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def _kill_children(self) -> None:
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    def retire(self) -> None:
        """Give it nothing more; it ends when what it has is done."""
        if not self.booted:
            self.kill("retired: while it booted")  # it may be in an import that takes for ever
        elif self.state == "ready":
            self.state = "retiring"
            self.intent = RETIRED
            self.retired_at = time.monotonic()
            self.channel.send("stop")
            self.parent.child_stirs(self)

    # ── work ────────────────────────────────────────────────────────────────────────────────────

    @property
    def takes_work(self) -> bool:
        """Whether it may be given tasks."""
        return self.state == "ready" and not self.channel.congested

    @property
    def solo(self) -> bool:
        """Whether a def step has the process to itself, as far as we know."""
        first = next(iter(self.held.values()), None)
        return first is not None and first.kind == "def"

    def run(self, claims: list[Claim], kind: Kind) -> None:
        """Hand tasks over."""
        now = time.monotonic()
        for claim in claims:
            self.held[claim.id] = Held(claim, now, kind)
        self.channel.send("run", [pack_claim(claim) for claim in claims])
        self.parent.child_stirs(self)

    def cancel(self, task: TaskId, held: Held) -> None:
        """Tell the step of a task that it is cancelled, once."""
        if held.cancelled_at is None:
            held.cancelled_at = time.monotonic()
            self.channel.send("cancel", [task])

    def running(self) -> list[Running]:
        """Return the steps under way, by the board: true even if the process is stuck or dead."""
        return [r for r in self.board.running() if r.task_id in self.held]

    def take_back(self, before: float) -> None:
        """Ask for what was handed over before that moment and has not started."""
        if late := self.unstarted(before):
            self.channel.send("return", [claim.id for claim in late])

    def unstarted(self, before: float) -> list[Claim]:
        """Return what was handed over before that moment and has not started."""
        running = {r.task_id for r in self.board.running()}
        return [h.claim for i, h in self.held.items() if i not in running and h.sent_at <= before]

    def tasks_of(self, queue: str) -> list[TaskId]:
        """Return the tasks of a queue that it holds."""
        return [task for task, held in self.held.items() if held.claim.queue == queue]

    async def answers(self, patience: Seconds) -> bool:
        """Tell whether its event loop runs: nobody holds the interpreter."""
        self._pings += 1
        number = self._pings
        self._pongs[number] = asyncio.get_running_loop().create_future()
        self.channel.send("ping", number)
        try:
            async with asyncio.timeout(patience):
                await self._pongs[number]
        except TimeoutError:
            return False
        finally:
            del self._pongs[number]
        return True

    def _on_message(self, kind: str, body: Any) -> None:
        match kind:
            case "done":
                self.finished += len(body)
                self.parent.child_done(self, body)
            case "ready":
                self.abilities = body
                self.booted = True
                if self.state == "booting":
                    self.state = "ready"
                self.parent.child_ready(self, body)
            case "failed":
                self.parent.child_failed(self, body)
            case "returned":
                self.parent.child_returned(self, body)
            case "progress":
                self.parent.child_progress(self, body)
            case "pong":
                if (future := self._pongs.get(body)) and not future.done():
                    future.set_result(None)


def _pidfd(pid: int) -> int | None:
    """Return a descriptor that is readable once the process is dead; None if there is no such."""
    if os.environ.get(PIDFD) == "off":
        return None
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None  # macOS; or dead already, and its sentinel says so


def _exists(pid: int | None) -> bool:
    try:
        os.kill(pid or 0, 0)
    except ProcessLookupError:
        return False
    return True
