"""What was said: the file's tables and the flags, laid over each other. ``variables``: the rest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from fleet.errors import ConfigError, InvalidName
from fleet.names import check_name
from fleet.settings.kinds import Kind, refused
from fleet.settings.schema import SCHEMA, bare, unknown

QUEUES: Final = "queues"


class Spot(NamedTuple):
    """The place of one setting."""

    table: str
    queue: str | None
    key: str  # as the schema has it: "lease", "retry.initial"

    @property
    def kind(self) -> Kind:
        """How a value in this place is read."""
        return SCHEMA[self.table][self.key]

    def __str__(self) -> str:
        return ".".join(part for part in self if part)


class Said:
    """What all sources say together, not yet read, and which variable or flag said what."""

    def __init__(self) -> None:
        self.values: dict[Spot, object] = {}
        self.queues: dict[str, None] = {}  # in the order of the file; one that is new comes last
        self.sources: dict[str, str] = {}

    def put(self, spot: Spot, value: object, source: str | None = None) -> None:
        """Lay one value over what was said before."""
        self.values[spot] = value
        if spot.queue is not None:
            self.queues.setdefault(spot.queue)
        if source is not None:
            self.sources[str(spot)] = source

    def put_text(self, spot: Spot, value: object, source: str) -> None:
        """Lay one value over the others; a text is read as of a variable, which has no types."""
        if isinstance(value, str):
            if not value.strip():
                hint = f"{source} is set but empty: give it a value, or take it away"
                raise ConfigError(str(spot), "", hint)
            value = spot.kind.text(value.strip())
        self.put(spot, value, source)

    def read(self, table: str, queue: str | None = None) -> dict[str, Any]:
        """Return the settings of one table or queue, each as its kind reads it."""
        return {
            spot.key: spot.kind.read(str(spot), value)
            for spot, value in self.values.items()
            if (spot.table, spot.queue) == (table, queue)
        }


def lay_file(said: Said, tables: Mapping[str, object]) -> None:
    """Take what the file says."""
    for name, table in tables.items():
        if name not in SCHEMA:
            raise unknown("", name, table, SCHEMA)
        if not isinstance(table, Mapping):
            inner = f"{QUEUES}.<name>" if name == QUEUES else name
            raise refused(name, table, f"must be a table: [{inner}]")
        if name == QUEUES:
            _lay_queues(said, table)
        else:
            _lay_table(said, name, None, table)


def _lay_queues(said: Said, tables: Mapping[str, object]) -> None:
    for name, table in tables.items():
        key = f"{QUEUES}.{bare(name)}"
        if not isinstance(table, Mapping):
            raise refused(key, table, f"must be a table: [{QUEUES}.<name>]")
        said.queues.setdefault(queue_name(key, name))
        _lay_table(said, QUEUES, name, table)


def _lay_table(said: Said, table: str, queue: str | None, values: Mapping[str, object]) -> None:
    for key, value in values.items():
        if key == "retry" and "retry.initial" in SCHEMA[table]:
            _lay_retry(said, Spot(table, queue, key), value)
        elif key in SCHEMA[table] and "." not in key:
            said.put(Spot(table, queue, key), value)
        else:
            names = dict.fromkeys(name.partition(".")[0] for name in SCHEMA[table])
            raise unknown(Spot(table, queue, ""), key, value, names)


def _lay_retry(said: Said, retry: Spot, values: object) -> None:
    if not isinstance(values, Mapping):
        raise refused(str(retry), values, "must be a table, such as { max_attempts = 3 }")
    for key, value in values.items():
        spot = retry._replace(key=f"retry.{key}")
        if spot.key not in SCHEMA[retry.table]:
            names = [name[6:] for name in SCHEMA[retry.table] if name.startswith("retry.")]
            raise unknown(retry, key, value, names)
        said.put(spot, value)


def lay_flags(said: Said, flags: Mapping[str, object]) -> None:
    """Take what the command line says: dotted key -> value, where None says nothing."""
    for flag, value in flags.items():
        if value is None:
            continue
        table, _, rest = flag.partition(".")
        if table not in SCHEMA:
            raise unknown("", table, value, SCHEMA)
        queue, key = (None, rest) if table != QUEUES else split(rest, ".", SCHEMA[table])
        if key not in SCHEMA[table]:
            raise unknown(Spot(table, queue, ""), key, value, SCHEMA[table])
        if queue == "":
            raise refused(flag, value, f"which queue? {QUEUES}.<name>.{key}")
        if queue is not None:
            queue_name(f"{QUEUES}.{bare(queue)}", queue)
        said.put_text(Spot(table, queue, key), value, "a flag")


def split(text: str, mark: str, keys: Iterable[str]) -> tuple[str, str]:
    """Cut a queue's name from the key behind it; the longest key that fits, else the last word."""
    for key in sorted(keys, key=len, reverse=True):
        if text.endswith(mark + key) and len(text) > len(mark + key):
            return text[: -len(mark + key)], key
    name, _, word = text.rpartition(mark)
    return name, word


def queue_name(key: str, name: str) -> str:
    """Return the name if a queue may be called so."""
    try:
        return check_name("queue", name if len(name) < 100 else f"{name[:40]}…")
    except InvalidName as error:
        raise ConfigError(key, "a queue", str(error)) from None
