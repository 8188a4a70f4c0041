"""Claims over several priorities and lanes: who comes first, what a watermark may not miss."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import asyncpg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fleet.lifecycle import Released, decide
from fleet.model import Claim, OwnerId, Submission
from fleet.policy import Policy
from fleet.store import claims, enqueue
from fleet.store.claims import EVERYTHING, Span
from fleet.store.outcomes import Outcome, write

HERE, THERE = OwnerId(1), OwnerId(2)
TOP, BOTTOM = -32768, 32767
KNOWN = ["x/a"]


@pytest.fixture(autouse=True)
async def as_supervisors_do(db):
    for name, value in claims.SETTINGS.items():
        await db.execute(f"set {name} = {value}")


async def ready(db, *priorities: int, job: str = "x", step: str = "a") -> list[int]:
    """Enqueue a task for each priority, in this order."""
    tasks = [Submission(job=job, step=step, queue="q", input="1", priority=p) for p in priorities]
    return await enqueue.insert_many(db, tasks)


async def claim(db, limit=100, spans=EVERYTHING, owner=HERE, known=KNOWN) -> list[Claim]:
    return await claims.claim(db, owner, "q", limit, known, spans)


async def ids(db, limit=100, spans=EVERYTHING, **options) -> list[int]:
    return [claim.id for claim in await claim(db, limit, spans, **options)]


async def release(db, held: list[Claim], owner: OwnerId = HERE) -> None:
    back = [Outcome(c, decide(c, Released(), Policy(), 0.0), "w1", 0.1, 1.0) for c in held]
    await write(db, owner, back)


def watermarks(*marks: tuple[int, int]) -> list[Span]:
    """The spans that leave out what lies before each watermark in its rank, and nothing else."""
    starts = [(TOP, 0), *sorted(marks)]
    ends = [rank for rank, _ in starts[1:]] + [BOTTOM]
    return [Span(rank, pos, below) for (rank, pos), below in zip(starts, ends, strict=True)]


def mark(last: Claim) -> tuple[int, int]:
    return last.rank, last.pos


# ── the order ────────────────────────────────────────────────────────────────────────────────────


async def test_u05_higher_priorities_come_first_and_the_oldest_first_inside_one(db):
    low, high, normal, high_again, normal_again = await ready(db, -5, 9, 0, 9, 0)

    assert await ids(db) == [high, high_again, normal, normal_again, low]


async def test_u05_what_was_released_goes_ahead_of_its_priority_and_of_no_other(db):
    urgent, first, second = await ready(db, 1, 0, 0)
    held = {claim.id: claim for claim in await claim(db)}
    await release(db, [held[second]])
    await release(db, [held[first], held[urgent]])
    (newcomer,) = await ready(db, 0)

    assert await ids(db) == [urgent, second, first, newcomer]


async def test_u05_a_batch_is_in_order_whatever_order_the_rows_come_back_in(db):
    await ready(db, *[n % 7 - 3 for n in range(500)])

    batch = await claim(db, 500)

    assert len(batch) == 500
    assert all(mark(one) < mark(next_one) for one, next_one in pairwise(batch))


# ── spans ────────────────────────────────────────────────────────────────────────────────────────


async def test_u05_spans_are_served_in_their_order_and_the_limit_counts_over_all(db):
    low, *normal, high = await ready(db, -1, 0, 0, 0, 1)
    spans = [Span(TOP, 0, 0), Span(0, 0, 2), Span(2, 0, BOTTOM)]

    assert await ids(db, 3, spans) == [high, *normal[:2]]
    assert await ids(db, 3, spans) == [normal[2], low]


async def test_u05_what_lies_at_a_watermark_or_before_it_is_not_looked_at(db):
    first, second, third = await ready(db, 0, 0, 0)
    batch = await claim(db)
    await db.execute("update fleet.task set state = 'ready', owner = null")

    from_the_second = watermarks(mark(batch[1]))

    assert [claim.id for claim in batch] == [first, second, third]
    assert await ids(db, 100, from_the_second) == [third]


async def test_u05_a_rank_that_nobody_has_used_before_is_found_from_watermarks(db):
    await ready(db, 0, 5)
    seen = await claim(db)
    spans = watermarks(*map(mark, seen))

    above, between, below = await ready(db, 9, 2, -9)

    assert await ids(db, 100, spans) == [above, between, below]


async def test_u05_a_release_into_the_front_lane_is_found_from_watermarks(db):
    await ready(db, 0, 0)
    held = await claim(db)
    spans = watermarks(mark(held[-1]))

    await release(db, held)

    assert await ids(db, 100, spans) == [claim.id for claim in held]


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_u05_watermarks_anywhere_find_exactly_what_lies_behind_them(dsn, data):
    priorities = data.draw(st.lists(st.integers(-3, 3), min_size=1, max_size=30), label="line")
    marks = data.draw(
        st.lists(
            st.tuples(st.integers(-8, 8), st.integers(0, 40)), max_size=6, unique_by=lambda m: m[0]
        ),
        label="watermarks",
    )
    limit = data.draw(st.integers(1, 40), label="limit")

    async def story() -> None:
        conn = await asyncpg.connect(dsn, server_settings=claims.SETTINGS)
        await conn.execute("truncate fleet.task; alter sequence fleet.position restart")
        await ready(conn, *priorities)
        behind = await conn.fetch("select id, rank, pos from fleet.task order by rank, pos")
        before = dict(marks)
        expected = [row["id"] for row in behind if row["pos"] > before.get(row["rank"], 0)]

        assert await ids(conn, limit, watermarks(*marks)) == expected[:limit]
        await conn.close()

    asyncio.run(story())


# ── who may take it ──────────────────────────────────────────────────────────────────────────────


async def test_u05_r06_unknown_jobs_are_passed_over_and_stay(db):
    (stranger,) = await ready(db, 9, job="stranger")
    (other_step,) = await ready(db, 9, step="b")
    (known,) = await ready(db, 0)

    assert await ids(db) == [known]
    assert await ids(db, known=["stranger/a", "x/b"]) == [stranger, other_step]


async def test_u05_a_row_without_a_step_is_for_whoever_knows_the_job(db):
    task = await db.fetchval("select fleet.enqueue('x', queue => 'q')")

    assert await ids(db, known=["x/a", "other/"]) == []
    assert await ids(db, known=["x/"]) == [task]


async def test_u05_another_queue_is_another_line(db):
    await ready(db, 0)

    assert await claims.claim(db, HERE, "r", 100, KNOWN) == []


# ── several claimers ─────────────────────────────────────────────────────────────────────────────


async def test_u05_what_somebody_has_locked_is_passed_over_and_nobody_waits(db, dsn):
    locked, free = await ready(db, 1, 0)
    other = await asyncpg.connect(dsn)
    async with other.transaction():
        await other.execute("select from fleet.task where id = $1 for update", locked)

        assert await ids(db) == [free]
    await other.close()

    assert await ids(db) == [locked]


async def test_u05_only_what_is_taken_is_locked(db, dsn):
    first, second = await ready(db, 0, 0)
    other = await asyncpg.connect(dsn)
    async with other.transaction():
        assert await ids(other, 1) == [first]

        assert await ids(db, 1, owner=THERE) == [second]
    await other.close()


async def test_u05_two_claimers_at_once_never_get_the_same_task_and_leave_none(db, dsn):
    await ready(db, *[n % 3 for n in range(600)])
    conns = [await asyncpg.connect(dsn, server_settings=claims.SETTINGS) for _ in range(4)]

    async def claims_all(conn: asyncpg.Connection, owner: OwnerId) -> list[int]:
        mine: list[int] = []
        # Empty while others hold the rest locked is no end: look what is left.
        while await conn.fetchval("select exists (select from fleet.task where state = 'ready')"):
            mine += await ids(conn, 7, owner=owner)
        return mine

    shares = await asyncio.gather(
        *(claims_all(conn, OwnerId(n)) for n, conn in enumerate(conns, start=1))
    )
    for conn in conns:
        await conn.close()

    taken = [task for share in shares for task in share]
    assert len(taken) == 600
    assert len(set(taken)) == 600


async def test_u05_a_claim_raises_the_fence_and_names_the_owner(db):
    (task,) = await ready(db, 0)

    (first,) = await claim(db)
    await release(db, [first])
    (second,) = await claim(db, owner=THERE)

    row = await db.fetchrow("select fence, owner, state from fleet.task where id = $1", task)
    assert (first.fence, second.fence) == (1, 2)
    assert tuple(row) == (2, THERE, "running")
