"""Values to JSON text and back: faithful, or refused with the path of what is wrong.

Writing is orjson's, with ``fleet.plain`` for what is not JSON. Reading is msgspec's, or
pydantic's for its own models, or orjson's where the annotation promises nothing; each decoder
is built once a step. Both cost about a microsecond for a small record.

PostgreSQL's jsonb keeps numbers, not their spelling: where no annotation says ``float``, a float
of 1e16 or more may come back as the ``int`` of the same digits.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias, cast

import msgspec
import orjson

from fleet.errors import DecodeError, DefinitionError, NotEncodable, PayloadTooLarge
from fleet.model import MAX_PAYLOAD, Json
from fleet.plain import find_problem, to_plain
from fleet.shapes import bare, custom_types, is_anything, is_pydantic, mentions_pydantic, type_name

_OPTIONS: Final = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME
# orjson writes NaN and Infinity as null without a word. The standard library's encoder can be
# made to refuse them, and runs only over what has a null in it.
_refuse_nan: Final = json.JSONEncoder(allow_nan=False, default=to_plain).encode
_MASKED: Final = '"**********"'  # how pydantic writes a secret, losing it


def encode(value: object, *, what: str = "input", limit: int = MAX_PAYLOAD) -> Json:
    """Return ``value`` as JSON text that PostgreSQL will keep as it is.

    >>> encode({"order_id": 42})
    '{"order_id":42}'
    >>> encode({"items": [{"price": float("nan")}]})
    Traceback (most recent call last):
    fleet.errors.NotEncodable: input at $.items[0].price: NaN or Infinity, which JSON does not have
    """
    try:
        data = orjson.dumps(value, to_plain, _OPTIONS)
    except (TypeError, RecursionError):
        data = b""
    if not data:
        raise _not_encodable(value, what)
    if len(data) > limit:
        raise PayloadTooLarge(what, len(data), limit)
    text = data.decode()  # first: `in` is three times as fast on str as on bytes
    if "null" in text and _has_nan(value):
        raise _not_encodable(value, what)
    # These six characters may also be an escaped backslash before "u0000": look.
    if ("\\u0000" in text or _MASKED in text) and find_problem(value):
        raise _not_encodable(value, what)
    return text


def _has_nan(value: object) -> bool:
    try:
        _refuse_nan(value)
    except (ValueError, TypeError):
        return True
    return False


def _not_encodable(value: object, what: str) -> NotEncodable:
    problem = find_problem(value)
    if problem is None:
        return NotEncodable(f"{what}: `{type(value).__qualname__}` has no faithful form as JSON")
    return NotEncodable(f"{what} at {problem[0]}: {problem[1]}")


Read: TypeAlias = Callable[[str | bytes], Any]


class Decoder:
    """Reads JSON text into one annotation; built once for each step.

    >>> Decoder(list[int]).decode("[1, 2]")
    [1, 2]
    >>> Decoder(list[int]).decode('[1, "secret"]')
    Traceback (most recent call last):
    fleet.errors.DecodeError: at $[1]: expected `int`, got `str`
    """

    __slots__ = ("_names", "_read", "annotation")

    def __init__(self, annotation: Any = Any) -> None:
        self.annotation = annotation
        self._names: Callable[[], frozenset[str]] = frozenset
        try:
            self._read = self._reader(annotation)
        except DefinitionError:
            raise
        except NameError as error:
            raise DefinitionError(
                f"`{type_name(annotation)}` has a field whose annotation cannot be resolved: "
                f"{error}. Import that name at run time (not under `if TYPE_CHECKING:`), and "
                f"define the classes it needs at module level."
            ) from error
        except Exception as error:
            raise DefinitionError(
                f"`{type_name(annotation)}` cannot be read from JSON: {error}"
            ) from error

    def decode(self, text: str | bytes) -> Any:
        """Return the value, or raise ``DecodeError`` with path and types, never with a value."""
        try:
            return self._read(text)
        except Exception as error:
            problem = self._explain(error)
        # Raised out here so that the original, which may quote the input, is not its context.
        raise DecodeError(problem)

    def accepts_null(self) -> bool:
        """Say whether JSON null fits, so that a task may be enqueued without an input."""
        try:
            self._read(b"null")
        except Exception:
            return False
        return True

    def _reader(self, annotation: Any) -> Read:
        plain = bare(annotation)
        if is_anything(plain):
            return orjson.loads
        if plain in _JSON_OBJECTS:
            return _read_object
        if plain in _JSON_ARRAYS:
            return _read_array
        if is_pydantic(plain):
            self._names = lambda: _field_names(plain.__pydantic_core_schema__)
            return cast("Read", plain.__pydantic_validator__.validate_json)
        if mentions_pydantic(plain):
            return self._adapter(plain)
        for cls in custom_types(annotation):
            if not is_pydantic(cls):
                raise DefinitionError(
                    f"`{type_name(cls)}` cannot be read from JSON. Use a dataclass, TypedDict, "
                    f"msgspec Struct, pydantic model or plain JSON types."
                )
        return msgspec.json.Decoder(annotation, dec_hook=_read_part).decode

    def _adapter(self, annotation: Any) -> Read:
        from pydantic import TypeAdapter

        adapter = TypeAdapter[Any](annotation)
        self._names = lambda: _field_names(adapter.core_schema)
        return adapter.validate_json

    def _explain(self, error: Exception) -> str:
        if _is_pydantic_error(error):
            return _explain_pydantic(error, self._names())
        if isinstance(error, msgspec.ValidationError):
            return _explain_msgspec(str(error))
        if isinstance(error, msgspec.DecodeError):
            return f"not JSON: {str(error).removeprefix('JSON is malformed: ')}"
        if isinstance(error, orjson.JSONDecodeError):
            return f"not JSON: {error.msg}"
        if isinstance(error, RecursionError):
            return "nested too deep"
        return f"`{type_name(self.annotation)}` raised {type(error).__qualname__} when built"


_JSON_OBJECTS: Final = (dict, dict[str, Any])
_JSON_ARRAYS: Final = (list, list[Any])


def _read_object(text: str | bytes) -> dict[str, Any]:
    value = orjson.loads(text)
    if type(value) is not dict:
        raise msgspec.ValidationError(f"Expected `object`, got `{_json_type(value)}`")
    return value


def _read_array(text: str | bytes) -> list[Any]:
    value = orjson.loads(text)
    if type(value) is not list:
        raise msgspec.ValidationError(f"Expected `array`, got `{_json_type(value)}`")
    return value


def _read_part(cls: Any, value: object) -> Any:
    """Let pydantic read its own where a dataclass or Struct has one for a field."""
    try:
        # As JSON, because strict models take a date from JSON that they refuse from Python.
        return cls.__pydantic_validator__.validate_json(msgspec.json.encode(value))
    except ValueError as error:
        if not _is_pydantic_error(error):
            raise
        problem = _explain_pydantic(error, _field_names(cls.__pydantic_core_schema__))
    raise ValueError(f"Expected `{type_name(cls)}`: {problem}")


# -- what went wrong, without a value ------------------------------------------------------------

_MSGSPEC_PLACE: Final = re.compile(r"(?s)(.*?)(?: - at (`.*`))?\Z")
# What msgspec says about types and constraints. All the rest (an enum's or tag's value, an
# unknown field, the text of a __post_init__) quotes the input and is put in other words.
_SAFE: Final = re.compile(
    r"Expected `|Object missing required field `"
    r"|Invalid (RFC3339|ISO8601|UUID|decimal|base64|UTF-8|epoch)|(Integer|Number|Duration|"
    r"Timestamp|Date|Time)[a-z ]* out of range"
)
_REWORDED: Final = {
    "Invalid enum value": "not one of the values allowed",
    "Invalid value": "not one of the tags allowed",
    "Object contains unknown field": "a field that the type does not have",
}


def _explain_msgspec(message: str) -> str:
    found = _MSGSPEC_PLACE.match(message)
    problem, place = (found[1], found[2]) if found else (message, None)
    path = place.replace("`", "") if place else "$"
    if not _SAFE.match(problem):
        reworded = (new for old, new in _REWORDED.items() if problem.startswith(old))
        problem = next(reworded, "refused by the type's own check")
    return f"at {path}: {problem[0].lower()}{problem[1:]}"


def _is_pydantic_error(error: Exception) -> bool:
    return type(error).__module__.startswith("pydantic") and hasattr(error, "errors")


def _explain_pydantic(error: Any, names: frozenset[str]) -> str:
    details = error.errors(include_url=False, include_context=False)
    lines = [_explain_detail(detail, names) for detail in details[:3]]
    more = f"; {len(details) - 3} more" if len(details) > 3 else ""
    return "; ".join(lines) + more


def _explain_detail(detail: dict[str, Any], names: frozenset[str]) -> str:
    if detail["type"] == "json_invalid":
        return "not JSON"
    path = "$" + "".join(_place(part, names) for part in detail["loc"])
    got = "" if detail["type"] == "missing" else f", got `{_json_type(detail['input'])}`"
    return f"at {path}: {detail['type']}{got}"


def _place(part: int | str, names: frozenset[str]) -> str:
    if isinstance(part, int):
        return f"[{part}]"
    # pydantic names dict keys and forbidden extras too: those are the input's, not the type's.
    return f".{part}" if part in names else "[...]"


def _field_names(schema: object) -> frozenset[str]:
    """Collect the names of all fields, and their aliases, in a pydantic core schema."""
    return frozenset(_walk_schema(schema))


def _walk_schema(node: object) -> Iterator[str]:
    if isinstance(node, dict):
        fields = node.get("fields")
        if isinstance(fields, dict):
            yield from (name for name in fields if isinstance(name, str))
        yield from _texts(node.get("validation_alias"))
        for child in node.values():
            yield from _walk_schema(child)
    elif isinstance(node, list | tuple):
        for child in node:
            yield from _walk_schema(child)


def _texts(alias: object) -> Iterator[str]:
    if isinstance(alias, str):
        yield alias
    elif isinstance(alias, list | tuple):
        for part in alias:
            yield from _texts(part)


_JSON_TYPES: Final[dict[type, str]] = {
    type(None): "null",
    bool: "bool",
    int: "int",
    float: "float",
    str: "str",
    list: "array",
    dict: "object",
}


def _json_type(value: object) -> str:
    return _JSON_TYPES.get(type(value), type(value).__qualname__)
