"""The settings of a step and where each comes from.

    step  over  job  over  queue  over  config  over  the defaults below

Every layer is a ``Settings`` in which ``None`` means "not said here"; ``resolve`` merges them
into a ``Policy``, in which everything is said.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Final, Literal, TypeAlias, get_args

from fleet.errors import InvalidSetting
from fleet.model import (
    DEFAULT_KEEP,
    DEFAULT_PRIORITY,
    DEFAULT_TIMEOUT,
    OnFailure,
    OnSuccess,
    Seconds,
)
from fleet.options import Duration, label, priority, seconds
from fleet.retry import Retry

Key: TypeAlias = str | Callable[[Any], str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One layer: what a step, a job, a queue or the config says. ``None`` says nothing."""

    retry: Retry | None = None
    timeout: Duration | None = None
    priority: int | None = None
    keep: Duration | None = None
    key: Key | None = None
    on_success: OnSuccess | None = None
    on_failure: OnFailure | None = None

    def __post_init__(self) -> None:
        if self.retry is not None and not isinstance(self.retry, Retry):
            raise InvalidSetting("retry", self.retry, "a Retry(...)")
        self._normalise("timeout")
        self._normalise("keep")
        if self.priority is not None:
            priority("priority", self.priority, InvalidSetting)
        if self.key is not None and not callable(self.key):
            label("key", self.key, InvalidSetting)
        _check_choice("on_success", self.on_success, OnSuccess)
        _check_choice("on_failure", self.on_failure, OnFailure)

    def _normalise(self, name: Literal["timeout", "keep"]) -> None:
        value: object = getattr(self, name)
        if value is None:
            return
        duration = seconds(name, value, InvalidSetting)
        if duration == 0:
            raise InvalidSetting(name, value, "must be longer than 0 seconds")
        object.__setattr__(self, name, duration)


def _check_choice(name: str, value: object, choices: object) -> None:
    allowed = get_args(choices)
    if value is not None and value not in allowed:
        raise InvalidSetting(name, value, f"one of {', '.join(map(repr, allowed))}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How one step runs, with every setting decided."""

    retry: Retry = Retry()  # noqa: RUF009 -- frozen, so one instance may be shared
    timeout: Seconds = DEFAULT_TIMEOUT
    priority: int = DEFAULT_PRIORITY
    keep: Seconds = DEFAULT_KEEP
    key: Key | None = None
    on_success: OnSuccess = "archive"
    on_failure: OnFailure = "bury"

    def as_dict(self) -> dict[str, Any]:
        """Return the form that is stored as jsonb; of a key that is computed, only that it is."""
        computed = callable(self.key)
        retry = {field.name: getattr(self.retry, field.name) for field in fields(Retry)}
        return {
            "retry": retry,
            "timeout": self.timeout,
            "priority": self.priority,
            "keep": self.keep,
            "key": None if computed else self.key,
            "key_computed": computed,
        }


_NAMES: Final = tuple(field.name for field in fields(Settings))


def resolve(*layers: Settings) -> Policy:
    """Merge layers, the strongest first; what none of them says is Fleet's default.

    >>> resolve(Settings(timeout=30), Settings(timeout=60, priority=5)).timeout
    30.0
    """
    said: dict[str, Any] = {}
    for layer in reversed(layers):
        for name in _NAMES:
            value = getattr(layer, name)
            if value is not None:
                said[name] = value
    return Policy(**said)
