"""Settings from ``fleet.toml`` and the environment; above all, where the database is.

    explicit argument or flag
      ▷ FLEET_DATABASE_URL, FLEET_EMBEDDED   what was said to Fleet
      ▷ DATABASE_URL                         what was said to every program
      ▷ fleet.toml                           the nearest, searched upwards
      ▷ NoDatabase

A source that says something wrong is an error, never a reason to try the next one: a secret that
is missing in production must not become an empty database. Passwords appear in nothing that is
printed: what is shown of a value went through ``mask`` first.
"""

from __future__ import annotations

import difflib
import math
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from fleet.errors import ConfigError, NoDatabase
from fleet.limits import Rate
from fleet.model import Seconds

__all__ = [
    "DatabaseUrl",
    "Embedded",
    "Rate",
    "Settings",
    "find_database",
    "load",
    "mask",
    "parse_duration",
    "parse_rate",
    "parse_size",
]

FILE: Final = "fleet.toml"
_TABLES: Final = ("supervisor", "fetch", "queues", "telemetry", "defaults")
_KEYS: Final = ("app", "database_url", "embedded", *_TABLES)
_EXAMPLE: Final = "postgresql://user:password@host:5432/name"
_LIBPQ_ONLY: Final = re.compile(
    "channel_binding|connect_timeout|gssencmode|keepalives(_count|_idle|_interval)?"
    "|load_balance_hosts|sslcompression|sslsni|tcp_user_timeout"
)


@dataclass(frozen=True, slots=True)
class DatabaseUrl:
    """A database at an address, as asyncpg takes it; prints without its password."""

    url: str = field(repr=False)
    source: str  # who said so: "FLEET_DATABASE_URL", the path of a file, …

    def __str__(self) -> str:
        return mask(self.url)


@dataclass(frozen=True, slots=True)
class Embedded:
    """A server of the project's own, under ``<root>/.fleet``."""

    root: Path
    source: str

    def __str__(self) -> str:
        return f"embedded in {self.root / '.fleet'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the file and the environment say."""

    root: Path  # the folder of fleet.toml, else where the search began
    file: Path | None = None
    app: str | None = None
    database: DatabaseUrl | Embedded | None = None
    tables: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def load(
    start: Path | None = None, env: Mapping[str, str] | None = None, *, file: Path | None = None
) -> Settings:
    """Read the settings of the project that ``start`` (the current folder) lies in.

    ``file`` names the file instead of searching for one.
    """
    env = os.environ if env is None else env
    start = (start or Path.cwd()).resolve()
    path = file.resolve() if file else _search(start)
    root = path.parent if path else start
    written = _read(path) if path else {}
    return Settings(
        root=root,
        file=path,
        app=_app(env, written),
        database=_from_environment(env, root) or _from_file(env, written, root, str(path)),
        tables={name: written[name] for name in _TABLES if name in written},
    )


def find_database(
    explicit: str | None = None,
    *,
    start: Path | None = None,
    env: Mapping[str, str] | None = None,
    file: Path | None = None,
) -> DatabaseUrl | Embedded:
    """Return where the database is, the same for ``Fleet()`` and every command, or NoDatabase."""
    if explicit is not None:
        return DatabaseUrl(_normal("database_url", explicit), "argument")
    found = load(start, env, file=file).database
    if found is None:
        raise NoDatabase
    return found


def _search(start: Path) -> Path | None:
    # os.path rather than Path.is_file, which raises where a folder above may not be looked into.
    for folder in (start, *start.parents):
        if os.path.isfile(folder / FILE):  # noqa: PTH113
            return folder / FILE
    return None


def _read(path: Path) -> dict[str, Any]:
    try:
        written = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(FILE, str(path), "there is no such file") from None
    except OSError as error:
        raise ConfigError(FILE, str(path), f"cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(FILE, str(path), f"is not UTF-8 at byte {error.start}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(FILE, str(path), f"is not valid TOML: {error}") from error
    for key, value in written.items():
        _check(key, value)
    return written


def _check(key: str, value: object) -> None:
    if key not in _KEYS:
        near = difflib.get_close_matches(key, _KEYS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"the keys here are {', '.join(_KEYS)}"
        raise ConfigError(key, _shown(key, value), f"there is no such key; {hint}")
    if key in _TABLES and not isinstance(value, dict):
        name = "queues.<name>" if key == "queues" else key
        raise ConfigError(key, _shown(key, value), f"must be a table: [{name}]")
    if key == "embedded" and not isinstance(value, bool):
        raise ConfigError(key, _shown(key, value), "must be true or false")


def _app(env: Mapping[str, str], written: Mapping[str, Any]) -> str | None:
    key = "FLEET_APP" if "FLEET_APP" in env else "app"
    value = env.get("FLEET_APP", written.get("app"))
    if value is None:
        return None
    if not isinstance(value, str) or not re.fullmatch(r"[\w.]+:[\w.]+", value):
        raise ConfigError(
            key, _shown(key, value), 'must be module:attribute, such as "shop.jobs:app"'
        )
    return value


def _from_environment(env: Mapping[str, str], root: Path) -> DatabaseUrl | Embedded | None:
    if (url := env.get("FLEET_DATABASE_URL")) is not None:
        return DatabaseUrl(_normal("FLEET_DATABASE_URL", url), "FLEET_DATABASE_URL")
    if _embedded_switch(env):
        return Embedded(root, "FLEET_EMBEDDED")
    if (url := env.get("DATABASE_URL")) is not None:
        return DatabaseUrl(_normal("DATABASE_URL", url), "DATABASE_URL")
    return None


def _from_file(
    env: Mapping[str, str], written: Mapping[str, Any], root: Path, source: str
) -> DatabaseUrl | Embedded | None:
    url, embedded = written.get("database_url"), written.get("embedded", False)
    if embedded and url is not None:
        raise ConfigError("embedded", True, "database_url is given too: keep one of them")
    if url is not None:
        return DatabaseUrl(_normal("database_url", url), source)
    if embedded and _embedded_switch(env) is not False:
        return Embedded(root, source)
    return None


def _embedded_switch(env: Mapping[str, str]) -> bool | None:
    value = env.get("FLEET_EMBEDDED", "").strip().lower()
    if value in ("1", "true", "yes", "on"):
        return True
    if value in ("0", "false", "no", "off"):
        return False
    if value:
        raise ConfigError("FLEET_EMBEDDED", env["FLEET_EMBEDDED"], "must be 1 or 0")
    return None


def _normal(key: str, value: object) -> str:
    """Return the address as asyncpg takes it; ConfigError for what is no address."""
    if not isinstance(value, str):
        raise ConfigError(key, _shown(key, value), f'must be a string like "{_EXAMPLE}"')
    text = value.strip()
    if not text:
        raise ConfigError(key, value, "is set but empty: give an address, or take it away")
    match = re.fullmatch(r"(?i:postgres(?:ql)?(?:\+\w+)?)://(.*)", text, re.DOTALL)
    if match is None:
        other = " For Fleet alone, set FLEET_DATABASE_URL." if key == "DATABASE_URL" else ""
        raise ConfigError(key, mask(text), f"is not of PostgreSQL: write {_EXAMPLE}.{other}")
    hosts = re.split(r"[/?#]", match[1], maxsplit=1)[0].rpartition("@")[2]
    if not all(_is_host(host) for host in hosts.split(",")):
        raise ConfigError(
            key,
            mask(text),
            "a port is a number from 1 to 65535; in a password, / ? # @ and : are percent-encoded",
        )
    return "postgresql://" + _without_libpq_options(match[1])


def _without_libpq_options(rest: str) -> str:
    # asyncpg hands what it does not know to the server as a setting, which refuses the connection.
    # Hosted databases give addresses with these in them.
    base, mark, query = rest.partition("?")
    kept = [p for p in query.split("&") if not _LIBPQ_ONLY.fullmatch(p.partition("=")[0])]
    return base + mark * any(kept) + "&".join(kept)


def _is_host(text: str) -> bool:
    match = re.fullmatch(r"(?:\[[^\]]*\]|[^:]*)(?::([0-9]{0,5}))?", text)
    return match is not None and (not match[1] or 1 <= int(match[1]) <= 65_535)


def mask(url: str) -> str:
    """Return an address as it may be printed: as a URL, or as libpq's ``host=… password=…``.

    It would rather hide too much: a password that was not percent-encoded may hold any character.
    """
    masked = re.sub(r"(?s)(://[^:]*:).*@", r"\1***@", url)
    if re.match(r"\s*[\w.+-]+://", masked):
        return re.sub(r"(?s)([?&])([^=&]*)=([^&]*)", _mask_parameter, masked)
    return re.sub(
        r"(?is)(password\s*=\s*)('(?:[^'\\]|\\.)*(?:'|$)|(?:\\.|[^\s\\])+)", r"\1***", masked
    )


def _mask_parameter(match: re.Match[str]) -> str:
    lead, name, _ = match.groups()
    return f"{lead}{name}=***" if "password" in unquote(name).lower() else match[0]


def _shown(key: str, value: object) -> object:
    """Return what an error may show of a value that was given for a key."""
    if re.search(r"(?i)pass|secret|token|key", key):
        return "***"
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, dict | list):
        return "a table" if isinstance(value, dict) else "a list"
    return value


_UNITS: Final[Mapping[str, Seconds]] = {"d": 86_400, "h": 3_600, "m": 60, "s": 1, "ms": 0.001}
_DURATION: Final = "".join(
    rf"(?:(?P<{unit}>[0-9]+(?:\.[0-9]+)?){unit}(?![a-z]))?" for unit in _UNITS
)
_LONGEST: Final[Seconds] = 3_650 * 86_400.0
_SIZES: Final[Mapping[str, int]] = {
    "B": 1,
    **{f"{letter}B": 1_000**n for n, letter in enumerate("KMGT", 1)},
    **{f"{letter}i": 1_024**n for n, letter in enumerate("KMGT", 1)},
    **{f"{letter}iB": 1_024**n for n, letter in enumerate("KMGT", 1)},
}


def parse_duration(key: str, value: object) -> Seconds:
    """Read ``"15s"``, ``"250ms"``, ``"1h30m"``; a bare number is refused, for it has no unit."""
    match = _match(_DURATION, value)
    if match is not None:
        seconds = math.fsum(
            float(amount) * _UNITS[unit] for unit, amount in match.groupdict().items() if amount
        )
        if seconds <= _LONGEST:
            return seconds
    hint = 'must be a duration like "15s", "250ms", "2h" or "1h30m", of ten years at the most'
    raise ConfigError(key, _shown(key, value), hint)


def parse_size(key: str, value: object) -> int:
    """Read ``"512MiB"`` or ``"2GB"`` as bytes."""
    match = _match(r"([0-9]+(?:\.[0-9]+)?)([A-Za-z]+)", value)
    if match is not None and match[2] in _SIZES:
        size = int(float(match[1]) * _SIZES[match[2]])
        if size >= 1:
            return size
    raise ConfigError(key, _shown(key, value), 'must be a size like "512MiB" or "2GB"')


def parse_rate(key: str, value: object) -> Rate:
    """Read ``"100/s"``, ``"30/m"``, ``"5/10s"`` or ``"5000/h burst 50"``."""
    match = _match(r"([0-9]+)/([0-9.]*[a-z][0-9.a-z]*)(?: +burst +([0-9]+))?", value)
    if match is not None and int(match[1]) > 0 and (match[3] is None or int(match[3]) > 0):
        period = match[2] if match[2][0].isdigit() else f"1{match[2]}"
        try:
            seconds = parse_duration(key, period)
        except ConfigError:
            seconds = 0.0
        if seconds > 0:
            return Rate(int(match[1]), seconds, int(match[3]) if match[3] else None)
    hint = 'must be a rate like "100/s", "30/m" or "5000/h burst 50"'
    raise ConfigError(key, _shown(key, value), hint)


def _match(pattern: str, value: object) -> re.Match[str] | None:
    # Of any length, int() and float() would take a number that is infinite, or refuse it their way.
    if not isinstance(value, str) or not 0 < len(value) <= 40:
        return None
    return re.fullmatch(pattern, value)
