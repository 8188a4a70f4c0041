"""What a step's function takes and gives, and which functions cannot be steps."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import Enum
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Generic,
    Literal,
    Never,
    NewType,
    TypedDict,
    TypeVar,
)
from uuid import UUID

import msgspec
import pydantic
import pytest

from fleet.annotations import compatible, place_of, read_signature
from fleet.codec import Decoder
from fleet.errors import DefinitionError
from fleet.flow import To

if TYPE_CHECKING:
    from somewhere import Hidden

    from fleet import Context


@dataclass
class Order:
    n: int


@dataclass
class BigOrder(Order):
    m: int


@dataclass
class OrderContext:
    n: int


@dataclass
class Receipt:
    key: str


class Shape(TypedDict):
    a: int


class BigShape(Shape):
    b: int


class Event(msgspec.Struct):
    n: int


class Model(pydantic.BaseModel):
    n: int


class Colour(Enum):
    RED = "red"


T = TypeVar("T")


@dataclass
class Box(Generic[T]):
    item: T


@dataclass
class Crate(Generic[T]):
    item: T


UserId = NewType("UserId", int)


def read(fn: Any) -> Any:
    frame = inspect.currentframe()
    assert frame is not None and frame.f_back is not None
    return read_signature(fn, frame.f_back.f_locals)


def test_async_with_input():
    async def step(ctx: Context, order: Order) -> Receipt: ...

    signature = read(step)
    assert signature.is_async
    assert signature.takes_input
    assert signature.input is Order
    assert signature.output is Receipt


def test_plain_without_input():
    def step(ctx: Context) -> None: ...

    signature = read(step)
    assert not signature.is_async
    assert not signature.takes_input
    assert signature.output is type(None)


def test_unannotated_is_anything():
    def step(ctx, value): ...

    signature = read(step)
    assert (signature.input, signature.output) == (Any, Any)


def test_context_is_never_resolved_although_nothing_imports_it_at_run_time():
    assert "Context" not in globals()

    async def step(c: Context, order: Order) -> None: ...

    assert read(step).input is Order


def test_a_class_defined_in_the_calling_function_is_found():
    @dataclass
    class Local:
        n: int

    async def step(ctx: Context, value: list[Local]) -> Local | None: ...

    signature = read(step)
    assert signature.input == list[Local]
    assert signature.output == Local | None


def test_a_forward_reference_inside_a_container_is_found():
    async def step(ctx: Context, value: list["Order"]) -> None: ...  # noqa: UP037

    assert read(step).input == list[Order]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="the type statement is newer")
def test_a_type_alias_is_looked_through():
    names: dict[str, Any] = {"Order": Order}
    exec("type Many = list[Order]\ntype Maybe = Order | None", names)

    assert compatible(names["Many"], list[Order]) is None
    assert compatible(Order, names["Maybe"]) is None
    assert compatible(names["Maybe"], Order) == "None does not fit Order"
    assert Decoder(names["Many"]).decode('[{"n": 1}]') == [Order(1)]


def test_to_members_of_the_return_are_left_out():
    def only_to(ctx) -> To[Order]: ...
    def both(ctx) -> Order | To[Receipt] | None: ...
    def bare(ctx) -> To: ...

    assert read(only_to).output is Any
    assert read(both).output == Order | None
    assert read(bare).output is Any


def test_the_result_is_what_comes_back_with_or_without_to():
    def only_to(ctx) -> To[Order]: ...
    def both(ctx) -> Order | To[Receipt] | None: ...
    def same(ctx) -> Order | To[Order]: ...
    def bare(ctx) -> To: ...
    def never(ctx) -> Order | To[Never]: ...

    assert read(only_to).result is Order
    assert read(both).result == Order | Receipt | None
    assert read(same).result is Order
    assert read(bare).result is Any
    assert read(never).result is Order


def test_an_annotation_that_cannot_be_resolved_names_the_function_and_the_usual_cause():
    async def step(ctx: Context, value: Hidden) -> None: ...

    with pytest.raises(DefinitionError) as error:
        read(step)

    message = str(error.value)
    assert "step" in message
    assert f"{__file__}:{step.__code__.co_firstlineno}" in message
    assert "input annotation 'Hidden'" in message
    assert "if TYPE_CHECKING:" in message


def test_a_return_annotation_that_cannot_be_resolved_is_named_too():
    async def step(ctx: Context) -> Hidden: ...

    with pytest.raises(DefinitionError, match="return annotation 'Hidden'"):
        read(step)


class Holder:
    def method(self, ctx: Context) -> None: ...
    def __call__(self, ctx: Context) -> None: ...


def _no_ctx(): ...
def _no_ctx_but_input(order: Order): ...
def _no_ctx_but_a_lookalike(order: OrderContext): ...
def _too_many(ctx, a, b): ...
def _star(ctx, *values): ...
def _stars(ctx, **values): ...
def _keyword(ctx, *, client): ...
def _generator(ctx):
    yield 1


async def _async_generator(ctx):
    yield 1


def _hide_async(fn):
    @functools.wraps(fn)
    def wrapper(*args):
        return fn(*args)

    return wrapper


@_hide_async
async def _hidden_async(ctx): ...


@pytest.mark.parametrize(
    ("fn", "problem"),
    [
        (_no_ctx, "takes no ctx"),
        (_no_ctx_but_input, "first parameter is 'order'; it must be the Context"),
        (_no_ctx_but_a_lookalike, "first parameter is 'order'"),
        (_too_many, "it takes 'b' as well"),
        (_star, r"it takes \*values"),
        (_stars, r"it takes \*values"),
        (_keyword, "nothing would pass its keyword 'client'"),
        (_generator, "it is a generator"),
        (_async_generator, "it is a generator"),
        (_hidden_async, "a decorator hides that it is async"),
        (Holder().method, "it is a method"),
        (functools.partial(_too_many, 1), "functools.partial"),
        (Holder(), "it is not a function"),
        (Holder, "it is not a function"),
        (len, "it is not a function"),
        ("render", "it is not a function"),
    ],
)
def test_what_cannot_be_a_step_is_refused_with_the_reason(fn, problem):
    with pytest.raises(DefinitionError, match=problem) as error:
        read(fn)

    if inspect.isfunction(fn):
        assert place_of(fn) in str(error.value)
        assert __file__ in str(error.value)


def test_parameters_beyond_the_input_may_stand_there_with_defaults():
    def step(ctx, order: Order, clock=datetime.now, *, client=None): ...

    assert read(step).input is Order


def test_a_well_made_decorator_is_looked_through():
    def logged(fn):
        @functools.wraps(fn)
        async def wrapper(*args):
            return await fn(*args)

        return wrapper

    @logged
    async def step(ctx: Context, order: Order) -> Receipt: ...

    signature = read(step)
    assert signature.is_async
    assert signature.input is Order


@pytest.mark.parametrize(
    ("output", "input_"),
    [
        (Order, Order),
        (BigOrder, Order),
        (Any, Order),
        (Order, Any),
        (Order, object),
        (int, float),
        (Order, dict),
        (Order, dict[str, Any]),
        (Event, Mapping[str, Any]),
        (Model, dict),
        (Shape, dict),
        (Shape, Order),
        (dict, Order),
        (dict[str, Any], Shape),
        (BigShape, Shape),
        (list[BigOrder], list[Order]),
        (list[Order], Sequence[Order]),
        (list[int], tuple[float, ...]),
        (tuple[int, str], list[int | str]),
        (tuple[int, str], tuple[float, str]),
        (list, list[Order]),
        (set[int], list[int]),
        (dict[str, BigOrder], dict[str, Order]),
        (Order, Order | None),
        (None, Order | None),
        (None, None),
        (Order | None, Receipt | Order | None),
        (Literal["a"], str),
        (Literal["a"], Literal["a", "b"]),
        (str, Literal["a"]),
        (UUID, str),
        (str, UUID),
        (datetime, str),
        (Decimal, str),
        (Colour, str),
        (str, Colour),
        (UserId, int),
        (int, UserId),
        (Annotated[int, "positive"], int),
        (Box[int], Box[int]),
        (Box[int], Box[float]),
        (Box[int], Box),
        (Box[int], dict[str, Any]),
        (T, int),
    ],
)
def test_what_fits(output, input_):
    assert compatible(output, input_) is None


@pytest.mark.parametrize(
    ("output", "input_"),
    [
        (Order, Receipt),
        (Order, BigOrder),
        (Order, Event),
        (Event, Model),
        (Shape, BigShape),
        (float, int),
        (bool, int),  # true is no integer in JSON
        (int, str),
        (str, int),
        (None, Order),
        (Order, None),
        (Order | None, Order),
        (list[Order], Order),
        (Order, list[Order]),
        (list[Order], list[Receipt]),
        (list[str], dict[str, str]),
        (dict[str, str], dict[str, int]),
        (tuple[int, str], tuple[int]),
        (tuple[int, str], list[int]),
        (Literal["a", "b"], Literal["a"]),
        (Literal["a"], int),
        (Literal[1], Literal["a"]),
        (str, Order),
        (Order, str),
        (Box[int], Box[str]),
        (Box[int], Crate[int]),
        (Box[int], Order),
        (Order, Box[int]),
    ],
)
def test_what_does_not_fit_is_said_in_both_types(output, input_):
    reason = compatible(output, input_)

    assert reason is not None
    assert "does not fit" in reason
