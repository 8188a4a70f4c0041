"""When a schedule fires: a cron expression in a time zone. Pure; firing is elsewhere.

Five fields are minute, hour, day of month, month, day of week. With six, the *first* is seconds:
so do Quartz and Spring, and so every five-field expression keeps its meaning with a 0 in front.

Over a change of the clocks, five-field expressions at a fixed time follow Debian's cron: what
falls into the hour that is skipped fires right after it, and what falls into the hour that
comes twice fires once. Expressions with a wildcard, and those with seconds, follow the clock.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from typing import Final, Literal, TypeAlias, get_args
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from fleet.errors import DefinitionError
from fleet.model import Json

Missed: TypeAlias = Literal["latest", "skip", "all"]

_ALIASES: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_SUFFIX: Final = re.compile(r"(?P<cron>[^\[\]]*)\[(?P<zone>[^\[\]]+)\]\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A cron expression with a time zone that enqueues a job.

    The zone is ``timezone=`` or a suffix of the expression; UTC if neither says one.

    >>> weekly = Schedule(name="digest", cron="@weekly[America/Los_Angeles]", job="digest")
    >>> weekly.next_after(datetime(2030, 1, 1, tzinfo=UTC)).isoformat()
    '2030-01-06T00:00:00-08:00'
    """

    name: str
    cron: str
    job: str
    input: Json = "null"
    timezone: str | None = None
    missed: Missed = "latest"
    place: str = ""
    expression: str = field(init=False)  # five or six fields, no alias, no suffix
    zone: tzinfo = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.cron, str):
            raise self._wrong(f"cron {self.cron!r} is not a str")
        if self.missed not in get_args(Missed):
            raise self._wrong(f"missed={self.missed!r}: one of {', '.join(get_args(Missed))}")
        cron, zone = self.cron, self.timezone
        if found := _SUFFIX.fullmatch(cron):
            if zone is not None:
                raise self._wrong(
                    f"cron {cron!r} names a zone and timezone={zone!r} another: leave one out"
                )
            cron, zone = found["cron"], found["zone"]
        zone = "UTC" if zone is None else zone
        set_field = object.__setattr__
        set_field(self, "timezone", zone)
        set_field(self, "zone", self._load_zone(zone))
        set_field(self, "expression", self._expand(cron.strip()))
        self._check_possible()

    def _wrong(self, problem: str) -> DefinitionError:
        where = f" ({self.place})" if self.place else ""
        return DefinitionError(f"schedule {self.name!r}{where}: {problem}")

    def _load_zone(self, name: str) -> tzinfo:
        if name == "UTC":
            return UTC  # cronsim has a shorter way for this very object
        try:
            return ZoneInfo(name)
        # ValueError and the OSErrors are what a path-like or empty name ends in.
        except (KeyError, ValueError, OSError) as error:
            raise self._wrong(
                f"there is no time zone {name!r}: use an IANA name such as 'Europe/Berlin'"
            ) from error

    def _expand(self, cron: str) -> str:
        if not cron.startswith("@"):
            return cron
        if cron.lower() in _ALIASES:
            return _ALIASES[cron.lower()]
        raise self._wrong(f"cron {cron!r} is not known: {', '.join(_ALIASES)} are")

    def _check_possible(self) -> None:
        try:
            self.next_after(datetime(2024, 1, 1, tzinfo=UTC))
        except CronSimError as error:
            raise self._wrong(
                f"cron {self.cron!r} cannot work: {error}. It takes five fields (minute hour "
                f"day month weekday), or six with seconds first, and must match some day"
            ) from error

    def next_after(self, moment: datetime) -> datetime:
        """Return the first tick later than ``moment``, aware and in the schedule's zone."""
        if moment.utcoffset() is None:
            raise ValueError("moment must be aware")
        # In the second of two equal hours cronsim may answer with the first, which is past. Seen
        # in UTC only: within one zone Python compares the faces of the clocks.
        start = moment.astimezone(UTC)
        for tick in CronSim(self.expression, moment.astimezone(self.zone)):
            if tick.astimezone(UTC) > start:
                return tick
        raise CronSimError("it never comes")
