"""Load the application a worker runs, and say what it can do."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from fleet.app import Fleet
from fleet.errors import ConfigError
from fleet.policy import Settings


def load(target: str, path: tuple[str, ...] = ()) -> Fleet:
    """Import ``module:attribute`` with ``path`` in front of ``sys.path``; it must be a Fleet."""
    for folder in reversed(path):
        if folder not in sys.path:
            sys.path.insert(0, folder)
    module_name, _, attribute = target.partition(":")
    if not module_name or not attribute:
        raise ConfigError("app", target, "module:attribute, like shop.jobs:app")
    found: Any = importlib.import_module(module_name)
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise ConfigError("app", target, f"{module_name} has no {attribute}") from None
    if not isinstance(found, Fleet):
        raise ConfigError("app", target, f"is {type(found).__name__}, not a Fleet")
    return found


def abilities(app: Fleet, below: Callable[[str], tuple[Settings, ...]]) -> dict[str, Any]:
    """Return this application's jobs and schedules, for the supervisor, which never imports it.

    ``below`` says what counts less than a step's and a job's own settings in a queue.
    """
    steps: dict[str, dict[str, Any]] = {}
    definitions = []
    for job in app.jobs.values():
        layers = below(job.queue)
        definitions.append(job.definition(*layers) | {"fingerprint": job.fingerprint(*layers)})
        for step in job.steps:
            policy = job.policy(step, *layers)
            steps[f"{job.name}/{step.name}"] = {
                "queue": job.queue,
                "job": job.name,
                "limits": job.limits.as_dict(),
                "kind": "async" if step.is_async else "def",
                "timeout": policy.timeout,
                "keep": policy.keep,
                "retry": asdict(policy.retry),
                "on_success": policy.on_success,
                "on_failure": policy.on_failure,
            }
        steps[f"{job.name}/"] = steps[f"{job.name}/{job.first.name}"]
    return {
        "steps": steps,
        "definitions": definitions,
        "schedules": [schedule.definition() for schedule in app.schedules.values()],
        "database": app.database_url,
    }
