"""Types of every kind that the codec writes and reads."""

from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import Any, NamedTuple, TypedDict
from uuid import UUID

import msgspec
import pydantic


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1


class Unit(StrEnum):
    KG = "kg"


class Point(NamedTuple):
    x: int
    y: int


@dataclass
class Item:
    sku: str
    price: Decimal
    _note: str = ""  # orjson alone would drop it


@dataclass(slots=True)
class Order:
    order_id: int
    items: list[Item] = field(default_factory=list)
    colour: Colour | None = None


class Address(TypedDict):
    street: str


class Event(msgspec.Struct, rename="camel", tag=True):
    event_id: UUID
    tags: set[str] = set()


class Loose(msgspec.Struct):
    value: Any


class Customer(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")

    name: str = pydantic.Field(alias="fullName")
    scores: dict[str, int] = {}

    @pydantic.computed_field
    @property
    def shouted(self) -> str:
        return self.name.upper()


@dataclass
class Sale:
    customer: Customer
    order: Order


ID = UUID("12345678-1234-5678-1234-567812345678")
