"""What ``fleet queue set`` may change, and the settings that come of it.

Overrides live in the database and beat the files of every host. A host that cannot follow one (it
has no processes of its own for that queue, …) says so and goes on as its file says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from fleet.errors import ConfigError
from fleet.limits import Rate
from fleet.settings.model import QueueSettings, RunSettings
from fleet.settings.schema import SCHEMA, unknown

LIVE: Final = ("processes", "concurrency", "weight", "limit", "rate")


def read_override(queue: str, key: str, value: object) -> object:
    """Return the value of one override as it is kept, or ConfigError; a text is read by its key."""
    if key not in SCHEMA["queues"]:
        raise unknown(f"queues.{queue}", key, value, LIVE)
    if key not in LIVE:
        hint = f"cannot be changed live: set it in fleet.toml. What can is {', '.join(LIVE)}"
        raise ConfigError(f"queues.{queue}.{key}", value, hint)
    found = _read(queue, key, value)
    return str(found) if isinstance(found, Rate) else found


def _read(queue: str, key: str, value: object) -> object:
    kind = SCHEMA["queues"][key]
    if isinstance(value, str):
        value = kind.text(value.strip())
    return kind.read(f"queues.{queue}.{key}", value)


def overridden(
    settings: RunSettings, overrides: Mapping[str, Mapping[str, object]]
) -> tuple[RunSettings, list[ConfigError]]:
    """Lay the overrides of each queue over the settings; return also those that cannot be.

    >>> settings = RunSettings(queues=(QueueSettings(name="images", processes=2),))
    >>> found, refused = overridden(settings, {"images": {"processes": 3}, "emails": {"weight": 2}})
    >>> [(queue.name, queue.processes, queue.weight) for queue in found.queues]
    [('images', 3, 1.0), ('emails', None, 2.0)]
    """
    refused = []
    for name in sorted(overrides):
        for key, value in overrides[name].items():
            try:
                kept = read_override(name, key, value)
                settings = _laid_over(settings, name, key, _read(name, key, kept))
            except ConfigError as error:
                refused.append(error)
    return settings, refused


def _laid_over(settings: RunSettings, name: str, key: str, value: Any) -> RunSettings:
    found = next((queue for queue in settings.queues if queue.name == name), None)
    queue = found or QueueSettings(name=name)
    if key not in ("limit", "rate") and queue.dedicated == (key == "weight"):
        whose = "has processes of its own" if queue.dedicated else "is served by the shared pool"
        raise ConfigError(f"queues.{name}.{key}", value, f"means nothing here: this queue {whose}")
    new = replace(queue, **{key: value})
    queues = [new if each is found else each for each in settings.queues]
    return replace(settings, queues=tuple(queues if found else [*queues, new]))
