"""Claims work: pops the line that has waited longest, takes what its workers can, puts it back.

full batch   → due now, behind the others that are due
short batch  → armed and parked until a wake-up or the beat, after looks at 10, 50 and 250 ms
no free slot → parked until one frees
at a limit   → parked until one of its tasks ends, or the beat; out of rate: until the next token
error        → later, and later still
"""

from __future__ import annotations

import asyncio
import logging
import operator
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from fleet.model import Claim, OwnerId, Seconds
from fleet.store.beats import arm, disarm
from fleet.store.claims import Gated, Span, claim, claim_limited, peek
from fleet.store.executor import Executor
from supervisor.heap import NEVER, Heap
from supervisor.lines import FOREIGN_EVERY, Line, Place
from supervisor.link import Disconnected

_log: Final = logging.getLogger("fleet.supervisor")

# After arming: whoever enqueued just before did not see us, and nobody will tell us.
_LOOKS: Final = (0.010, 0.040, 0.200)


_took_at: Final = operator.attrgetter("took_at")


class Fetcher:
    """The min-heap of lines and the connection that claims."""

    def __init__(
        self,
        link: Executor,
        owner: OwnerId,
        *,
        batch: int,
        error_delay: Seconds,
        room: Callable[[Line], int],
        take: Callable[[Line, list[Claim]], None],
        starved: Callable[[Line], bool],
        keep: Callable[[Line, bool], bool],
        on_doubt: Callable[[], None],
        strayed: Callable[[OwnerId, list[Claim]], None],
    ) -> None:
        self._link = link
        self.owner = owner
        self._batch = batch
        self._error_delay = error_delay
        self._room = room
        self._take = take
        self._starved = starved
        self._keep = keep
        self._on_doubt = on_doubt
        self._strayed = strayed
        self._heap: Heap[Line] = Heap()
        self._news = asyncio.Event()
        self._armed: set[str] = set()
        self._looks: dict[Line, int] = {}
        self._woken: set[Line] = set()
        # Held while a claim is under way: what it took is in nobody's hands until it comes back.
        self.claiming = asyncio.Lock()
        self.lines: dict[Place, Line] = {}
        self.stopped = False
        self.claimed: Counter[str] = Counter()

    # ── what moves a line ───────────────────────────────────────────────────────────────────────

    def add(self, line: Line) -> None:
        """Serve one more line."""
        self.lines[line.queue, line.kind, line.job] = line
        self.due(line)

    def remove(self, line: Line) -> None:
        """Serve it no more."""
        self.lines.pop((line.queue, line.kind, line.job), None)
        line.known = ()  # a claim that is under way must not bring it back
        self._armed.discard(line.queue)
        self._heap.discard(line)

    def due(self, line: Line) -> None:
        """Fetch a line as soon as possible."""
        self._heap.hasten(line, time.monotonic())
        self._news.set()

    def wake(self, queue: str, *, foreign: bool = False) -> None:
        """Something has become ready in a queue, so somebody says.

        A look into a ``foreign`` line hardly ever finds anything: the beat is soon enough for it.
        """
        now = time.monotonic()
        for line in self.lines.values():
            if line.queue == queue and (not line.foreign or (foreign and now >= line.look_at)):
                line.has_work = True
                self._woken.add(line)
                self._looks.pop(line, None)
                self.due(line)

    def freed(self, pool: str) -> None:
        """Slots of a pool have become free."""
        # Whoever took something last comes last, or one of two could have every slot that frees.
        for line in sorted(self.lines.values(), key=_took_at):
            if line.pool == pool and line.wants:
                self.due(line)

    def let_in(self, queue: str) -> None:
        """One of a queue's tasks has ended, which may have made room under a limit."""
        for line in self.lines.values():
            if line.queue == queue and line.capped and line.counts:
                self.due(line)

    def belongs_to(self, owner: OwnerId) -> None:
        """Claim for this owner from now on; it has armed nothing yet."""
        self.owner = owner
        self._armed.clear()
        for line in self.lines.values():
            self.due(line)

    def stop(self) -> None:
        """Claim nothing from now on."""
        self.stopped = True
        self._news.set()

    # ── the loop ────────────────────────────────────────────────────────────────────────────────

    async def run(self) -> None:
        """Fetch until stopped."""
        while not self.stopped:
            now = time.monotonic()
            line = self._heap.pop(now)
            if line is None:
                await self._rest(self._heap.next_at - now)
                continue
            async with self.claiming:
                await self._fetch(line)

    async def _rest(self, seconds: float) -> None:
        self._news.clear()
        try:
            async with asyncio.timeout(None if seconds == NEVER else max(seconds, 0)):
                await self._news.wait()
        except TimeoutError:
            pass

    async def _fetch(self, line: Line) -> None:
        wanted = min(self._room(line), self._batch)
        if line.paused or not line.known:
            self._heap.set(line, NEVER)
            return
        if wanted <= 0:
            if self._looks.get(line, len(_LOOKS)) < len(_LOOKS):
                line.has_work = True  # as far as we know: the look is made when there is room
            self._heap.set(line, NEVER)
            await self._make_room(line)
            return
        self._woken.discard(line)
        started = time.monotonic()
        spans = line.mark.spans(started, back=line.back)
        owner = self.owner
        try:
            claims, room, wait = await self._claim(line, owner, wanted, spans)
        except Exception as error:
            self._failed(line, error)
            return
        if owner != self.owner:
            self._strayed(owner, claims)
            self.due(line)
            return
        ended = time.monotonic()
        line.errors = 0
        line.came_back(full=len(claims) == room, starved=self._starved(line), most=2 * self._batch)
        if room:
            line.mark.looked(spans, ended, ended - started)
        line.mark.took(claims, ended)
        self.claimed[line.queue] += len(claims)
        if claims:
            line.took_at = ended
            self._looks.pop(line, None)
            self._take(line, claims)
        line.capped = len(claims) == room < wanted
        full = len(claims) == room
        # A wake-up that came while we looked may be of something that we did not see.
        line.has_work = full or line in self._woken
        line.back = not full
        try:
            if line.has_work:
                self._heap.set(line, self._again_at(line, wait))
                await self._disarm(line)
            else:
                await self._idle(line)
        except Exception as error:
            self._failed(line, error)

    async def _claim(
        self, line: Line, owner: OwnerId, wanted: int, spans: tuple[Span, ...]
    ) -> Gated:
        where = (self._link, owner, line.queue, wanted, line.known, spans)
        if not line.limited:
            return Gated(await claim(*where), wanted, None)
        return await claim_limited(
            *where, of_queue=line.of_queue, job=line.job or None, of_job=line.of_job
        )

    @staticmethod
    def _again_at(line: Line, wait: Seconds | None) -> float:
        if not line.capped:
            return time.monotonic()
        return NEVER if wait is None else time.monotonic() + wait

    async def _make_room(self, line: Line) -> None:
        """Have a worker kept for a line that never finds one idle, if there is work in it."""
        if not line.has_work or not self._keep(line, False):
            return
        now = time.monotonic()
        spans = line.mark.spans(now, back=True)
        try:
            line.has_work = await peek(self._link, line.queue, line.known, spans)
        except Exception as error:
            self._failed(line, error)
            return
        line.mark.looked(spans, now, time.monotonic() - now)
        if line.has_work:
            self._keep(line, True)

    async def _idle(self, line: Line) -> None:
        """Arm, then look again a few times, then sleep until somebody says something."""
        if line.foreign:
            line.look_at = time.monotonic() + FOREIGN_EVERY
            self._heap.set(line, NEVER)  # a NOTIFY would not wake it
            return
        if line.queue not in self._armed:
            await arm(self._link, self.owner, [line.queue])
            self._armed.add(line.queue)
            self._looks[line] = 0
            self._heap.set(line, time.monotonic())
            return
        looked = self._looks.get(line, len(_LOOKS))
        if looked < len(_LOOKS):
            self._looks[line] = looked + 1
            self._heap.set(line, time.monotonic() + _LOOKS[looked])
        else:
            self._heap.set(line, NEVER)

    async def _disarm(self, line: Line) -> None:
        if line.queue in self._armed:
            self._armed.discard(line.queue)
            await disarm(self._link, self.owner, [line.queue])

    def _failed(self, line: Line, error: Exception) -> None:
        line.errors += 1
        delay = min(self._error_delay * 2 ** (line.errors - 1), 60.0)
        if isinstance(error, Disconnected):
            # The link says what is wrong, and rations the next attempts itself.
            delay = 0.1
            self._armed.clear()
            self._on_doubt()
        else:
            _log.error("queue %s could not be fetched (%s): again in %gs", line.queue, error, delay)
        self._heap.set(line, time.monotonic() + delay)
