"""What the jobs of these tests take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

import msgspec
import pydantic


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
