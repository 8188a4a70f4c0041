"""What an annotation is, seen from JSON: the few questions that decoding and checking share."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterator
from typing import Annotated, Any, Final, NewType, TypeVar, Union, get_args, get_origin

import msgspec

UNIONS: Final = (Union, types.UnionType)


def type_name(annotation: Any) -> str:
    """Return an annotation as a reader would write it.

    >>> type_name(list[int]), type_name(int | None), type_name(msgspec.Struct)
    ('list[int]', 'int | None', 'Struct')
    """
    if annotation is None or annotation is type(None):
        return "None"
    if annotation is ...:
        return "..."
    origin = get_origin(annotation)
    if origin is Annotated:
        return type_name(get_args(annotation)[0])
    if origin in UNIONS:
        return " | ".join(map(type_name, get_args(annotation)))
    if origin is typing.Literal:
        return f"Literal[{', '.join(map(repr, get_args(annotation)))}]"
    if origin is not None:
        args = ", ".join(map(type_name, get_args(annotation)))
        return f"{type_name(origin)}[{args}]"
    if isinstance(annotation, type):
        return annotation.__qualname__.rpartition("<locals>.")[2]
    return str(getattr(annotation, "__name__", annotation))


def bare(annotation: Any) -> Any:
    """Return the type itself, without ``Annotated``, ``NewType`` or a ``type`` alias around it."""
    while True:
        if get_origin(annotation) is Annotated:
            annotation = get_args(annotation)[0]
        elif isinstance(annotation, NewType):
            annotation = annotation.__supertype__
        elif type(annotation).__name__ == "TypeAliasType":  # Python 3.12 and later
            annotation = annotation.__value__
        else:
            return annotation


def members(annotation: Any) -> tuple[Any, ...]:
    """Return the members of a union, flattened; any other type is the only member of itself."""
    annotation = bare(annotation)
    if get_origin(annotation) not in UNIONS:
        return (annotation,)
    return tuple(member for arg in get_args(annotation) for member in members(arg))


def is_anything(annotation: Any) -> bool:
    """Say whether nothing is known about the type."""
    return annotation is Any or annotation is object or isinstance(annotation, TypeVar)


def is_pydantic(annotation: Any) -> bool:
    """Say whether this is a pydantic model or dataclass, without importing pydantic."""
    return isinstance(annotation, type) and hasattr(annotation, "__pydantic_validator__")


def is_record(annotation: Any) -> bool:
    """Say whether this is a class that becomes a JSON object field by field."""
    return isinstance(annotation, type) and (
        dataclasses.is_dataclass(annotation)
        or issubclass(annotation, msgspec.Struct)
        or is_pydantic(annotation)
    )


def mentions_pydantic(annotation: Any) -> bool:
    """Say whether pydantic has to read (a part of) this annotation itself."""
    annotation = bare(annotation)
    return is_pydantic(annotation) or any(map(mentions_pydantic, get_args(annotation)))


def custom_types(annotation: Any) -> Iterator[Any]:
    """Yield every class in reach of an annotation that msgspec does not know how to read."""
    seen: set[int] = set()
    todo: list[object] = [msgspec.inspect.type_info(annotation)]
    while todo:
        node = todo.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, msgspec.inspect.CustomType):
            yield node.cls
        elif isinstance(node, tuple):
            todo.extend(node)
        elif isinstance(node, msgspec.inspect.Type | msgspec.inspect.Field):
            todo.extend(getattr(node, name) for name in node.__struct_fields__)
