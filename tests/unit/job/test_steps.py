"""Jobs and steps: definition and order (U17, R15)."""

from __future__ import annotations

from typing import Any

import pytest

from fleet import Context, Job, To
from fleet.errors import (
    AlreadyRegistered,
    DefinitionError,
    InvalidName,
    StepMismatch,
)
from tests.unit.job.orders import Order, Receipt


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
        with pytest.raises(
            DefinitionError, match=r"job 'empty' \(.*test_steps.py:\d+\) has no step"
        ):
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

    with pytest.raises(
        DefinitionError, match=r"wrong .*test_steps.py:\d+.*`Opaque` cannot be read"
    ):

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
