"""From ``module:attribute`` to the application it names."""

from __future__ import annotations

import importlib
import re
import sys
import traceback
from pathlib import Path

from fleet.app import Fleet
from fleet.config import load
from fleet.errors import ConfigError


def load_app(named: str | None, file: Path | None = None) -> Fleet:
    """Import the application that is named, or else the one that fleet.toml names."""
    settings = load(file=file)
    named = named or settings.app
    if named is None:
        raise ConfigError("app", None, 'name it as module:attribute, such as "shop.jobs:app"')
    if not re.fullmatch(r"[\w.]+:[\w.]+", named):
        raise ConfigError("app", named, 'must be module:attribute, such as "shop.jobs:app"')
    root = str(settings.root)
    if root not in sys.path:
        sys.path.insert(0, root)
    module, _, path = named.partition(":")
    found = _import(named, module, root)
    for name in path.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            raise ConfigError("app", named, f"{module} has no {path}") from None
    if not isinstance(found, Fleet):
        raise ConfigError("app", named, f"is a {type(found).__name__}, not a Fleet")
    return found


def _import(named: str, module: str, root: str) -> object:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and (module == error.name or module.startswith(f"{error.name}.")):
            raise ConfigError("app", named, f"there is no module {error.name} in {root}") from error
        raise ConfigError("app", named, _told(error)) from error
    except Exception as error:
        raise ConfigError("app", named, _told(error)) from error


def _told(error: Exception) -> str:
    """Say where an import failed: the last place in the user's own code."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"cannot be imported: {type(error).__name__}: {error} ({where.filename}:{where.lineno})"
