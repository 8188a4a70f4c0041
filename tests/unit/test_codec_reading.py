"""The codec reads what fits its type, and names what does not by path and type."""

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
import pytest

from fleet.codec import Decoder
from fleet.errors import DecodeError, DefinitionError
from tests.unit.codec_types import Colour, Customer, Item, Order, Sale

CANARY = "canary-5f1c"


class Cat(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    name: str


class Dog(msgspec.Struct, tag=True):
    name: str


@dataclass
class Fussy:
    n: int

    def __post_init__(self) -> None:
        raise ValueError(f"no {self.n} for {CANARY}")


@dataclass
class Broken:
    n: int

    def __post_init__(self) -> None:
        raise KeyError(CANARY)


@pytest.mark.parametrize(
    ("annotation", "text", "message"),
    [
        (Order, f'{{"order_id": "{CANARY}"}}', "at $.order_id: expected `int`, got `str`"),
        (Order, "{}", "at $: object missing required field `order_id`"),
        (list[Order], '[{"order_id": 1}, 7]', "at $[1]: expected `object`, got `int`"),
        (dict[str, int], f'{{"{CANARY}": "x"}}', "at $[...]: expected `int`, got `str`"),
        (dict[int, int], f'{{"{CANARY}": 1}}', "at key in $: expected `int`, got `str`"),
        (Colour, f'"{CANARY}"', "at $: not one of the values allowed"),
        (
            Order,
            f'{{"order_id": 1, "colour": "{CANARY}"}}',
            "at $.colour: not one of the values allowed",
        ),
        (Literal["a"], f'"{CANARY}"', "at $: not one of the values allowed"),
        (Cat | Dog, f'{{"type": "{CANARY}"}}', "at $.type: not one of the tags allowed"),
        (
            Cat,
            f'{{"type": "Cat", "name": "x", "{CANARY}": 1}}',
            "at $: a field that the type does not have",
        ),
        (datetime, f'"{CANARY}"', "at $: invalid RFC3339 encoded datetime"),
        (UUID, f'"{CANARY}"', "at $: invalid UUID"),
        (Decimal, f'"{CANARY}"', "at $: invalid decimal string"),
        (list[Fussy], '[{"n": 1}]', "at $[0]: refused by the type's own check"),
        (Broken, '{"n": 1}', "`Broken` raised KeyError when built"),
        (
            Annotated[str, msgspec.Meta(pattern="^a$")],
            f'"{CANARY}"',
            "at $: expected `str` matching regex '^a$'",
        ),
        (dict, "[]", "at $: expected `object`, got `array`"),
        (list, "null", "at $: expected `array`, got `null`"),
        (Any, f"{{{CANARY}", "not JSON: "),
        (int, f"{CANARY}", "not JSON: invalid character (byte 0)"),
        (Customer, "{}", "at $.fullName: missing"),
        (
            Customer,
            f'{{"fullName": "x", "scores": {{"{CANARY}": "{CANARY}"}}}}',
            "at $.scores[...]: int_parsing, got `str`",
        ),
        (
            Customer,
            f'{{"fullName": "x", "{CANARY}": 1}}',
            "at $[...]: extra_forbidden, got `int`",
        ),
        (Customer, f"{{{CANARY}", "not JSON"),
        (list[Customer], '[{"fullName": 1}]', "at $[0].fullName: string_type, got `int`"),
        (
            Sale,
            f'{{"customer": {{"fullName": ["{CANARY}"]}}, "order": {{"order_id": 1}}}}',
            "at $.customer: expected `Customer`: at $.fullName: string_type, got `array`",
        ),
        (Any, "[" * 5000 + "]" * 5000, "not JSON"),
        (list[list[int]] | int, "[[" * 5000, "at $[0][0]: expected `int`, got `array`"),
    ],
)
def test_u10_a_wrong_input_is_named_by_path_and_type_and_never_by_value(annotation, text, message):
    with pytest.raises(DecodeError) as error:
        Decoder(annotation).decode(text)

    assert message in str(error.value)
    assert CANARY not in str(error.value)
    # Not even behind it, where a traceback or a tracker would print it.
    assert error.value.__cause__ is None
    assert error.value.__context__ is None


def test_an_int_past_64_bits_in_jsonb_was_a_float():
    """PostgreSQL spells 1e300 out, and only a float can have been written so."""
    assert Decoder().decode("1" + "0" * 300) == 1e300


def test_unknown_fields_of_a_dataclass_are_ignored_so_that_old_code_reads_new_input():
    assert Decoder(Order).decode('{"order_id": 1, "added_later": 2}') == Order(1)


class Opaque: ...


@dataclass
class HasOpaque:
    inner: list[Opaque]


@pytest.mark.parametrize("annotation", [Opaque, list[Opaque], HasOpaque])
def test_a_class_that_json_cannot_become_is_refused_when_the_decoder_is_built(annotation):
    with pytest.raises(DefinitionError, match=r"`Opaque` cannot be read from JSON\. Use a"):
        Decoder(annotation)


def test_a_union_that_json_cannot_tell_apart_is_refused_when_the_decoder_is_built():
    with pytest.raises(DefinitionError, match=r"`Order \| Item` cannot be read from JSON"):
        Decoder(Order | Item)


@pytest.mark.parametrize(
    ("annotation", "accepts"),
    [(Any, True), (Order | None, True), (Order, False), (int, False), (None, True)],
)
def test_accepts_null(annotation, accepts):
    assert Decoder(annotation).accepts_null() is accepts
