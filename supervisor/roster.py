"""Who works here: the children of every pool, as the plan wants them, replaced when they die."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from fleet.config import mask
from fleet.errors import ConfigError
from fleet.lifecycle import Crashed
from fleet.model import OwnerId, Seconds, TaskId
from fleet.policy import Settings
from fleet.settings import RunSettings
from fleet.store import registry, schedules
from fleet.worker.main import Orders
from supervisor.causes import RETIRED, Cause
from supervisor.child import Child
from supervisor.crew import Crew
from supervisor.link import Disconnected, Link
from supervisor.plan import Plan, changes_in_words, diff, plan, without
from supervisor.spawning import Spawner
from supervisor.tasks import Tasks
from supervisor.traffic import Traffic

_log: Final = logging.getLogger("fleet.supervisor")


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where and what this supervisor runs."""

    app: str
    path: tuple[str, ...]
    url: str
    host: str
    cpus: int


class Roster:
    """The worker processes of this host."""

    def __init__(
        self, settings: RunSettings, site: Site, traffic: Traffic, writing: Link, tasks: Tasks
    ) -> None:
        self.settings = settings
        self.site = site
        self.owner = OwnerId(0)
        self.plan: Plan = plan(settings, site.cpus)
        self.restarts: Counter[str] = Counter()
        self.closed = False
        self.on_learnt: Callable[[], None] = lambda: None
        self.on_stir: Callable[[], None] = lambda: None
        self.settled = asyncio.Event()  # every pool is ready, or has said why it is not
        self._opened = False
        self._left_out: set[str] = set()
        self._traffic = traffic
        self._writing = writing
        self._tasks = tasks
        self.spawner = Spawner(site.app, site.path, preload=settings.supervisor.preload)

    # ── the plan ────────────────────────────────────────────────────────────────────────────────

    def open(self) -> None:
        """Start what the plan says."""
        self._opened = True
        self._apply(self.plan)

    def reload(self, settings: RunSettings) -> None:
        """Take over a new configuration, live: nothing that runs is dropped."""
        new = self._planned(settings)
        for change in changes_in_words(diff(self.plan, new)):
            _log.info("the configuration has changed: %s", change)
        self.settings = settings
        self._apply(new)
        self._learn()

    def leave_out(self, queue: str) -> None:
        """Serve a queue no more, whatever the configuration says."""
        self._left_out.add(queue)
        self._apply(self._planned(self.settings))
        self._learn()

    def _planned(self, settings: RunSettings) -> Plan:
        made = plan(settings, self.site.cpus, queues=self._traffic.abilities.queues or None)
        return without(made, self._left_out)

    def _apply(self, new: Plan) -> None:
        self.plan = new
        if not self._opened or self.closed:
            return
        crews = self._traffic.crews
        wanted = {pool.name: pool for pool in new.pools}
        for name, crew in crews.items():
            if name not in wanted:
                crew.processes_wanted = 0
        for name, pool in wanted.items():
            crew = crews.setdefault(name, Crew(pool))
            crew.pool, crew.processes_wanted = pool, pool.processes
        for crew in crews.values():
            for child in [*crew.surplus, *self._outdated(crew)]:
                child.retire()
            for _ in range(crew.missing):
                self._start_child(crew, 0.0)

    def _outdated(self, crew: Crew) -> list[Child]:
        """Children whose orders are no longer what they would be given now."""
        return [
            child
            for child in crew.children
            if child.state in ("booting", "ready")
            and child.orders != self._orders(crew, child.orders.title)
        ]

    def _learn(self) -> None:
        self._traffic.learn(self.plan)

    def children(self) -> Iterator[Child]:
        """Every child that is not known to be dead."""
        for crew in self._traffic.crews.values():
            yield from [child for child in crew.children if child.state != "dead"]

    def limits(self, child: Child) -> tuple[int | None, int | None]:
        """Return after how many tasks, and at how many bytes, a child is recycled."""
        pool = self._traffic.crews[child.pool].pool
        return pool.max_tasks, pool.max_memory

    # ── births ──────────────────────────────────────────────────────────────────────────────────

    def _start_child(self, crew: Crew, pause: Seconds) -> None:
        crew.starting += 1
        self._tasks.start(self._start(crew, pause))

    async def _start(self, crew: Crew, pause: Seconds) -> None:
        await asyncio.sleep(pause)
        if self.closed:
            crew.starting -= 1
            return
        crew.numbers += 1
        child = Child(self, crew.pool.name, self._orders(crew, f"{crew.pool.name}#{crew.numbers}"))
        try:
            await child.start(self.spawner)
        except Exception:
            _log.exception("worker %s could not be started", child.orders.title)
            crew.starting -= 1
            self._start_child(crew, crew.died(child, "workers cannot be started") + 0.5)
            return
        crew.starting -= 1
        crew.children.append(child)
        self.on_stir()
        self._check_in(child)

    def _check_in(self, child: Child) -> None:
        # A drain may have begun while it was being started.
        if self.closed:
            child.kill("drain: it came too late")
        elif child.orders.owner != self.owner:
            child.kill("lease: it was started for a former owner")
        for extra in self._traffic.crews[child.pool].surplus:  # or the plan may have shrunk
            extra.retire()

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
            queues={q.name: q.policy for q in self.settings.queues if q.policy != Settings()},
            defaults=self.settings.defaults,
        )

    # ── what children say ───────────────────────────────────────────────────────────────────────

    def child_stirs(self, child: Child) -> None:
        """It is to be watched closely."""
        self.on_stir()

    def child_ready(self, child: Child, abilities: dict[str, Any]) -> None:
        """Serve the steps it knows, and plan again with the queues they are in."""
        crew = self._traffic.crews[child.pool]
        if (forbids := abilities.get("preload")) and self.spawner.method != "spawn":
            _log.warning("%s, so workers are started without preloading", forbids)
            self.spawner.method = "spawn"
        named = abilities.get("database")
        if named and mask(named) != mask(self.site.url):
            crew.trouble = f"its application names another database: {mask(named)}"
            _log.error("worker %s: %s", child.orders.title, crew.trouble)
            child.kill("boot: its application names another database")
            return
        crew.booted()
        if self._traffic.abilities.learn(abilities):
            self._tasks.start(self.register())
            try:
                self._apply(self._planned(self.settings))
            except ConfigError as error:
                _log.error("%s", error)
            self.on_learnt()
        self._learn()
        crew.serve_suspects()
        self._traffic.fetcher.freed(child.pool)
        self._look_settled()

    def _look_settled(self) -> None:
        if all(crew.settled for crew in self._traffic.crews.values()):
            self.settled.set()

    async def register(self) -> None:
        """Write down what this host's workers know, or that it is still so."""
        with contextlib.suppress(Disconnected):
            await registry.register(self._writing, self._traffic.abilities)
            await schedules.declare(self._writing, self._traffic.abilities.schedules)

    def child_failed(self, child: Child, told: dict[str, Any]) -> None:
        """Say why it could not load the application; its exit follows."""
        crew = self._traffic.crews[child.pool]
        trouble = f"the application could not be loaded: {told['error']}"
        log = _log.debug if trouble == crew.trouble else _log.error
        crew.trouble = trouble
        log("worker %s: %s\n%s", child.orders.title, crew.trouble, told["traceback"])
        self._look_settled()

    def child_done(self, child: Child, outcomes: list[list[Any]]) -> None:
        """Steps have ended."""
        self._traffic.crews[child.pool].recovered()
        self._traffic.done(child, outcomes)

    def child_returned(self, child: Child, ids: list[TaskId]) -> None:
        """It gave back what it had not started."""
        self._traffic.returned(child, ids)

    def child_progress(self, child: Child, notes: list[list[Any]]) -> None:
        """Steps have come further."""
        self._tasks.start(self._traffic.note(notes))

    def child_dead(self, child: Child, cause: Cause) -> None:
        """Release its tasks with the cause, and start another one."""
        crew = self._traffic.crews[child.pool]
        crew.children.remove(child)
        planned = cause.kind == RETIRED
        running = {entry.task_id for entry in child.running()}
        for task, held in list(child.held.items()):
            if task in running:
                event = child.verdicts.get(task) or Crashed(cause.failure(), suspects=len(running))
                self._traffic.settle(held.claim, event, child.orders.worker)
                del child.held[task]
        self._traffic.returned(child, list(child.held))
        if not planned:
            self.restarts[cause.kind] += 1
        if self.closed:
            return
        if not planned:
            _log.warning("worker %s (pid %s): %s", child.orders.title, child.pid, cause.text)
        pause = 0.0 if planned else crew.died(child, crew.trouble)
        self._look_settled()
        for _ in range(crew.missing):
            self._start_child(crew, pause)
