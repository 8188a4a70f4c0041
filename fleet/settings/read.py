"""From what was said to settings that can be run by."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

from fleet import policy
from fleet.errors import ConfigError, InvalidSetting
from fleet.retry import Retry
from fleet.settings.model import (
    FetchSettings,
    QueueSettings,
    RunSettings,
    SupervisorSettings,
    TelemetrySettings,
)
from fleet.settings.sources import QUEUES, Said, lay_file, lay_flags
from fleet.settings.variables import lay_variables

_OF_QUEUE: Final = frozenset(QueueSettings.__slots__) - {"name", "policy"}


def run_settings(
    tables: Mapping[str, object],
    env: Mapping[str, str] | None = None,
    overrides: Mapping[str, object] | None = None,
) -> RunSettings:
    """Return what to run by: the file's ``tables``, under ``env``, under the flags' ``overrides``.

    >>> run_settings({"fetch": {"batch": 100}}, {"FLEET_FETCH_BATCH": "200"}).fetch.batch
    200
    """
    said = Said()
    lay_file(said, tables)
    lay_variables(said, os.environ if env is None else env)
    lay_flags(said, overrides or {})
    try:
        return _settings(said)
    except ConfigError as error:
        if (source := said.sources.get(error.key)) is None:
            raise
        raise ConfigError(error.key, error.value, f"{error.hint} (said by {source})") from None


def _settings(said: Said) -> RunSettings:
    return RunSettings(
        supervisor=SupervisorSettings(**said.read("supervisor")),
        fetch=FetchSettings(**said.read("fetch")),
        queues=tuple(_queue(said, name) for name in said.queues),
        telemetry=TelemetrySettings(**said.read("telemetry")),
        defaults=_policy("defaults", said.read("defaults")),
    )


def _queue(said: Said, name: str) -> QueueSettings:
    values = said.read(QUEUES, name)
    if "weight" in values and "processes" in values:
        # Here, because a QueueSettings cannot tell a weight of 1 from none.
        raise ConfigError(
            f"{QUEUES}.{name}.weight",
            values["weight"],
            "is a share of the shared pool, and this queue has processes of its own: "
            "take one of the two away",
        )
    own = {key: values.pop(key) for key in tuple(values) if key in _OF_QUEUE}
    return QueueSettings(name=name, policy=_policy(f"{QUEUES}.{name}", values), **own)


def _policy(prefix: str, values: dict[str, Any]) -> policy.Settings:
    retry = {key[6:]: values.pop(key) for key in tuple(values) if key.startswith("retry.")}
    try:
        return policy.Settings(retry=Retry(**retry) if retry else None, **values)
    except InvalidSetting as error:
        raise ConfigError(f"{prefix}.{error.key}", error.value, error.hint) from None
