"""From ``module:attribute`` to the application it names."""

from __future__ import annotations

import re
import traceback
from pathlib import Path

from fleet.app import Fleet
from fleet.config import load
from fleet.errors import ConfigError
from fleet.worker.load import load as import_app


def load_app(named: str | None, file: Path | None = None) -> Fleet:
    """Import the application that is named, or else the one that fleet.toml names."""
    settings = load(file=file)
    named = named or settings.app
    if named is None:
        raise ConfigError("app", None, 'name it as module:attribute, such as "shop.jobs:app"')
    if not re.fullmatch(r"[\w.]+:[\w.]+", named):
        raise ConfigError("app", named, 'must be module:attribute, such as "shop.jobs:app"')
    try:
        return import_app(named, (str(settings.root),))
    except ConfigError:
        raise
    except ModuleNotFoundError as error:
        module = named.partition(":")[0]
        if error.name is not None and (module == error.name or module.startswith(f"{error.name}.")):
            hint = f"there is no module {error.name} in {settings.root}"
            raise ConfigError("app", named, hint) from error
        raise ConfigError("app", named, _told(error)) from error
    except Exception as error:
        raise ConfigError("app", named, _told(error)) from error


def _told(error: Exception) -> str:
    """Say where an import failed: the last place in the user's own code."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"cannot be imported: {type(error).__name__}: {error} ({where.filename}:{where.lineno})"
