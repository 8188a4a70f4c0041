"""Whether what one step returns can be what the next one takes.

The question is asked of types at import, so it can only refuse what is plainly wrong. Between
two steps lies JSON: a UUID arrives as a string and fits ``UUID`` and ``str``; ``True`` does not
fit ``int``, although Python's ``bool`` is one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Final, Literal, get_args, get_origin, is_typeddict
from uuid import UUID

from fleet.shapes import bare, is_anything, is_record, members, type_name

_TEXTS: Final = (str, datetime, date, time, timedelta, UUID, Decimal)


def compatible(output: Any, input: Any) -> str | None:  # noqa: A002 -- the word for it
    """Return why a value of type ``output`` does not fit ``input``, or None if it does.

    >>> compatible(int, float) is None
    True
    >>> compatible(int | None, int)
    'None does not fit int'
    """
    wanted = members(input)
    for given in members(output):
        if not any(_fits(given, want) for want in wanted):
            return f"{type_name(given)} does not fit {type_name(input)}"
    return None


def _fits(given: Any, want: Any) -> bool:
    given, want = bare(given), bare(want)
    if is_anything(given) or is_anything(want) or given == want:
        return True
    if get_origin(given) is Literal or get_origin(want) is Literal:
        return _literals_fit(given, want)
    if _has_fields(given):
        return _record_fits(given, want)
    given_kind, want_kind = _kind(given), _kind(want)
    if given_kind is None or want_kind is None:
        return isinstance(given, type) and isinstance(want, type) and issubclass(given, want)
    if given_kind == "object" and _has_fields(want):
        return True  # a dict's keys are not known here; the decoder will see
    if given_kind != want_kind:
        return (given_kind, want_kind) == ("int", "float")
    if given_kind == "array":
        return _arrays_fit(given, want)
    if given_kind == "object":
        return compatible(_item(given), _item(want)) is None
    return True


def _kind(annotation: Any) -> str | None:
    """Name the JSON type a value of this type is written as; None where it is not known."""
    cls = get_origin(annotation) or annotation
    if cls is None or cls is type(None):
        return "null"
    if _has_fields(cls):
        return "object"
    if not isinstance(cls, type):
        return None
    if issubclass(cls, Enum):
        kinds = {_kind(type(member.value)) for member in cls}
        return kinds.pop() if len(kinds) == 1 else None
    for kind, classes in (
        ("bool", bool),  # before int, which it is to Python and not to JSON
        ("int", int),
        ("float", float),
        ("text", _TEXTS),
        ("object", Mapping),
        ("array", (list, tuple, Set)),
    ):
        if issubclass(cls, classes):
            return kind
    # Abstract ones: Sequence, Collection, Iterable
    return "array" if cls.__module__ == "collections.abc" and issubclass(list, cls) else None


def _literals_fit(given: Any, want: Any) -> bool:
    if get_origin(want) is Literal:
        if get_origin(given) is Literal:
            return set(get_args(given)) <= set(get_args(want))
        return any(_kind(given) == _kind(type(value)) for value in get_args(want))
    return all(_fits(type(value), want) for value in get_args(given))


def _has_fields(annotation: Any) -> bool:
    cls = get_origin(annotation) or annotation
    return is_record(cls) or is_typeddict(cls)


def _record_fits(given: Any, want: Any) -> bool:
    given_cls, want_cls = get_origin(given) or given, get_origin(want) or want
    if is_typeddict(given_cls) and is_typeddict(want_cls):
        return bool(want_cls.__required_keys__ <= given_cls.__annotations__.keys())
    if is_record(given_cls) and is_record(want_cls):
        pairs = zip(get_args(given), get_args(want), strict=False)  # Box[int] and Box say less
        return issubclass(given_cls, want_cls) and _all_fit(pairs)
    # A TypedDict is a dict, whose keys a dataclass may well be read from.
    return is_typeddict(given_cls) if is_record(want_cls) else _kind(want_cls) == "object"


def _arrays_fit(given: Any, want: Any) -> bool:
    ours, theirs = _fixed(given), _fixed(want)
    if ours is not None and theirs is not None:
        return len(ours) == len(theirs) and _all_fit(zip(ours, theirs, strict=True))
    if ours is not None:
        return _all_fit((item, _item(want)) for item in ours)
    if theirs is not None:
        return _all_fit((_item(given), item) for item in theirs)
    return compatible(_item(given), _item(want)) is None


def _all_fit(pairs: Iterable[tuple[Any, Any]]) -> bool:
    return all(compatible(given, want) is None for given, want in pairs)


def _fixed(annotation: Any) -> tuple[Any, ...] | None:
    """Return the item types of a tuple of fixed length; None for every other array."""
    args = get_args(annotation)
    if get_origin(annotation) is not tuple or (len(args) == 2 and args[1] is ...):
        return None
    return args


def _item(annotation: Any) -> Any:
    """Return the type of the items of an array, or of the values of an object."""
    args = tuple(arg for arg in get_args(annotation) if arg is not ...)
    return args[-1] if args else Any
