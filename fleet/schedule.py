"""When a schedule fires: a cron expression in a time zone. Pure; firing is elsewhere.

Five fields are minute, hour, day of month, month, day of week. With six, the *first* is seconds:
so do Quartz and Spring, and so every five-field expression keeps its meaning with a 0 in front.

Over a change of the clocks, five-field expressions at a fixed time follow Debian's cron: what
falls into the hour that is skipped fires right after it, and what falls into the hour that
comes twice fires once. Expressions with a wildcard, and those with seconds, follow the clock.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, Final, Literal, NamedTuple, TypeAlias, get_args
from zoneinfo import ZoneInfo

import orjson
from cronsim import CronSim, CronSimError

from fleet.errors import DefinitionError
from fleet.model import Json

Missed: TypeAlias = Literal["latest", "skip", "all"]
# Which schedules stop firing once no live application declares them: those that one has declared,
# those made by hand too, or none.
StaleSchedules: TypeAlias = Literal["stale", "all", "manual"]

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
_LONGEST: Final = 200

# A tick that is seen later than this was missed, and its schedule says what becomes of it.
LATE: Final = timedelta(minutes=1)
MOST_AT_ONCE: Final = 500  # ticks in one statement; the rest follows in the next
_SECOND: Final = timedelta(seconds=1)


class Due(NamedTuple):
    """Ticks to fire now, the earliest first, and the one that is next; it may be due as well."""

    ticks: list[datetime]
    following: datetime


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
    key: str | None = None
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
        if len(self.cron) > _LONGEST:
            raise self._wrong(f"cron is longer than {_LONGEST} characters")
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

    # -- the calendar ----------------------------------------------------------------------------

    def next_after(self, moment: datetime) -> datetime:
        """Return the first tick later than ``moment``, aware and in the schedule's zone."""
        if moment.utcoffset() is None:
            raise ValueError("moment must be aware")
        start = moment.astimezone(UTC).replace(microsecond=0)
        tick = self._after_by_day(start) if self._by_day else self._after_by_clock(start)
        return tick.astimezone(self.zone)

    @property
    def _by_day(self) -> bool:
        """Whether it names fixed times of the day, for which Debian's rules are meant."""
        fields = self.expression.split()
        return len(fields) == 5 and not fields[0].startswith("*") and not fields[1].startswith("*")

    def _after_by_day(self, start: datetime) -> datetime:
        # In the second of two equal hours cronsim may answer with the first, which is past. Seen
        # in UTC only: within one zone Python compares the faces of the clocks.
        for tick in CronSim(self.expression, start.astimezone(self.zone)):
            if (at := tick.astimezone(UTC)) > start:
                return at
        raise CronSimError("it never comes")

    def _after_by_clock(self, start: datetime) -> datetime:
        # Between two changes of the clocks the zone is a constant away from UTC, and there cronsim
        # goes by a clock without a zone. Across a change of half an hour, as on Lord Howe Island,
        # it would lose the ticks of the hour in which that happens.
        offset = self._offset(start)
        while True:
            face = (start + offset).replace(tzinfo=None)
            for tick in CronSim(self.expression, face):
                found = tick.replace(tzinfo=UTC) - offset
                break
            else:
                raise CronSimError("it never comes")
            change = self._next_change(start, found, offset)
            if change is None:
                return found
            # A tick at the very moment of the change counts too.
            start, offset = change - _SECOND, self._offset(change)

    def _offset(self, moment: datetime) -> timedelta:
        return moment.astimezone(self.zone).utcoffset() or timedelta(0)

    def _next_change(self, start: datetime, end: datetime, offset: timedelta) -> datetime | None:
        """Return the first moment after ``start``, up to ``end``, with another offset."""
        if self.zone is UTC:
            return None
        low = start
        while low < end:
            high = min(low + timedelta(hours=6), end)
            if self._offset(high) != offset:
                while high - low > _SECOND:
                    middle = low + ((high - low) / 2 // _SECOND) * _SECOND
                    if self._offset(middle) != offset:
                        high = middle
                    else:
                        low = middle
                return high
            low = high
        return None

    def due(self, now: datetime, *, since: datetime, next_at: datetime | None) -> Due:
        """Return which ticks to fire at ``now``, and the first one that is not among them.

        ``next_at`` is the first that has not been dealt with; if nobody has computed it, it is the
        first one after ``since``.
        """
        first = self.next_after(since) if next_at is None else next_at
        if first > now:
            return Due([], first)
        fresh = now - LATE
        if self.missed == "all" or first > fresh:
            return self._in_turn(first, now)
        on_time = self._in_turn(self.next_after(fresh), now)
        # One that is on time stands for those that were missed.
        if self.missed == "skip" or on_time.ticks:
            return on_time
        return Due([self._latest(first, now)], on_time.following)

    def _in_turn(self, first: datetime, now: datetime) -> Due:
        ticks: list[datetime] = []
        while first <= now and len(ticks) < MOST_AT_ONCE:
            ticks.append(first)
            first = self.next_after(first)
        return Due(ticks, first)

    def _latest(self, first: datetime, now: datetime) -> datetime:
        """Return the last tick up to ``now``, without walking through a year of seconds."""
        reach = LATE
        while (start := now - reach) > first and self.next_after(start) > now:
            reach *= 4
        latest = first if start <= first else self.next_after(start)
        while (later := self.next_after(latest)) <= now:
            latest = later
        return latest

    # -- what is written down --------------------------------------------------------------------

    def definition(self) -> dict[str, Any]:
        """Return it as plain JSON, with its fingerprint: the same in every process that has it."""
        said = {
            "name": self.name,
            "cron": self.plain_cron,
            "timezone": self.timezone,
            "job": self.job,
            "key": self.key,
            "missed": self.missed,
        }
        text = orjson.dumps([said, self.input], option=orjson.OPT_SORT_KEYS)
        print_ = hashlib.sha256(text).hexdigest()[:16]
        return {**said, "input": self.input, "fingerprint": print_}

    @property
    def plain_cron(self) -> str:
        """The expression as it was written, without the zone."""
        found = _SUFFIX.fullmatch(self.cron)
        return (found["cron"] if found else self.cron).strip()
