"""What a step's function takes and gives, read once when it is registered.

A step is ``(ctx)`` or ``(ctx, input)``. Only the input's and the return annotation are resolved:
``Context`` may well be imported under ``if TYPE_CHECKING:``, as formatters like to have it.
"""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Never, NoReturn, Union, get_args, get_origin, get_type_hints

from fleet.compat import compatible
from fleet.errors import DefinitionError
from fleet.flow import To
from fleet.shapes import is_anything, members, type_name

__all__ = ["Signature", "compatible", "place_of", "read_signature"]

_CONTEXT_NAMES: Final = frozenset({"ctx", "_ctx", "context", "_context", "_"})
_CONTEXT: Final = re.compile(r"\bContext\b")
_POSITIONAL: Final = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """What Fleet needs to know of a step's function."""

    is_async: bool
    takes_input: bool
    input: Any  # the annotation; Any where there is none
    output: Any  # without its To[...] members; Any where nothing else is left, or said
    result: Any  # with what its To[...] members carry: the task's result, if this step ends it

    @property
    def input_name(self) -> str:
        """The input's type as a reader would write it."""
        return type_name(self.input) if self.takes_input else "no input"


def place_of(fn: object) -> str:
    """Return ``file:line`` of a function, for messages."""
    code = getattr(inspect.unwrap(fn) if callable(fn) else fn, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else repr(fn)


def read_signature(fn: Callable[..., Any], local: Mapping[str, Any]) -> Signature:
    """Check that ``fn`` can be a step and resolve its annotations.

    ``local`` are the caller's local names, where classes defined in a function are found.
    """
    _check_kind(fn)
    takes_input, annotation, returned = _parameters(fn)
    hints = _resolve(fn, {"input": annotation, "return": returned}, local)
    return Signature(
        is_async=inspect.iscoroutinefunction(fn),
        takes_input=takes_input,
        input=hints["input"],
        output=_output(hints["return"]),
        result=_result(hints["return"]),
    )


def _wrong(fn: Any, problem: str) -> DefinitionError:
    name = getattr(fn, "__qualname__", None) or repr(fn)
    return DefinitionError(f"{name} ({place_of(fn)}) cannot be a step: {problem}")


def _check_kind(fn: Callable[..., Any]) -> None:
    if isinstance(fn, partial):
        raise _wrong(fn, "it is a functools.partial; write a function that makes the call")
    if inspect.ismethod(fn):
        raise _wrong(fn, "it is a method; a step is a plain function")
    if not inspect.isfunction(fn):
        raise _wrong(fn, "it is not a function; use def or async def")
    inner = inspect.unwrap(fn)
    if inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner):
        raise _wrong(fn, "it is a generator; return a value instead of yielding")
    if inspect.iscoroutinefunction(inner) and not inspect.iscoroutinefunction(fn):
        raise _wrong(
            fn, "a decorator hides that it is async; make its wrapper an `async def` that awaits"
        )


def _parameters(fn: Callable[..., Any]) -> tuple[bool, Any, Any]:
    """Return whether there is an input, its annotation and the return annotation."""
    signature = inspect.signature(fn)
    positional = []
    for parameter in signature.parameters.values():
        if parameter.kind in _POSITIONAL:
            positional.append(parameter)
        elif parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
            raise _wrong(fn, f"it takes *{parameter.name}; a step is (ctx) or (ctx, input)")
        elif parameter.default is inspect.Parameter.empty:
            raise _wrong(fn, f"nothing would pass its keyword {parameter.name!r}; give a default")
    if not positional:
        raise _wrong(fn, "it takes no ctx; a step is (ctx) or (ctx, input)")
    for parameter in positional[2:]:
        if parameter.default is inspect.Parameter.empty:
            raise _wrong(
                fn, f"it takes {parameter.name!r} as well; a step is (ctx) or (ctx, input)"
            )
    first, *rest = positional
    if first.name not in _CONTEXT_NAMES and not _CONTEXT.search(str(first.annotation)):
        # (order) alone would otherwise be taken for (ctx), and be given the Context.
        raise _wrong(
            fn, f"its first parameter is {first.name!r}; it must be the Context: (ctx, input)"
        )
    annotation = rest[0].annotation if rest else inspect.Parameter.empty
    return bool(rest), annotation, signature.return_annotation


def _resolve(
    fn: Callable[..., Any], annotations: dict[str, Any], local: Mapping[str, Any]
) -> dict[str, Any]:
    inner: Any = inspect.unwrap(fn)
    resolved = {}
    for name, annotation in annotations.items():
        if annotation is inspect.Parameter.empty:
            resolved[name] = Any
            continue
        holder = types.SimpleNamespace(__annotations__={name: annotation})
        try:
            hints = get_type_hints(holder, inner.__globals__, dict(local), include_extras=True)
        except Exception as error:
            text = annotation if isinstance(annotation, str) else type_name(annotation)
            raise _wrong(
                fn,
                f"its {name} annotation {text!r} cannot be resolved: {error}. The usual cause is "
                f"an import under `if TYPE_CHECKING:`: Fleet needs the class at run time to "
                f"decode into it, so import it outside.",
            ) from error
        resolved[name] = hints[name]
    return resolved


def _output(annotation: Any) -> Any:
    """Drop what may go anywhere: To[...], and functions that never return."""
    return _union(member for member in members(annotation) if not _is_to(member))


def _result(annotation: Any) -> Any:
    """Put what a To[...] carries in its place."""
    carried: list[Any] = []
    for member in members(annotation):
        carried.extend(get_args(member) or (Any,) if _is_to(member) else (member,))
    return _union(carried)


def _is_to(member: Any) -> bool:
    return (get_origin(member) or member) is To


def _union(types_: Iterable[Any]) -> Any:
    kept = [each for each in types_ if each not in (Never, NoReturn)]
    if not kept or any(map(is_anything, kept)):
        return Any
    return Union[tuple(kept)]  # noqa: UP007 -- built from a list
