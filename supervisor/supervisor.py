"""The supervisor: owns the other parts and passes between them what they have to say.

    start    schema ─▶ owner ─▶ workers ─▶ loops
    loops    fetcher (claims) · finisher (writes) · heart (lease, news) · listener · watchdog
    a child  ready: its steps become lines · done: outcomes to the finisher · dead: its tasks released
    stop     no more claims ─▶ drain ─▶ release the rest ─▶ write ─▶ leave

No user code runs in here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from fleet.config import mask
from fleet.lifecycle import Crashed, Event, Released, Transition, decide
from fleet.model import Claim, OwnerId, Seconds, TaskId
from fleet.policy import Policy
from fleet.settings import RunSettings
from fleet.store import beats, claims, migrations, registry
from fleet.store.beats import Told
from fleet.store.outcomes import Outcome
from fleet.wire.messages import unpack_outcome
from fleet.worker.main import Orders
from supervisor.abilities import Abilities
from supervisor.beat import Heart
from supervisor.causes import Cause
from supervisor.child import RETIRED, Child
from supervisor.crew import Crew
from supervisor.fetcher import Fetcher
from supervisor.finisher import Finisher, Written
from supervisor.lines import Line, lines_of
from supervisor.link import Disconnected, Door, Link
from supervisor.listener import Listener
from supervisor.plan import Plan, diff, plan
from supervisor.spawning import Spawner
from supervisor.sweep import Watch, take_over
from supervisor.watchdog import Watchdog

_log: Final = logging.getLogger("fleet.supervisor")

HOUSEKEEPING: Final[Seconds] = 20.0
MAINTENANCE: Final[Seconds] = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where and what this supervisor runs."""

    app: str
    path: tuple[str, ...]
    url: str
    host: str
    cpus: int


class Supervisor:
    """One host's supervisor."""

    def __init__(self, settings: RunSettings, site: Site) -> None:
        self.settings = settings
        self.site = site
        self.owner = OwnerId(0)
        self.state = "starting"
        self.plan: Plan = plan(settings, site.cpus)
        self.crews: dict[str, Crew] = {}
        self.abilities = Abilities()
        self.restarts: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()
        self.ready = asyncio.Event()
        self._stop = asyncio.Event()
        self._stop_now = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._doubt = False
        self._acknowledged: dict[int, str] = {}
        self._watch = Watch()
        self._adrift: list[OwnerId] = []  # owners we were, whose tasks we still must put back
        self._build()

    def _build(self) -> None:
        door, url, supervisor = Door(), self.site.url, self.settings.supervisor
        hot = claims.SETTINGS
        self.claiming = Link(url, "claims", door, settings=hot)
        self.writing = Link(url, "writes", door, settings=hot)
        self.beating = Link(url, "beat", door, timeout=max(supervisor.lease / 3, 1.0))
        listen = supervisor.listen_url.url if supervisor.listen_url else url
        self.listening = Link(listen, "listen", door, timeout=5.0)
        self.spawner = Spawner(self.site.app, self.site.path, preload=supervisor.preload)
        self.finisher = Finisher(self.writing, self.owner, self._written)
        self.fetcher = Fetcher(
            self.claiming,
            self.owner,
            batch=self.settings.fetch.batch,
            error_delay=self.settings.fetch.error_delay,
            room=self._room,
            take=self._take,
            on_doubt=self._in_doubt,
        )
        self.heart = Heart(
            self.beating,
            every=self.settings.fetch.empty_delay,
            lease=supervisor.lease,
            describe=self._describe,
            on_told=self._told,
            on_lost=self._lost_lease,
        )
        self.listener = Listener(self.listening, self._news, self._after_gap)
        self.watchdog = Watchdog(
            self._children,
            self.abilities.step,
            self._limits,
            boot_timeout=supervisor.boot_timeout,
        )

    # ── start and stop ──────────────────────────────────────────────────────────────────────────

    async def run(self) -> None:
        """Run until told to stop, then drain."""
        await self._begin()
        for loop in (
            self.heart.run,
            self.heart.guard,
            self.finisher.run,
            self.fetcher.run,
            self.listener.run,
            self.watchdog.run,
            self._keep_house,
        ):
            self._spawn(loop())
        self._apply(self.plan)
        self.state = "running"
        try:
            await self._stop.wait()
            await self._drain()
        finally:
            await self._leave()

    def stop(self) -> None:
        """Drain and end; the second time, end now."""
        if self._stop.is_set():
            self._stop_now.set()
        self._stop.set()

    async def _begin(self) -> None:
        conn = await self.beating.connection()
        await migrations.require(conn)
        await self._become_owner()

    async def _become_owner(self) -> None:
        lease = self.settings.supervisor.lease
        owner = await beats.register(self.beating, self.site.host, os.getpid(), lease)
        self.owner = self.fetcher.owner = self.finisher.owner = owner
        self.heart.begin(owner)

    async def _drain(self) -> None:
        self.state = "draining"
        self.fetcher.stop()
        self.heart.hurry()
        for child in self._children():
            child.channel.send("return", list(child.held))
            child.channel.send("drain")
        await self._give_up_suspects()
        deadline = time.monotonic() + self.settings.supervisor.drain_timeout
        while any(child.held for child in self._children()):
            left = deadline - time.monotonic()
            if left <= 0 or self._stop_now.is_set():
                break
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(left, 0.05)):
                    await self._stop_now.wait()
        for child in list(self._children()):
            if child.held:
                child.verdicts |= dict.fromkeys(child.held, Released())
                child.kill("drain: its time was up")
            else:
                child.retire()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5):
                while any(c.state != "dead" for c in self._children()):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                await self.finisher.emptied()

    async def _leave(self) -> None:
        self.state = "stopped"
        for child in self._children():
            child.kill("drain: the supervisor ends")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        with contextlib.suppress(Disconnected, TimeoutError):
            async with asyncio.timeout(2):
                left = await claims.held(self.writing, self.owner)
                if not left:
                    await beats.forget(self.beating, self.owner)
                for shutdown in self._acknowledged:
                    await beats.acknowledge(self.beating, shutdown, self.owner, "down")
        for link in (self.claiming, self.writing, self.beating, self.listening):
            link.drop()
        self.spawner.stop_helpers()

    # ── the plan and its children ───────────────────────────────────────────────────────────────

    def _apply(self, new: Plan) -> None:
        """Make the crews what the plan says: start, resize, retire."""
        self.plan = new
        wanted = {pool.name: pool for pool in new.pools}
        for name, crew in self.crews.items():
            if name not in wanted:
                for child in crew.children:
                    child.retire()
        for name, pool in wanted.items():
            crew = self.crews.setdefault(name, Crew(pool))
            crew.pool = pool
            for child in crew.surplus:
                child.retire()
            for _ in range(crew.missing):
                self._start_child(crew, 0.0)

    def reload(self, settings: RunSettings) -> None:
        """Take over a new configuration, live: nothing that runs is dropped."""
        new = plan(settings, self.site.cpus, queues=self.abilities.queues or None)
        changes = diff(self.plan, new)
        self.settings = settings
        if changes:
            _log.info("the configuration has changed: %s", changes)
            self._apply(new)
            self._learn()

    def _children(self) -> Iterator[Child]:
        for crew in self.crews.values():
            yield from [child for child in crew.children if child.state != "dead"]

    def _start_child(self, crew: Crew, pause: Seconds) -> None:
        crew.starting += 1
        self._spawn(self._start(crew, pause))

    async def _start(self, crew: Crew, pause: Seconds) -> None:
        await asyncio.sleep(pause)
        if self._stop.is_set():
            crew.starting -= 1
            return
        crew.numbers += 1
        title = f"{crew.pool.name}#{crew.numbers}"
        child = Child(self, crew.pool.name, self._orders(crew, title))
        try:
            await child.start(self.spawner)
        except Exception:
            _log.exception("worker %s could not be started", title)
            crew.starting -= 1
            self._start_child(crew, crew.died(child, "workers cannot be started") + 0.5)
            return
        crew.starting -= 1
        crew.children.append(child)
        if self._stop.is_set():
            child.retire()

    def _orders(self, crew: Crew, title: str) -> Orders:
        return Orders(
            app=self.site.app,
            path=self.site.path,
            worker=f"{self.site.host}/{self.owner}/{title}",
            title=title,
            owner=self.owner,
            concurrency=crew.pool.concurrency,
            database_url=self.site.url,
            lease=self.settings.supervisor.lease,
            queues={q.name: q.policy for q in self.settings.queues},
        )

    def _limits(self, child: Child) -> tuple[int | None, int | None]:
        pool = self.crews[child.pool].pool
        return pool.max_tasks, pool.max_memory

    # ── what children say ───────────────────────────────────────────────────────────────────────

    def child_ready(self, child: Child, abilities: dict[str, Any]) -> None:
        """Serve the steps it knows, and plan again with the queues they are in."""
        crew = self.crews[child.pool]
        if forbids := abilities.get("preload"):
            _log.warning("%s, so workers are started without preloading", forbids)
            self.spawner.method = "spawn"
        named = abilities.get("database")
        if named and mask(named) != mask(self.site.url):
            crew.trouble = f"its application names another database: {mask(named)}"
            _log.error("worker %s: %s", child.orders.title, crew.trouble)
            child.kill("boot: its application names another database")
            return
        if not crew.deaths:
            crew.trouble = None
        if self.abilities.learn(abilities):
            self._spawn(self._register())
            with contextlib.suppress(Exception):
                self._apply(plan(self.settings, self.site.cpus, queues=self.abilities.queues))
        self._learn()
        self.ready.set()
        crew.serve_suspects()
        self.fetcher.freed(child.pool)

    def _learn(self) -> None:
        """Make lines of what the ready workers know."""
        known = lines_of(self.abilities.steps)
        for (queue, kind), steps in known.items():
            served = self.plan.served(queue)
            if served is None:
                continue
            line = self.fetcher.lines.get((queue, kind))
            if line is None:
                line = Line(queue, kind, served.pool)
                self.fetcher.add(line)
            line.pool, line.weight, line.rank = served.pool, served.weight, served.rank
            if line.learn(tuple(sorted(steps))):
                self.fetcher.due(line)

    async def _register(self) -> None:
        with contextlib.suppress(Disconnected):
            await registry.register(self.writing, self.abilities)

    def child_failed(self, child: Child, told: dict[str, Any]) -> None:
        """Say why it could not load the application; its exit follows."""
        crew = self.crews[child.pool]
        first = crew.trouble is None
        crew.trouble = f"the application could not be loaded: {told['error']}"
        log = _log.error if first else _log.debug
        log("worker %s: %s\n%s", child.orders.title, crew.trouble, told["traceback"])

    def child_done(self, child: Child, outcomes: list[list[Any]]) -> None:
        """Pass outcomes on to be written; those that are written already go on at once."""
        crew = self.crews[child.pool]
        for packed in outcomes:
            held = child.held.pop(packed[0], None)
            if held is None or held.claim.fence != packed[1]:
                continue
            outcome, fence = unpack_outcome(held.claim, packed, child.orders.worker)
            if line := self._line(held.claim):
                line.ended(outcome.took)
            if fence is None:
                self.finisher.put(outcome)
            else:
                self._written(Written(outcome, self.finisher.following(outcome, fence)))
        if child.exclusive and not child.held:
            child.exclusive = False
        crew.recovered()
        crew.serve_suspects()
        self.fetcher.freed(child.pool)

    def child_returned(self, child: Child, ids: list[TaskId]) -> None:
        """Give back to the queue what it has not started."""
        back = [child.held.pop(task).claim for task in ids if task in child.held]
        if back:
            self._spawn(self._unclaim(back))

    def child_progress(self, child: Child, notes: list[list[Any]]) -> None:
        """Keep how far steps have come."""
        self._spawn(self._note(notes))

    def child_dead(self, child: Child, cause: Cause) -> None:
        """Release its tasks with the cause, and start another one."""
        crew = self.crews[child.pool]
        crew.children.remove(child)
        planned = child.intent == RETIRED
        if not planned:
            self.restarts[cause.kind] += 1
        running = {entry.task_id for entry in child.running()}
        for task, held in child.held.items():
            if task in running:
                event = child.verdicts.get(task) or Crashed(cause.failure(), suspects=len(running))
                self.finisher.put(self._outcome(held.claim, event, child.orders.worker))
        unstarted = [held.claim for task, held in child.held.items() if task not in running]
        if unstarted:
            self._spawn(self._unclaim(unstarted))
        if not self._stop.is_set():
            if not planned:
                log = _log.warning if cause.kind != "boot" else _log.info
                log("worker %s (pid %s): %s", child.orders.title, child.pid, cause.text)
            pause = 0.0 if planned else crew.died(child, crew.trouble)
            for _ in range(crew.missing):
                self._start_child(crew, pause)

    # ── claims in, outcomes out ─────────────────────────────────────────────────────────────────

    def _line(self, claim: Claim) -> Line | None:
        kind = self.abilities.step(claim)["kind"]
        return self.fetcher.lines.get((claim.queue, kind))

    def _room(self, line: Line) -> int:
        """How many tasks of a line to claim: its free slots, its share, and a little ahead."""
        if self.finisher.crowded:
            return 0
        crew = self.crews[line.pool]
        free = crew.free(line.kind) - len(crew.alone)
        ahead = line.ahead
        others = [
            other
            for other in self.fetcher.lines.values()
            if other.pool == line.pool and other.has_work and not other.paused
        ]
        if len(others) > 1 and line.kind == "async":
            if self.plan.balance == "strict":
                if any(other.rank < line.rank for other in others):
                    return 0
            else:
                share = line.weight / sum(other.weight for other in others)
                held = sum(
                    1
                    for child in crew.children
                    for h in child.held.values()
                    if h.claim.queue == line.queue
                )
                free = min(free, max(1, round(share * crew.slots)) - held)
                ahead = round(ahead * share)
        waiting = sum(max(0, len(c.held) - c.orders.concurrency) for c in crew.children)
        return free + max(0, ahead - waiting)

    def _take(self, line: Line, got: list[Claim]) -> None:
        left = self.crews[line.pool].hand_out(got, line.kind)
        if left:
            self._spawn(self._unclaim(left))

    def _written(self, written: Written) -> None:
        """An outcome is in the database: go on with the next step, if there is one."""
        self.outcomes[type(written.outcome.transition).__name__] += 1
        claim = written.onward
        if claim is None:
            return
        if self._stop.is_set():
            self._spawn(self._unclaim([claim]))
            return
        line = self._line(claim)
        crew = self.crews[line.pool] if line else None
        if crew is None or crew.hand_out([claim], line.kind if line else "async"):
            self._spawn(self._unclaim([claim]))

    def _outcome(self, claim: Claim, event: Event, worker: str) -> Outcome[Transition]:
        policy = self.abilities.policy(claim)
        return Outcome(claim, decide(claim, event, policy, 0.5), worker, 0.0, policy.keep)

    async def _unclaim(self, back: list[Claim]) -> None:
        while True:
            try:
                await claims.unclaim(self.writing, self.owner, back)
            except Disconnected:
                self._in_doubt()
                return
            except Exception:
                _log.exception("tasks could not be given back; trying again")
                await asyncio.sleep(0.5)
                continue
            return

    async def _give_up_suspects(self) -> None:
        for crew in self.crews.values():
            waiting = list(crew.alone)
            crew.alone.clear()
            if waiting:
                await self._unclaim(waiting)

    async def _note(self, notes: list[list[Any]]) -> None:
        with contextlib.suppress(Disconnected):
            await beats.note_progress(self.writing, self.owner, notes)

    # ── the beat and the news ───────────────────────────────────────────────────────────────────

    def _describe(self) -> tuple[str, list[Any], list[str]]:
        workers = [
            {
                "name": child.orders.title,
                "pid": child.pid,
                "state": child.state,
                "running": sorted(
                    f"{child.held[r.task_id].claim.job}.{child.held[r.task_id].claim.step}"
                    for r in child.running()
                )[:20],
            }
            for child in self._children()
        ]
        return self.state, workers, sorted({line.queue for line in self.fetcher.lines.values()})

    async def _told(self, told: Told) -> None:
        for queue in told.ready:
            self.fetcher.wake(queue)
        for task in told.cancel:
            self._cancel(task)
        self._follow(told.queues)
        for command in told.shutdown:
            await self._command(command)
        await self._sweep(told)
        if self._doubt:
            await self._reconcile()

    def _follow(self, overrides: dict[str, dict[str, Any]]) -> None:
        for line in self.fetcher.lines.values():
            paused = bool(overrides.get(line.queue, {}).get("paused"))
            if line.paused and not paused:
                self.fetcher.due(line)
            line.paused = paused

    async def _command(self, command: dict[str, Any]) -> None:
        if command["host"] not in (None, self.site.host) or command["queue"] is not None:
            return
        if command["id"] not in self._acknowledged:
            self._acknowledged[command["id"]] = "draining"
            _log.info("told to shut down (request %s)", command["id"])
            with contextlib.suppress(Disconnected):
                await beats.acknowledge(self.beating, command["id"], self.owner, "draining")
            self.stop()

    async def _sweep(self, told: Told) -> None:
        silent = self._watch.silent(told.owners, time.monotonic(), self.beating.connects)
        for owner in silent:
            with contextlib.suppress(Disconnected):
                await take_over(self.writing, OwnerId(owner), self.abilities.policy, self.site.host)

    def _news(self, channel: str, payload: str) -> None:
        if channel == "fleet_wake":
            self.fetcher.wake(payload)
        elif channel == "fleet_cancel":
            self._cancel(int(payload))
        else:
            self.heart.hurry()

    def _after_gap(self) -> None:
        for line in self.fetcher.lines.values():
            self.fetcher.due(line)
        self.heart.hurry()

    def _cancel(self, task: TaskId) -> None:
        for child in self._children():
            if task in child.held and task not in self.watchdog.cancelled:
                self.watchdog.cancelled[task] = time.monotonic()
                child.channel.send("cancel", [task])

    def _in_doubt(self) -> None:
        self._doubt = True
        self.heart.hurry()

    async def _reconcile(self) -> None:
        """After a lost reply: give back what is ours in the database and not in our hands."""
        with contextlib.suppress(Disconnected):
            ours = await claims.held(self.writing, self.owner)
            hands = {task for child in self._children() for task in child.held}
            hands |= {c.id for crew in self.crews.values() for c in crew.alone}
            hands |= self.finisher.tasks
            stranded = [c for c in ours if c.id not in hands]
            self._doubt = False
            if stranded:
                _log.info("%d claimed tasks never reached us and are given back", len(stranded))
                await claims.unclaim(self.writing, self.owner, stranded)

    async def _lost_lease(self, why: str) -> None:
        """Stop every worker at once: somebody else may be given their tasks. Then begin anew."""
        _log.error("%s: all workers are stopped, and this host starts again as a new owner", why)
        for child in list(self._children()):
            child.held.clear()
            child.kill("lease: it was lost")
        for crew in self.crews.values():
            crew.alone.clear()
        self.finisher.forget()
        while True:
            try:
                await self._become_owner()
                return
            except Disconnected:
                await asyncio.sleep(0.1)

    # ── housekeeping ────────────────────────────────────────────────────────────────────────────

    async def _keep_house(self) -> None:
        maintained = -MAINTENANCE
        while True:
            await asyncio.sleep(HOUSEKEEPING)
            with contextlib.suppress(Disconnected):
                await registry.register(self.writing, self.abilities)
                if time.monotonic() - maintained > MAINTENANCE:
                    maintained = time.monotonic()
                    await self.writing.fetch("select * from fleet.maintain()")

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._reap)

    def _reap(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a part of the supervisor failed", exc_info=error)
            self.stop()


def host_name() -> str:
    """Return what this host calls itself."""
    return socket.gethostname()


__all__ = ["Policy", "Site", "Supervisor", "host_name"]
