"""How a Python object becomes plain JSON, and where one cannot.

    dataclass            object, by field; fields that begin with ``_`` too
    TypedDict, dict      object; keys are exactly ``str``
    list, tuple          array; a NamedTuple as well
    msgspec Struct       as msgspec writes it: rename, tags, sets, bytes, …
    pydantic model       as pydantic writes it, by alias, so that it reads it again
    Enum                 its value
    datetime, date, time ISO 8601
    timedelta            ISO 8601 duration
    UUID                 string
    Decimal              string: exact, where a JSON number is a float to most readers
    float, int           number, if finite and within 64 bits

Anything else is refused: an object that would come back as something else is lost data.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import partial
from typing import Any, Final, TypeAlias
from uuid import UUID

import msgspec

from fleet.shapes import is_pydantic

MAX_DEPTH: Final = 254  # orjson's own, for writing
_INT64: Final = range(-(2**63), 2**64)

Form: TypeAlias = Callable[[Any], Any]
Problem: TypeAlias = tuple[str, str]  # (path, what is wrong there)

# Classes are few and live as long as the process, so a plain dict is the cache: a weak one
# would double the cost of writing a dataclass.
_forms: dict[type, Form] = {}


def to_plain(value: object) -> Any:
    """Turn an object that is not JSON into one that is nearer to it (orjson's ``default``)."""
    cls = type(value)
    form = _forms.get(cls)
    if form is None:
        form = _forms[cls] = _form_of(cls)
    return form(value)


def _form_of(cls: type) -> Form:
    if is_pydantic(cls):
        return _pydantic
    if issubclass(cls, msgspec.Struct):
        return _struct
    if dataclasses.is_dataclass(cls):
        names = tuple(field.name for field in dataclasses.fields(cls))
        return partial(_dataclass, names, frozenset(names))
    for base, form in _SIMPLE.items():
        if issubclass(cls, base):
            return form
    return _refuse


def _dataclass(names: tuple[str, ...], known: frozenset[str], value: Any) -> dict[str, Any]:
    # The instance's own dict is four times as fast as a copy, and right unless something (a
    # cached_property, a slot) makes it differ from the fields.
    own: dict[str, Any] | None = getattr(value, "__dict__", None)
    if own is not None and own.keys() == known:
        return own
    return {name: getattr(value, name) for name in names}


def _struct(value: msgspec.Struct) -> Any:
    return msgspec.to_builtins(value, str_keys=True, enc_hook=to_plain)


def _pydantic(value: Any) -> Any:
    # round_trip leaves computed fields out, which a model that forbids extras would refuse.
    return value.__pydantic_serializer__.to_python(
        value, mode="json", by_alias=True, round_trip=True
    )


def _datetime(value: datetime) -> str:
    offset = value.utcoffset()
    if offset and offset % timedelta(minutes=1):
        raise TypeError("an offset from UTC that is not whole minutes")
    return value.isoformat()


def _decimal(value: Decimal) -> str:
    if not value.is_finite():
        raise TypeError(f"Decimal {value} is no number")
    return str(value)


def _enum(value: Enum) -> Any:
    return value.value


def _refuse(value: object) -> Any:
    raise TypeError(f"`{type(value).__qualname__}` has no form as JSON")


_SIMPLE: Final[dict[type, Form]] = {
    Enum: _enum,
    datetime: _datetime,
    date: date.isoformat,
    time: time.isoformat,
    timedelta: msgspec.to_builtins,
    Decimal: _decimal,
    UUID: str,
    float: float,
    tuple: tuple,
}


def find_problem(value: object) -> Problem | None:
    """Look for the first thing in ``value`` that JSON in PostgreSQL would not keep as it is."""
    return _look(value, "$", 0)


def _look(value: object, path: str, depth: int) -> Problem | None:  # noqa: PLR0911
    if depth > MAX_DEPTH:
        return path[:60] + "…", f"nested over {MAX_DEPTH} levels deep, or contains itself"
    match value:
        case None | bool():
            return None
        case Enum():
            return _look(value.value, path, depth + 1)
        case str():
            return _look_at_text(value, path)
        case int() if value not in _INT64:
            return path, "an integer past 64 bits; write it as a string"
        case float() if not math.isfinite(value):
            return path, "NaN or Infinity, which JSON does not have"
        case int() | float():
            return None
        case dict():
            return _look_at_dict(value, path, depth)
        case list() | tuple():
            items = ((f"{path}[{n}]", item) for n, item in enumerate(value))
            return _first(items, depth)
    return _look_at_object(value, path, depth)


def _first(items: Iterable[tuple[str, object]], depth: int) -> Problem | None:
    for path, item in items:
        if found := _look(item, path, depth + 1):
            return found
    return None


def _look_at_text(text: str, path: str) -> Problem | None:
    if "\0" in text:
        return path, "a NUL character, which PostgreSQL does not keep"
    try:
        text.encode()
    except UnicodeEncodeError:
        return path, "a lone surrogate, which UTF-8 does not have"
    return None


def _look_at_dict(value: dict[Any, Any], path: str, depth: int) -> Problem | None:
    for key in value:
        if type(key) is not str:
            kind = type(key).__qualname__
            return path, f"a key of type `{kind}`: the keys of a JSON object are `str`"
        if problem := _look_at_text(key, path):
            return path, f"a key with {problem[1]}"
    return _first(((path + _segment(key), item) for key, item in value.items()), depth)


def _segment(key: str) -> str:
    # A key that is not a plain word is data rather than a name, and data stays out of messages.
    return f".{key}" if key.isidentifier() and len(key) <= 64 else "[...]"


def _look_at_object(value: object, path: str, depth: int) -> Problem | None:
    if is_pydantic(type(value)) and (secret := _find_secret(_as_python(value), path)):
        return secret, "a pydantic secret, which is written as asterisks; pass a reference to it"
    try:
        plain = to_plain(value)
    except RecursionError:
        return path, f"nested over {MAX_DEPTH} levels deep, or contains itself"
    except Exception as error:
        # Only this module's own words and the type: an error from elsewhere may quote the value.
        own = type(value).__qualname__
        return path, str(error) if type(error) is TypeError else f"`{own}` cannot be written"
    return _look(plain, path, depth + 1)


def _as_python(model: Any) -> object:
    return model.__pydantic_serializer__.to_python(model, mode="python")


def _find_secret(value: object, path: str) -> str | None:
    if hasattr(value, "get_secret_value"):
        return path
    items: Iterable[tuple[str, object]] = ()
    if isinstance(value, dict):
        items = ((path + _segment(str(key)), item) for key, item in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        items = ((f"{path}[{n}]", item) for n, item in enumerate(value))
    return next((found for path, item in items if (found := _find_secret(item, path))), None)
