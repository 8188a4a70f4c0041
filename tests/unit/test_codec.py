"""The codec writes faithfully, or refuses with the path and never a value."""

import json
import math
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from functools import cached_property
from typing import Any
from uuid import UUID

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.codec import Decoder, encode
from fleet.errors import NotEncodable, PayloadTooLarge
from tests.unit.codec_types import (
    ID,
    Address,
    Colour,
    Customer,
    Event,
    Item,
    Level,
    Loose,
    Order,
    Point,
    Sale,
    Unit,
)

ROUND_TRIPS = [
    (Item("a", Decimal("1.10"), "private"), Item),
    (Order(1, [Item("a", Decimal("0.1"))], Colour.RED), Order),
    ([Order(1), Order(2)], list[Order]),
    (Order(1), Order | None),
    (None, Order | None),
    ({"street": "Main"}, Address),
    (Event(ID, {"x"}), Event),
    (Customer(fullName="Ann", scores={"a": 1}), Customer),
    ([Customer(fullName="Ann")], list[Customer]),
    (Customer(fullName="Ann"), Customer | None),
    (Customer(fullName="Ann"), Customer | int),
    (Sale(Customer(fullName="Ann"), Order(1)), Sale),
    (Point(1, 2), Point),
    ((1, "a"), tuple[int, str]),
    (Colour.BLUE, Colour),
    (Level.LOW, Level),
    (Unit.KG, Unit),
    (datetime(2030, 1, 2, 3, 4, 5, 6, tzinfo=UTC), datetime),
    (datetime(2030, 1, 2, 3, 4, tzinfo=timezone(timedelta(hours=5, minutes=30))), datetime),
    (datetime(2030, 1, 2, 3, 4), datetime),
    (date(2030, 1, 2), date),
    (time(1, 2, 3), time),
    (timedelta(days=-3, microseconds=1), timedelta),
    (ID, UUID),
    (Decimal("12345678901234567890.123456789"), Decimal),
    ({"a": [1, 2.5, None, True, "é\\u0000 is only text"]}, Any),
    ({"a": 1}, dict),
    ([1], list),
    (3, float),
    (2**64 - 1, int),
    (-(2**63), int),
    ("a" * 1000, str),
]


@pytest.mark.parametrize(("value", "annotation"), ROUND_TRIPS, ids=lambda v: str(v)[:40])
def test_what_is_written_is_read_back_equal(value, annotation):
    assert Decoder(annotation).decode(encode(value)) == value


@pytest.mark.parametrize(("value", "annotation"), ROUND_TRIPS, ids=lambda v: str(v)[:40])
def test_text_may_arrive_as_bytes(value, annotation):
    assert Decoder(annotation).decode(encode(value).encode()) == value


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=20,
)


@given(PLAIN)
def test_anything_accepted_decodes_to_an_equal_value(value):
    try:
        text = encode(value)
    except NotEncodable:
        assert _has_something_json_cannot_keep(value)
        return
    assert not _has_something_json_cannot_keep(value)
    assert Decoder().decode(text) == value
    assert json.loads(text) == value  # valid for every other reader, PostgreSQL's too


def _has_something_json_cannot_keep(value: object) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, str):
        return "\0" in value or any(0xD800 <= ord(char) < 0xE000 for char in value)
    if isinstance(value, dict):
        parts = [*value.keys(), *value.values()]
        return any(map(_has_something_json_cannot_keep, parts))
    return isinstance(value, list) and any(map(_has_something_json_cannot_keep, value))


@dataclass
class Record:
    a: int
    b: list[str]
    c: datetime | None
    d: dict[str, float]


@given(st.builds(Record))
def test_records_decode_to_an_equal_value(record):
    try:
        text = encode(record)
    except NotEncodable:
        return
    assert Decoder(Record).decode(text) == record


def _nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


@dataclass
class Link:
    next: "Link | dict[str, Link] | None" = None
    text: str = ""


def _chain(depth: int, end: Link) -> Link:
    for _ in range(depth):
        end = Link(end)
    return end


def _circular() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


class Secretive(pydantic.BaseModel):
    tokens: list[pydantic.SecretStr]


class Ratio(pydantic.BaseModel):
    value: float


@pytest.mark.parametrize(
    ("value", "path", "problem"),
    [
        ("a\0b", "$", "NUL"),
        ({"items": [{"name": "a\\\0"}]}, "$.items[0].name", "NUL"),
        ({"a\0": 1}, "$", "a key with a NUL"),
        ({"a": "\ud800"}, "$.a", "surrogate"),
        ({"\udfff": 1}, "$", "a key with a lone surrogate"),
        ({"items": [{"price": 1}, {"price": float("nan")}]}, "$.items[1].price", "NaN"),
        ([float("inf")], "$[0]", "Infinity"),
        (Item("a", Decimal("NaN")), "$.price", "Decimal NaN"),
        (Ratio(value=float("nan")), "$.value", "NaN"),
        (Point(1, 2**64), "$[1]", "64 bits"),
        ({"n": -(2**63) - 1}, "$.n", "64 bits"),
        ({"a": {1: 2}}, "$.a", "a key of type `int`"),
        ({Unit.KG: 2}, "$", "a key of type `Unit`"),
        ({"tags": {"a"}}, "$.tags", "`set` has no form as JSON"),
        ({"raw": b"x"}, "$.raw", "`bytes` has no form as JSON"),
        ({"a b": [object()]}, "$[...][0]", "`object` has no form as JSON"),
        (_nested(1000), "$[0]", "nested over 254 levels deep"),
        (_circular(), "$[0]", "contains itself"),
        (_chain(300, Link()), "$.next.next", "nested over 254 levels deep"),
        (_chain(100, Link(text="\0")), "$.next.next", "NUL"),
        (Event(ID, {"a", "b\0"}), "$.tags", "NUL"),
        (Loose({"n": [2**64]}), "$.value.n[0]", "64 bits"),
        (Loose(float("nan")), "$.value", "NaN"),
        (Loose(object()), "$", "`object` has no form as JSON"),
        (
            datetime(1880, 1, 1, tzinfo=timezone(timedelta(seconds=61))),
            "$",
            "not whole minutes",
        ),
        (Secretive(tokens=["hush"]), "$.tokens[0]", "pydantic secret"),
    ],
)
def test_what_json_in_postgresql_cannot_keep_is_refused_with_its_path(value, path, problem):
    with pytest.raises(NotEncodable) as error:
        encode(value, what="result")

    assert str(error.value).startswith(f"result at {path}")
    assert problem in str(error.value)
    assert "hush" not in str(error.value)


@pytest.mark.parametrize("value", ["null", None, {"a": None}, '"**********"', "**********", "\\0"])
def test_what_only_looks_suspicious_is_kept(value):
    assert Decoder().decode(encode(value)) == value


def test_a_cached_property_is_no_field():
    @dataclass
    class Lazy:
        n: int

        @cached_property
        def heavy(self) -> object:
            return object()

    lazy = Lazy(1)
    assert lazy.heavy
    assert encode(lazy) == '{"n":1}'


def test_what_is_just_not_too_deep_is_kept_whatever_is_in_it():
    suspicious = {"a": None, "b": "\\u0000", "c": "**********"}
    value: Any = suspicious
    for _ in range(250):
        value = [value]

    assert Decoder().decode(encode(value)) == value
    assert encode(_chain(120, Link(text="\\u0000")))


def test_one_byte_over_the_limit_is_too_large():
    assert encode("é" * 49, limit=100)  # 98 bytes and two quotes

    with pytest.raises(PayloadTooLarge, match="result is 101 bytes of JSON, the limit is 100"):
        encode("é" * 49 + "x", what="result", limit=100)


def test_pydantic_leaves_out_what_it_computes():
    assert encode(Customer(fullName="Ann")) == '{"fullName":"Ann","scores":{}}'
