"""How the value of a key is read: one ``Kind`` for each sort of value.

TOML has types, and a value of the wrong one is refused, never guessed at: ``"4"`` is no number
and ``true`` is not 1. A variable is text, so its ``Kind`` first makes of it what the file would
have held.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping
from datetime import date, time
from typing import Any, Final, NamedTuple

from fleet.config import (
    DatabaseUrl,
    Rate,
    find_database,
    mask,
    parse_duration,
    parse_rate,
    parse_size,
)
from fleet.errors import ConfigError
from fleet.model import Seconds
from fleet.settings.model import Address

# A last label of digits would be an address that is not whole, and 127.1 is read as 127.0.0.1.
_HOST: Final = re.compile(r"(?!(?:.*\.)?[0-9]+$)[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")


class Kind(NamedTuple):
    """How a value is read."""

    read: Callable[[str, object], Any]  # (key, what the file holds) -> the setting, or ConfigError
    text: Callable[[str], object] = str  # what a variable says -> what the file would hold
    secret: bool = False


def refused(key: str, value: object, hint: str) -> ConfigError:
    """Return the error for a value that cannot work."""
    return ConfigError(key, shown(value), hint)


def shown(value: object) -> object:
    """Return what an error may show of a value: no password, and nothing without end."""
    match value:
        case str() if len(value) > 200:
            return f"a text of {len(value)} characters"
        case str():
            return mask(value)
        case bool() | float() | date() | time() | None:
            return value
        case int():
            # Python refuses to print an int of over 4,300 digits, which TOML can hold in hex.
            return value if value.bit_length() < 64 else f"a number of {value.bit_length()} bits"
        case Mapping():
            return "a table"
        case list():
            return "a list"
    return f"a {type(value).__name__}"


def whole(low: int, high: int, why: str = "") -> Kind:
    """Read a whole number; ``why`` is said to who gives another."""

    def read(key: str, value: object) -> int:
        # True is an int to Python, and 1 is not what anybody meant by it.
        if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high:
            return value
        raise refused(key, value, f"must be a whole number from {low:,} to {high:,}{why}")

    return Kind(read, _number)


def number(low: float, high: float) -> Kind:
    """Read a number, whole or not."""

    def read(key: str, value: object) -> float:
        if isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high:
            return float(value)
        raise refused(key, value, f"must be a number from {low:g} to {high:,g}")

    return Kind(read, _number)


def processes() -> Kind:
    """Read the size of the shared pool."""

    def read(key: str, value: object) -> object:
        if value == "auto":
            return value
        return pool_size.read(key, value)

    pool_size = whole(0, 1_024, ', or "auto": the CPUs that this container may use')
    return Kind(read, _number)


def duration(low: str, high: str) -> Kind:
    """Read ``"15s"`` as seconds."""
    least, most = parse_duration("low", low), parse_duration("high", high)

    def read(key: str, value: object) -> Seconds:
        seconds: Seconds = _parsed(parse_duration, key, value)
        if least <= seconds <= most:
            return seconds
        raise refused(key, value, f"must lie between {low} and {high}")

    return Kind(read)


def size(low: str, why: str) -> Kind:
    """Read ``"512MiB"`` as bytes."""
    least = parse_size("low", low)

    def read(key: str, value: object) -> int:
        number_of_bytes: int = _parsed(parse_size, key, value)
        if number_of_bytes >= least:
            return number_of_bytes
        raise refused(key, value, f"must be {low} or more: {why}")

    return Kind(read)


def rate() -> Kind:
    """Read ``"100/s"``."""

    def read(key: str, value: object) -> Rate:
        found: Rate = _parsed(parse_rate, key, value)
        if found.count <= 1_000_000_000:
            return found
        raise refused(key, value, "is no limit at all: take it away")

    return Kind(read)


def choice(*words: str, why: str = "") -> Kind:
    """Read one of a few words."""
    listed = " or ".join(f'"{word}"' for word in words)

    def read(key: str, value: object) -> str:
        if isinstance(value, str) and value in words:
            return value
        raise refused(key, value, f"must be {listed}{why}")

    return Kind(read)


def flag() -> Kind:
    """Read true or false."""

    def read(key: str, value: object) -> bool:
        if isinstance(value, bool):
            return value
        raise refused(key, value, "must be true or false")

    return Kind(read, _truth)


def address() -> Kind:
    """Read ``"127.0.0.1:8787"``; ``"off"`` and ``false`` are None."""

    def read(key: str, value: object) -> Address | None:
        if value is False or value == "off":
            return None
        if isinstance(value, str) and (match := re.fullmatch(r"(.+):([0-9]{1,5})", value)):
            host, port = _host(match[1]), int(match[2])
            if host is not None and port <= 65_535:
                return Address(host, port)
        raise refused(
            key,
            value,
            'must be host:port, such as "127.0.0.1:8787", "[::1]:8787" or, for every address '
            'of this host, "0.0.0.0:8787"; "off" switches it off',
        )

    return Kind(read)


def token() -> Kind:
    """Read a secret that will stand in an HTTP header; no error shows it."""

    def read(key: str, value: object) -> str:
        if isinstance(value, str) and re.fullmatch(r"[!-~]{16,500}", value):
            return value
        hint = "must be a text of 16 to 500 visible ASCII characters without spaces"
        raise ConfigError(key, "***", hint)

    return Kind(read, secret=True)


def database() -> Kind:
    """Read the address of a database."""

    def read(key: str, value: object) -> DatabaseUrl:
        if not isinstance(value, str):
            raise refused(key, value, 'must be a text like "postgresql://user:password@host/name"')
        found = _parsed(lambda _, url: find_database(url), key, value)
        return DatabaseUrl(found.url, key)

    return Kind(read, secret=True)


def _host(text: str) -> str | None:
    try:
        if text.startswith("[") and text.endswith("]"):
            return str(ipaddress.IPv6Address(text[1:-1]))
        return str(ipaddress.IPv4Address(text))
    except ValueError:
        return text.lower() if _HOST.fullmatch(text) else None


def _parsed(parse: Callable[[str, Any], Any], key: str, value: object) -> Any:
    # What is no text is refused under None, for it may be a number that cannot be printed.
    try:
        return parse(key, value if isinstance(value, str) else None)
    except ConfigError as error:
        raise refused(key, value, error.hint) from None


def _number(text: str) -> object:
    if re.fullmatch(r"[+-]?[0-9]{1,18}", text):
        return int(text)
    if re.fullmatch(r"[+-]?[0-9]{1,18}\.[0-9]{1,18}", text):
        return float(text)
    return text


def _truth(text: str) -> object:
    words = {"1": True, "true": True, "yes": True, "on": True}
    words |= {"0": False, "false": False, "no": False, "off": False}
    return words.get(text.lower(), text)
