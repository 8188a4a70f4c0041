"""Jobs and steps: definition, order, submission (U17, R15)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, TypedDict

import msgspec
import pydantic
import pytest

from fleet import Context, Fleet, Job, Retry, To
from fleet.errors import (
    AlreadyRegistered,
    DefinitionError,
    InvalidName,
    InvalidOption,
    NotEncodable,
    PayloadTooLarge,
    StepMismatch,
)
from fleet.model import Submission
from fleet.policy import Settings


@dataclass
class Order:
    order_id: int


@dataclass
class Receipt:
    key: str


class Event(msgspec.Struct):
    n: int


class Model(pydantic.BaseModel):
    n: int


class Shape(TypedDict):
    n: int


@pytest.fixture
def app() -> Fleet:
    return Fleet()


@pytest.fixture
def receipts(app: Fleet) -> Job[Order, None]:
    job: Job[Order, None] = app.job("order-receipt", queue="billing")

    @job.step(timeout=30)
    async def render(ctx: Context, order: Order) -> Receipt:
        return Receipt(key=f"receipts/{order.order_id}.pdf")

    @job.step
    async def email(ctx: Context, receipt: Receipt) -> None: ...

    return job


def here(line: int) -> str:
    return f"{__file__}:{line}"


# -- steps -----------------------------------------------------------------------------------------


def test_u17_steps_stand_in_the_order_they_were_written(receipts):
    assert [step.name for step in receipts.steps] == ["render", "email"]
    assert receipts.first.name == "render"
    assert receipts.after("render") is receipts.step_named("email")
    assert receipts.after(receipts.first).name == "email"
    assert receipts.after("email") is None


def test_u17_a_jump_is_found_by_function_step_or_name(app):
    job = app.job("j")

    @job.step(name="begin")
    async def first(ctx) -> To[None]:
        return To.step(first)

    step = job.first
    assert job.target(first) is job.target("begin") is job.target(step) is step


def test_u17_a_jump_to_nowhere_names_the_steps_there_are(receipts):
    with pytest.raises(DefinitionError, match=r"no step 'refund'; it has 'render', 'email'"):
        receipts.target("refund")
    with pytest.raises(DefinitionError, match="is no step of job 'order-receipt'"):
        receipts.target(print)


def test_one_function_may_be_two_steps_if_a_jump_says_which(app):
    job = app.job("j")

    async def notify(ctx) -> None: ...

    job.step(name="before")(notify)
    job.step(name="after")(notify)

    assert job.target("after").fn is notify
    with pytest.raises(DefinitionError, match="say 'before', 'after'"):
        job.target(notify)


def test_a_decorated_step_stays_the_function(app):
    job = app.job("j")

    def add(ctx, n: int) -> int:
        return n + 1

    assert job.step(add) is add
    assert job.step(name="again")(add) is add


def test_the_decorator_form_makes_a_job_of_one_step_named_after_its_function(app):
    @app.job("welcome-email", queue="emails")
    async def welcome(ctx: Context, user: dict[str, Any]) -> None: ...

    assert isinstance(welcome, Job)
    assert app.jobs["welcome-email"] is welcome
    assert [step.name for step in welcome.steps] == ["welcome"]
    assert welcome.first.is_async


async def test_fn_is_the_function_of_a_one_step_job(app):
    @app.job("double")
    def double(ctx: Context, n: int) -> int:
        return 2 * n

    assert double.fn(None, 21) == 42
    assert not double.first.is_async


def test_fn_of_several_steps_is_refused_with_their_names(receipts):
    with pytest.raises(DefinitionError, match=r"has 2 steps.*call render, email by name"):
        _ = receipts.fn


def test_a_job_without_steps_is_refused_when_it_is_first_used(app):
    job = app.job("empty")

    for use in (
        lambda: job.first,
        lambda: job.steps,
        lambda: job.fn,
        lambda: job.submission(1),
        job.definition,
    ):
        with pytest.raises(DefinitionError, match=r"job 'empty' \(.*test_job.py:\d+\) has no step"):
            use()


def test_r15_decorating_twice_names_both_places(app):
    @app.job("once")
    def first(ctx): ...

    def second(ctx): ...

    with pytest.raises(DefinitionError) as error:
        first(second)

    assert here(first.fn.__code__.co_firstlineno) in str(error.value)
    assert here(second.__code__.co_firstlineno) in str(error.value)


def test_calling_a_decorated_job_like_its_function_says_how_to(app):
    @app.job("once")
    def first(ctx): ...

    with pytest.raises(DefinitionError, match=r"call its \.fn in a test"):
        first(None)


def test_r15_a_step_for_a_decorated_job_names_both_places(app):
    @app.job("once")
    def first(ctx): ...

    def second(ctx): ...

    with pytest.raises(DefinitionError) as error:
        first.step(second)

    assert here(first.fn.__code__.co_firstlineno) in str(error.value)
    assert here(second.__code__.co_firstlineno) in str(error.value)


def test_r15_the_decorator_form_on_a_job_with_steps_is_refused(receipts):
    def third(ctx): ...

    with pytest.raises(DefinitionError, match="already has step 'render'"):
        receipts(third)


def test_r15_a_step_name_taken_names_both_places(app):
    job = app.job("j")

    def render(ctx): ...

    first = here(render.__code__.co_firstlineno)
    job.step(render)

    def other(ctx): ...

    with pytest.raises(AlreadyRegistered) as error:
        job.step(name="render")(other)

    assert "step of job 'j' 'render'" in str(error.value)
    assert first in str(error.value)
    assert here(other.__code__.co_firstlineno) in str(error.value)


@pytest.mark.parametrize("name", ["", "1st", "a b", "größe", "x" * 64, "x'; drop table t; --"])
def test_a_step_name_that_cannot_be_is_refused(app, name):
    with pytest.raises(InvalidName, match="step name"):
        app.job("j").step(name=name)(lambda ctx: None)


def test_a_lambda_needs_a_name(app):
    with pytest.raises(InvalidName):
        app.job("j").step(lambda ctx: None)


def test_transactional_is_for_async_steps(app):
    job = app.job("j")

    @job.step(transactional=True)
    async def fine(ctx): ...

    assert job.first.transactional

    with pytest.raises(DefinitionError, match="plain def and cannot be transactional"):

        @job.step(transactional=True)
        def wrong(ctx): ...


def test_a_step_whose_input_no_json_can_become_names_the_function(app):
    class Opaque: ...

    with pytest.raises(DefinitionError, match=r"wrong .*test_job.py:\d+.*`Opaque` cannot be read"):

        @app.job("j")
        def wrong(ctx, value: Opaque): ...


# -- one step into the next ------------------------------------------------------------------------


def test_u17_a_mismatch_names_both_steps_both_types_and_both_places(app):
    job = app.job("j")

    @job.step
    async def render(ctx) -> Receipt: ...

    with pytest.raises(StepMismatch) as error:

        @job.step
        async def email(ctx, order: Order) -> None: ...

    message = str(error.value)
    assert "step 'render'" in message
    assert "returns Receipt" in message
    assert "step 'email'" in message
    assert "takes Order" in message
    assert message.count(__file__) == 2
    assert [step.name for step in job.steps] == ["render"]


def test_u17_none_flows_into_a_step_without_input_and_a_value_does_not(app):
    job = app.job("j")

    @job.step
    async def first(ctx) -> None: ...

    @job.step
    async def second(ctx) -> Order: ...

    with pytest.raises(StepMismatch, match="its value would be lost"):

        @job.step
        async def third(ctx) -> None: ...


def test_u17_a_step_that_says_where_to_go_may_stand_before_any_other(app):
    job = app.job("j")

    @job.step
    async def route(ctx, order: Order) -> To[Any]: ...

    @job.step
    async def other(ctx, receipt: Receipt) -> None: ...

    assert job.after("route") is job.step_named("other")


# -- submission ------------------------------------------------------------------------------------


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
        ({"unique": "a", "unique_scope": "for_ever"}, "while_waiting, while_live"),
    ],
)
def test_an_option_that_cannot_work_is_refused_by_name(receipts, options, message):
    with pytest.raises(InvalidOption) as error:
        receipts.submission(Order(1), **options)

    assert str(error.value).startswith(f"{next(iter(options))}=") or "unique_scope=" in str(
        error.value
    )
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


# -- the registry in the database ------------------------------------------------------------------


def test_a_definition_is_json_and_says_how_each_step_runs(receipts):
    definition = json.loads(json.dumps(receipts.definition()))

    assert definition["name"] == "order-receipt"
    assert definition["queue"] == "billing"
    first = definition["steps"][0]
    assert (first["name"], first["kind"], first["input"]) == ("render", "async", "Order")
    assert (first["timeout"], first["priority"], first["transactional"]) == (30.0, 0, False)
    assert first["retry"]["max_attempts"] == 5


def _defined(**changes: Any) -> Job[Any, Any]:
    job = Fleet().job("j", **changes)

    @job.step
    async def only(ctx, order: Order) -> None: ...

    return job


def test_a_fingerprint_is_the_same_for_the_same_definition_and_no_other():
    same, again = _defined(), _defined()
    others = [
        _defined(queue="other"),
        _defined(timeout=1),
        _defined(retry=Retry(max_attempts=1)),
        _defined(on_success="delete"),
        _defined(key=lambda order: "x"),
    ]

    assert same.fingerprint() == again.fingerprint()
    assert len({job.fingerprint() for job in [same, *others]}) == 6
    assert same.fingerprint(Settings(timeout=7)) != same.fingerprint()


@pytest.mark.parametrize("kind", ["dataclass", "pydantic", "list"])
def test_a_fingerprint_tells_two_versions_of_an_input_apart(kind):
    def version(fields: dict[str, type]) -> str:
        if kind == "pydantic":
            made: Any = pydantic.create_model("In", **{n: (t, ...) for n, t in fields.items()})
        else:
            made = dataclass(type("In", (), {"__annotations__": fields}))
        job = Fleet().job("j")

        def only(ctx, value): ...

        only.__annotations__["value"] = list[made] if kind == "list" else made
        job.step(only)
        return job.fingerprint()

    assert version({"a": int}) == version({"a": int})
    assert version({"a": int}) != version({"a": int, "b": str})
    assert version({"a": int}) != version({"a": str})
