"""Tasks as people look at them: lists, one task, its attempts, revival, the overview."""

from __future__ import annotations

import pytest

from fleet import Context, Fatal, Fleet, Retry, To
from fleet.errors import ReviveRefused, TaskNotFound, UnknownJob
from fleet.store import beats, claims, registry, tasks
from fleet.store.journal import journal
from fleet.store.overview import overview
from fleet.testing import drain

NOWHERE = 999_999


@pytest.fixture
async def app(dsn):
    """An application with one job for each way a task may go."""
    app = Fleet(dsn)
    receipts = app.job("order-receipt", queue="billing")

    @receipts.step(retry=Retry(max_attempts=3))
    async def render(ctx: Context, order: dict[str, int]) -> str:
        if ctx.attempt <= order.get("outages", 0):
            raise ConnectionError("503 from the PDF service")
        return "a.pdf"

    @receipts.step
    async def email(ctx: Context, key: str) -> str:
        return f"sent {key}"

    @app.job("fatal", queue="emails")
    async def fatal(ctx: Context, value: int) -> int:
        if value < 0:
            raise Fatal("negative")
        return value

    @app.job("sleepy", queue="emails")
    async def sleepy(ctx: Context) -> To[None]:
        return To.snooze(3600)

    async with app:
        yield app


async def enqueue(app, job, value=None, **options):
    return (await app.jobs[job].enqueue(value, **options)).id


# ── lists ────────────────────────────────────────────────────────────────────────────────────────


async def test_a_list_shows_every_state_the_newest_first(app, db):
    done = await enqueue(app, "order-receipt", {})
    dead = await enqueue(app, "fatal", -1)
    await drain(app)
    stopped = await enqueue(app, "sleepy")
    await db.fetchval("select fleet.cancel($1)", stopped)
    later = await enqueue(app, "sleepy", delay=60)
    keyed = await enqueue(app, "sleepy", key="customer-7")
    ready = await enqueue(app, "fatal", 1)

    listed = await tasks.list_tasks(db)

    assert [(task.id, task.state) for task in listed] == [
        (ready, "ready"),
        (keyed, "waiting"),
        (later, "deferred"),
        (stopped, "cancelled"),
        (dead, "buried"),
        (done, "succeeded"),
    ]
    assert (listed[4].reason, listed[4].error) == ("fatal", "Fatal")


@pytest.mark.parametrize(
    ("chosen", "jobs"),
    [
        ({"states": ["buried"]}, ["fatal"]),
        ({"states": ["succeeded", "buried"]}, ["fatal", "order-receipt"]),
        ({"states": ["ready"]}, []),
        ({"queue": "billing"}, ["order-receipt"]),
        ({"job": "sleepy"}, ["sleepy"]),
        ({"key": "customer-7"}, ["sleepy"]),
        ({"key": "customer-8"}, []),
        ({"queue": "x'; drop table fleet.task; --"}, []),
    ],
)
async def test_a_list_can_be_narrowed_down(app, db, chosen, jobs):
    await enqueue(app, "order-receipt", {})
    await enqueue(app, "fatal", -1)
    await drain(app)
    await enqueue(app, "sleepy", key="customer-7")

    assert [task.job for task in await tasks.list_tasks(db, **chosen)] == jobs


async def test_a_list_goes_on_where_the_page_before_it_ended(app, db):
    for value in (1, -1, 2, -2, 3):
        await enqueue(app, "fatal", value)
    await drain(app)

    seen: list[int] = []
    while page := await tasks.list_tasks(db, limit=2, before=seen[-1] if seen else None):
        seen += [task.id for task in page]

    assert seen == sorted(seen, reverse=True)
    assert len(seen) == 5


async def test_asking_for_live_tasks_does_not_walk_the_archive(db):
    plan = await db.fetch(
        "explain (format text) " + inlined(tasks._LIST, ["ready"], None, None, None, 2**62, 10)
    )

    assert "archive" not in "\n".join(row[0] for row in plan)


def inlined(sql, *args):
    """Return the statement with its parameters in it, as a custom plan has them."""
    for number, value in reversed(list(enumerate(args, start=1))):
        text = "null" if value is None else str(value)
        text = "'{%s}'" % ",".join(value) if isinstance(value, list) else text  # noqa: UP031
        sql = sql.replace(f"${number}", text)
    return sql


# ── one task ─────────────────────────────────────────────────────────────────────────────────────


async def test_a_task_that_is_nowhere_is_said_to_be(db):
    with pytest.raises(TaskNotFound, match="999999"):
        await tasks.show(db, NOWHERE)
    assert await tasks.attempts(db, NOWHERE) == []


async def test_a_task_is_shown_without_its_input_and_result_unless_asked_for(app, db):
    task = await enqueue(app, "order-receipt", {"canary": 1})
    await drain(app)

    shown = await tasks.show(db, task)
    assert (shown.state, shown.step, shown.input, shown.result) == (
        "succeeded",
        "email",
        None,
        None,
    )
    assert "canary" not in repr(shown)
    assert (shown.input_size, shown.result_size) == (7, 12)

    shown = await tasks.show(db, task, with_input=True, with_result=True)
    assert (shown.input, shown.result) == ('"a.pdf"', '"sent a.pdf"')


async def test_every_attempt_of_a_task_is_told_in_order(app, db, fleet_clock):
    task = await enqueue(app, "order-receipt", {"outages": 2})
    await drain(app, clock=fleet_clock)

    told = await tasks.attempts(db, task)

    assert [(a.step, a.attempt, a.outcome) for a in told] == [
        ("render", 1, "failed"),
        ("render", 2, "failed"),
        ("render", 3, "next"),
        ("email", 1, "succeeded"),
    ]
    assert [a.error.type if a.error else None for a in told] == ["ConnectionError"] * 2 + [None] * 2
    assert [a.fence for a in told] == sorted(a.fence for a in told)
    assert all(a.ended_at and a.started_at <= a.ended_at for a in told)


async def test_a_buried_task_shows_its_error_with_the_traceback(app, db):
    task = await enqueue(app, "fatal", -1)
    await drain(app)

    shown = await tasks.show(db, task)

    assert (shown.state, shown.reason) == ("buried", "fatal")
    assert shown.error is not None
    assert shown.error.message == "negative"
    assert 'raise Fatal("negative")' in (shown.error.traceback or "")
    assert [a.outcome for a in await tasks.attempts(db, task)] == ["fatal"]


async def test_a_running_task_shows_who_holds_it_and_its_attempt_under_way(app, db):
    task = await enqueue(app, "fatal", 1)
    owner = await beats.register(db, "host-a", 42, 15.0)
    await claims.claim(db, owner, "emails", 1, ["fatal/fatal"])

    shown = await tasks.show(db, task)

    assert (shown.state, shown.owner, shown.host) == ("running", owner, "host-a")
    (attempt,) = await tasks.attempts(db, task)
    assert (attempt.outcome, attempt.ended_at) == ("running", None)


async def test_a_waiting_task_shows_who_has_its_key(app, db):
    first = await enqueue(app, "fatal", 1, key="customer-7")
    second = await enqueue(app, "fatal", 2, key="customer-7")
    await claims.grant_keys(db)

    assert (await tasks.show(db, second)).key_holder == first


async def test_a_task_written_by_hand_with_a_nonsense_error_is_still_shown(app, db):
    task = await enqueue(app, "fatal", 1)
    await db.execute("""update fleet.task set error = '"oops"', progress = '[1]'""")

    shown = await tasks.show(db, task)

    assert shown.error is not None
    assert shown.error.message == "oops"
    assert shown.progress == [1]


# ── revival ──────────────────────────────────────────────────────────────────────────────────────


async def test_a_buried_task_comes_back_with_the_fix(app, db):
    task = await enqueue(app, "fatal", -1)
    await drain(app)

    await tasks.revive(db, task, new_input="5")
    await drain(app)

    assert (await tasks.show(db, task, with_result=True)).result == "5"


async def test_a_task_comes_back_at_another_step(app, db):
    task = await enqueue(app, "order-receipt", {"outages": 99})
    await db.execute("update fleet.task set failures = 2")
    await drain(app)
    assert (await tasks.show(db, task)).reason == "exhausted"

    await tasks.revive(db, task, step="email", new_input='"by hand"')
    await drain(app)

    shown = await tasks.show(db, task, with_result=True)
    assert (shown.state, shown.result) == ("succeeded", '"sent by hand"')


async def test_only_a_buried_task_comes_back(app, db):
    live = await enqueue(app, "sleepy")

    with pytest.raises(ReviveRefused, match=f"task {live} is live"):
        await tasks.revive(db, live)
    with pytest.raises(ReviveRefused, match=f"no buried task {NOWHERE}.*--state buried"):
        await tasks.revive(db, NOWHERE)


async def test_a_task_whose_unique_name_is_taken_stays_buried_and_the_holder_is_named(app, db):
    dead = await enqueue(app, "fatal", -1, unique="once")
    await drain(app)
    holder = await enqueue(app, "fatal", 1, unique="once")

    with pytest.raises(ReviveRefused, match=rf"'once' is held by task {holder}"):
        await tasks.revive(db, dead)

    assert (await tasks.show(db, dead)).state == "buried"


# ── enqueue by name ──────────────────────────────────────────────────────────────────────────────


async def test_a_job_nobody_registered_needs_a_queue(db):
    with pytest.raises(UnknownJob, match="fleet register"):
        await tasks.enqueue_by_name(db, "mystery", "1")

    made = await tasks.enqueue_by_name(db, "mystery", "1", queue="elsewhere")

    shown = await tasks.show(db, made.id, with_input=True)
    assert (shown.queue, shown.step, shown.input) == ("elsewhere", "", "1")


# ── the overview ─────────────────────────────────────────────────────────────────────────────────


async def test_an_empty_fleet_is_empty(db):
    seen = await overview(db)

    assert (seen.queues, seen.owners, seen.unknown) == ([], [], [])


async def test_the_overview_counts_every_state_and_the_age_of_the_oldest(app, db, fleet_clock):
    await enqueue(app, "fatal", -1)
    await drain(app)
    await enqueue(app, "fatal", 1)
    await fleet_clock.advance(90)
    await enqueue(app, "fatal", 2)
    await enqueue(app, "sleepy", delay=60)
    await enqueue(app, "sleepy", key="customer-7")
    owner = await beats.register(db, "host-a", 42, 15.0)
    await enqueue(app, "order-receipt", {})
    await claims.claim(db, owner, "billing", 1, ["order-receipt/render"])

    seen = await overview(db)

    assert [queue.queue for queue in seen.queues] == ["billing", "emails"]
    billing, emails = seen.queues
    assert (billing.running, billing.ready, billing.oldest_ready) == (1, 0, None)
    assert (emails.ready, emails.deferred, emails.waiting, emails.buried) == (2, 1, 1, 1)
    assert emails.oldest_ready == pytest.approx(90, abs=5)
    assert [(o.id, o.host, o.running, o.alive) for o in seen.owners] == [(owner, "host-a", 1, True)]


async def test_an_owner_that_was_not_heard_of_for_long_is_not_alive(db, fleet_clock):
    await beats.register(db, "host-a", 42, 15.0)
    await fleet_clock.advance(minutes=2)

    assert not (await overview(db)).owners[0].alive


async def test_jobs_and_steps_nobody_registered_are_named(app, db):
    await registry.register(db, app)
    await enqueue(app, "order-receipt", {})
    await db.fetchval("select fleet.enqueue('mystery', queue => 'elsewhere')")
    await db.fetchval("select fleet.enqueue('order-receipt', step => 'shred')")
    await db.fetchval("select fleet.enqueue('order-receipt', step => '')")

    seen = await overview(db)

    assert [(u.job, u.step, u.queue, u.tasks) for u in seen.unknown] == [
        ("order-receipt", "shred", "billing", 1),
        ("mystery", "", "elsewhere", 1),
    ]


async def test_the_journal_tells_every_end_once(app, db, fleet_clock):
    began = await fleet_clock.now()
    task = await enqueue(app, "order-receipt", {"outages": 1})
    await enqueue(app, "fatal", -1)
    await drain(app, clock=fleet_clock)

    told = await journal(db, began)

    assert [(e.outcome, e.final) for e in told if e.task_id == task] == [
        ("failed", False),
        ("next", False),
        ("succeeded", True),
    ]
    assert [e.outcome for e in told if e.task_id != task] == ["fatal"]
