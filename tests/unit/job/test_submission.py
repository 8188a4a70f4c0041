"""Jobs and steps: what is enqueued."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from fleet import Fleet
from fleet.errors import (
    InvalidName,
    InvalidOption,
    NotEncodable,
    PayloadTooLarge,
)
from fleet.model import Submission
from tests.unit.job.orders import Event, Model, Order, Receipt


def test_a_submission_says_all_that_the_row_will(receipts):
    assert receipts.submission(
        Order(43), delay=60, priority=5, key="customer-7", unique="order-43", queue="slow"
    ) == Submission(
        job="order-receipt",
        step="render",
        queue="slow",
        input='{"order_id":43}',
        priority=5,
        delay=60.0,
        key="customer-7",
        unique="order-43",
    )


def test_what_is_left_out_comes_from_the_first_step_and_its_job(app):
    job = app.job("j", priority=3, key="a")

    @job.step(key=lambda order: f"order-{order.order_id}")
    async def first(ctx, order: Order) -> None: ...

    @job.step(priority=9)
    async def second(ctx) -> None: ...

    submission = job.submission(Order(7))

    assert (submission.priority, submission.key) == (3, "order-7")
    assert job.submission(Order(7), priority=0, key="b").priority == 0
    assert job.submission(Order(7), priority=0, key="b").key == "b"


def test_a_computed_key_may_be_none_and_must_otherwise_be_a_key(app):
    @app.job("j", key=lambda value: value)
    async def job(ctx, value: Any) -> None: ...

    assert job.submission(None).key is None
    with pytest.raises(InvalidOption, match="key=7"):
        job.submission(7)


def test_a_moment_is_kept_in_utc(receipts):
    at = datetime(2030, 1, 1, 12, tzinfo=timezone(timedelta(hours=2)))

    assert receipts.submission(Order(1), at=at).at == datetime(2030, 1, 1, 10, tzinfo=UTC)
    assert receipts.submission(Order(1), delay=timedelta(minutes=1)).delay == 60.0


def test_what_a_repeat_does_goes_along(receipts):
    made = receipts.submission(
        Order(1), unique="a", unique_for=timedelta(minutes=1), on_repeat="push_back", delay=10
    )
    assert (made.unique_for, made.on_repeat, made.delay) == (60.0, "push_back", 10.0)
    nothing = receipts.submission(
        Order(1), unique="a", unique_scope=None, unique_for=None, on_repeat=None
    )
    assert (nothing.unique_scope, nothing.unique_for) == ("while_live", None)
    assert nothing.on_repeat == "keep"


EDGE = timezone(timedelta(hours=-5))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"delay": -1}, "delay=-1: must not be negative"),
        ({"delay": float("nan")}, "delay=nan: must not be negative or NaN"),
        ({"delay": float("inf")}, "past the year 9999"),
        ({"delay": 8_000 * 366 * 86_400}, "past the year 9999"),
        ({"delay": timedelta.max}, "past the year 9999"),
        ({"delay": "1m"}, "seconds as a number, or a timedelta"),
        ({"delay": True}, "seconds as a number, or a timedelta"),
        ({"at": datetime(2030, 1, 1)}, "this datetime is naive"),
        ({"at": datetime(9999, 12, 31, 23, tzinfo=EDGE)}, "between the years 1 and 9999"),
        ({"at": "2030-01-01"}, "an aware datetime"),
        ({"delay": 1, "at": datetime(2030, 1, 1, tzinfo=UTC)}, "not both"),
        ({"priority": 10_001}, "between -10000 and 10000"),
        ({"priority": True}, "a whole number"),
        ({"priority": 1.5}, "a whole number"),
        ({"key": ""}, "must not be empty"),
        ({"key": 7}, "must be a str"),
        ({"key": "x" * 256}, "at most 255 characters, this has 256"),
        ({"key": "a\0"}, "no NUL characters"),
        ({"unique": ""}, "must not be empty"),
        ({"unique": "\ud800"}, "no lone surrogates"),
        ({"unique_scope": "for_ever", "unique": "a"}, "while_waiting, while_live"),
        ({"on_repeat": "forget", "unique": "a"}, "one of keep, replace, push_back"),
        ({"on_repeat": "replace"}, "goes with unique="),
        ({"on_repeat": "push_back", "unique": "a"}, "give delay= too"),
        ({"unique_for": 60}, "goes with unique="),
        ({"unique_for": 0, "unique": "a"}, "a millisecond or more"),
        ({"unique_for": "1m", "unique": "a"}, "seconds as a number, or a timedelta"),
        ({"unique_for": 60, "unique": "a", "unique_scope": "while_live"}, "not both"),
    ],
)
def test_an_option_that_cannot_work_is_refused_by_name(receipts, options, message):
    with pytest.raises(InvalidOption) as error:
        receipts.submission(Order(1), **options)

    assert str(error.value).startswith(f"{next(iter(options))}=")
    assert message in str(error.value)


@pytest.mark.parametrize("queue", ["", "X", "a b", "q" * 64, "x'; drop table fleet.task; --"])
def test_a_queue_name_that_cannot_be_is_refused(receipts, queue):
    with pytest.raises(InvalidName, match="queue name"):
        receipts.submission(Order(1), queue=queue)


def test_an_option_nobody_knows_is_a_type_error_with_those_there_are(receipts):
    with pytest.raises(TypeError, match="no such option: prioritty; delay, at, priority"):
        receipts.submission(Order(1), prioritty=5)


@pytest.mark.parametrize("longest", ["x" * 255, "é" * 255])
def test_keys_at_the_limit_are_fine(receipts, longest):
    assert receipts.submission(Order(1), key=longest, unique=longest).key == longest


@pytest.mark.parametrize(
    ("annotation", "right"), [(Order, Order(1)), (Event, Event(1)), (Model, Model(n=1))]
)
def test_an_input_of_another_class_is_refused_before_it_is_written(app, annotation, right):
    def step(ctx, value) -> None: ...

    step.__annotations__["value"] = annotation
    job = app.job("j")
    job.step(step)

    assert job.submission(right)
    for wrong in (Receipt("x"), {"order_id": 1, "n": 1}, 7):
        with pytest.raises(NotEncodable, match=f"job 'j' takes {annotation.__name__}, got"):
            job.submission(wrong)
    with pytest.raises(NotEncodable, match="no input was given"):
        job.submission()


def test_a_job_without_input_takes_none(app):
    @app.job("tick")
    async def tick(ctx) -> None: ...

    assert tick.submission().input == "null"
    with pytest.raises(
        NotEncodable, match=r"job 'tick' takes no input: its step 'tick' .* \(ctx\)"
    ):
        tick.submission(1)


def test_an_input_json_cannot_keep_is_refused_with_job_and_path(app):
    @app.job("j")
    async def job(ctx, value: dict[str, Any]) -> None: ...

    with pytest.raises(NotEncodable, match=r"input of job 'j' at \$\.a: a NUL character"):
        job.submission({"a": "\0"})


def test_the_limit_is_the_applications():
    app = Fleet(max_payload=10)

    @app.job("j")
    async def job(ctx, value: str) -> None: ...

    assert job.submission("x" * 8)
    with pytest.raises(PayloadTooLarge, match="input of job 'j' is 11 bytes"):
        job.submission("x" * 9)


# -- through the client ----------------------------------------------------------------------------


class FakeClient:
    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    async def enqueue(self, *call: Any) -> str:
        self.calls.append(call)
        return "handle"

    async def enqueue_many(self, *call: Any) -> list[str]:
        self.calls.append(call)
        return ["handle"] * len(call[1])


async def test_enqueue_hands_a_checked_submission_to_the_client(app, receipts):
    client = app._opened = FakeClient()
    connection = object()

    assert await receipts.enqueue(Order(1), conn=connection, priority=2) == "handle"

    assert client.calls == [
        (receipts, receipts.submission(Order(1), priority=2), connection),
    ]


async def test_enqueue_many_checks_all_before_any_is_written(app, receipts):
    client = app._opened = FakeClient()

    assert len(await receipts.enqueue_many((Order(n) for n in range(3)), priority=2)) == 3
    assert client.calls == [
        (receipts, [receipts.submission(Order(n), priority=2) for n in range(3)], None)
    ]
    with pytest.raises(NotEncodable):
        await receipts.enqueue_many([Order(1), Receipt("x")])
    with pytest.raises(InvalidOption, match="unique='a': would make all of these one task"):
        await receipts.enqueue_many([Order(1)], unique="a")
    assert len(client.calls) == 1


def test_a_statement_in_a_style_nobody_knows_is_refused(receipts):
    with pytest.raises(InvalidOption, match="asyncpg, psycopg, named"):
        receipts.statement(Order(1), style="sqlite")
