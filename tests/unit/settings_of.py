"""The settings of a text, as a file of it would give them."""

from __future__ import annotations

import tomllib

from fleet.settings import RunSettings, run_settings


def read(text: str, env: dict[str, str] | None = None, **flags: object) -> RunSettings:
    return run_settings(tomllib.loads(text), env or {}, flags)
