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
_JSON: Final = (str, int, float, dict, list, tuple, type(None))

Form: TypeAlias = Callable[[Any], Any]
Problem: TypeAlias = tuple[str, str]  # (path, what is wrong there)

# Classes are few and live as long as the process, so a plain dict is the cache: a weak one
# would double the cost of writing a dataclass.
_forms: dict[type, Form] = {}


class _NoForm(TypeError):
    """The value has no form as JSON; the text names its type only."""


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
        raise _NoForm("an offset from UTC that is not whole minutes")
    return value.isoformat()


def _decimal(value: Decimal) -> str:
    if not value.is_finite():
        raise _NoForm(f"Decimal {value} is no number")
    return str(value)


def _enum(value: Enum) -> Any:
    return value.value


def _refuse(value: object) -> Any:
    raise _NoForm(f"`{type(value).__qualname__}` has no form as JSON")


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


class _Unfaithful(Exception):
    def __init__(self, path: str, problem: str) -> None:
        super().__init__(path, problem)
        self.found: Problem = (path, problem)


def find_problem(value: object) -> Problem | None:
    """Look for the first thing in ``value`` that JSON in PostgreSQL would not keep as it is."""
    # A loop and not a recursion: what is nested too deep is one of the things to be found.
    todo: list[tuple[str, object, int]] = [("$", value, 0)]
    while todo:
        path, item, depth = todo.pop()
        try:
            parts = [*_look(path, item)]
        except _Unfaithful as error:
            return error.found
        if depth == MAX_DEPTH and parts:
            return f"{path[:60]}…", f"nested over {MAX_DEPTH} levels deep, or contains itself"
        todo.extend((*part, depth + 1) for part in reversed(parts))
    return None


def _look(path: str, value: object) -> Iterable[tuple[str, object]]:
    """Check one value by itself and return what it consists of."""
    match _as_json(path, value):
        case str() as text:
            _check_text(path, text)
        case bool() | None:
            pass
        case int() as number if number not in _INT64:
            raise _Unfaithful(path, "an integer past 64 bits; write it as a string")
        case float() as number if not math.isfinite(number):
            raise _Unfaithful(path, "NaN or Infinity, which JSON does not have")
        case dict() as items:
            for key in items:
                _check_key(path, key)
            return ((path + _segment(key), item) for key, item in items.items())
        case list() | tuple() as items:
            return ((f"{path}[{n}]", item) for n, item in enumerate(items))
    return ()


def _as_json(path: str, value: object) -> object:
    while not isinstance(value, _JSON) or isinstance(value, Enum):
        if is_pydantic(type(value)):
            _check_secrets(path, value)
        try:
            value = to_plain(value)
        except RecursionError:
            problem = f"nested over {MAX_DEPTH} levels deep, or contains itself"
            raise _Unfaithful(path, problem) from None
        except Exception as error:
            # This module's own words, or the type: an error from elsewhere may quote the value.
            own = f"`{type(value).__qualname__}` cannot be written as JSON"
            problem = str(error) if isinstance(error, _NoForm) else own
            raise _Unfaithful(path, problem) from None
    return value


def _check_text(path: str, text: str) -> None:
    if "\0" in text:
        raise _Unfaithful(path, "a NUL character, which PostgreSQL does not keep")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _Unfaithful(path, "a lone surrogate, which UTF-8 does not have") from None


def _check_key(path: str, key: object) -> None:
    if type(key) is not str:
        kind = type(key).__qualname__
        raise _Unfaithful(path, f"a key of type `{kind}`: the keys of a JSON object are `str`")
    try:
        _check_text(path, key)
    except _Unfaithful as error:
        raise _Unfaithful(path, f"a key with {error.found[1]}") from None


def _segment(key: str) -> str:
    # A key that is not a plain word is data rather than a name, and data stays out of messages.
    return f".{key}" if key.isidentifier() and len(key) <= 64 else "[...]"


def _check_secrets(path: str, model: Any) -> None:
    todo = [(path, model.__pydantic_serializer__.to_python(model, mode="python"))]
    while todo:
        path, value = todo.pop()
        if hasattr(value, "get_secret_value"):
            raise _Unfaithful(
                path, "a pydantic secret, which is written as asterisks; pass a reference to it"
            )
        if isinstance(value, dict):
            todo.extend((path + _segment(str(key)), item) for key, item in value.items())
        elif isinstance(value, list | tuple | set | frozenset):
            todo.extend((f"{path}[{n}]", item) for n, item in enumerate(value))
