"""Schedules: cron, zones and the change of the clocks."""

import ast
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import example, given
from hypothesis import strategies as st

from fleet.errors import DefinitionError
from fleet.schedule import MOST_AT_ONCE, Schedule

BERLIN = ZoneInfo("Europe/Berlin")


def schedule(cron: str, **options) -> Schedule:
    return Schedule(name="s", cron=cron, job="j", **options)


def ticks(cron: str, start: datetime, count: int, **options) -> list[str]:
    result = []
    for _ in range(count):
        start = schedule(cron, **options).next_after(start)
        result.append(start.isoformat())
    return result


NEW_YEAR = datetime(2030, 1, 1, tzinfo=UTC)


def test_five_fields_are_minute_hour_day_month_weekday():
    assert ticks("30 9 * * 1", NEW_YEAR, 2) == [
        "2030-01-07T09:30:00+00:00",
        "2030-01-14T09:30:00+00:00",
    ]


def test_with_six_the_first_is_seconds():
    assert ticks("15,45 30 9 * * *", NEW_YEAR, 3) == [
        "2030-01-01T09:30:15+00:00",
        "2030-01-01T09:30:45+00:00",
        "2030-01-02T09:30:15+00:00",
    ]


@pytest.mark.parametrize(
    ("alias", "first"),
    [
        ("@yearly", "2031-01-01T00:00:00+00:00"),
        ("@annually", "2031-01-01T00:00:00+00:00"),
        ("@monthly", "2030-02-01T00:00:00+00:00"),
        ("@weekly", "2030-01-06T00:00:00+00:00"),
        ("@daily", "2030-01-02T00:00:00+00:00"),
        ("@midnight", "2030-01-02T00:00:00+00:00"),
        ("@Hourly", "2030-01-01T01:00:00+00:00"),
    ],
)
def test_aliases(alias, first):
    assert ticks(alias, NEW_YEAR, 1) == [first]


@pytest.mark.parametrize(
    ("cron", "options"),
    [
        ("@daily", {"timezone": "America/Los_Angeles"}),
        ("@daily[America/Los_Angeles]", {}),
        ("0 0 * * *[America/Los_Angeles]", {}),
        ("0 0 * * * [America/Los_Angeles]", {}),
    ],
)
def test_a_zone_is_an_option_or_a_suffix(cron, options):
    made = schedule(cron, **options)

    assert made.timezone == "America/Los_Angeles"
    assert made.next_after(NEW_YEAR).isoformat() == "2030-01-01T00:00:00-08:00"


def test_without_a_zone_it_is_utc():
    assert schedule("@daily").timezone == "UTC"


def test_a_tick_is_later_than_the_moment_never_equal():
    noon = datetime(2030, 1, 1, 12, tzinfo=UTC)

    assert schedule("0 12 * * *").next_after(noon) == noon + timedelta(days=1)
    assert schedule("0 12 * * *").next_after(noon - timedelta(microseconds=1)) == noon


def test_a_time_that_is_skipped_in_spring_fires_right_after_the_gap():
    start = datetime(2030, 3, 30, 12, tzinfo=BERLIN)

    assert ticks("30 2 * * *", start, 2, timezone="Europe/Berlin") == [
        "2030-03-31T03:00:00+02:00",
        "2030-04-01T02:30:00+02:00",
    ]


def test_a_time_that_comes_twice_in_autumn_fires_once():
    start = datetime(2030, 10, 26, 12, tzinfo=BERLIN)

    assert ticks("30 2 * * *", start, 2, timezone="Europe/Berlin") == [
        "2030-10-27T02:30:00+02:00",
        "2030-10-28T02:30:00+01:00",
    ]


def test_asked_between_the_two_equal_hours_it_never_answers_with_the_past():
    second_0215 = datetime(2030, 10, 27, 2, 15, fold=1, tzinfo=BERLIN)

    after = schedule("30 2 * * *", timezone="Europe/Berlin").next_after(second_0215)

    assert after.isoformat() == "2030-10-28T02:30:00+01:00"


def test_every_hour_means_every_hour_that_passes():
    start = datetime(2030, 10, 26, 23, 30, tzinfo=UTC)

    hours = ticks("0 * * * *", start, 3, timezone="Europe/Berlin")

    assert [datetime.fromisoformat(hour).astimezone(UTC).hour for hour in hours] == [0, 1, 2]


@given(
    cron=st.sampled_from(
        ["30 2 * * *", "*/15 * * * *", "0 */2 * * *", "15 3 * * 0", "20 30 2 * * *", "0 0 29 2 *"]
    ),
    zone=st.sampled_from(["UTC", "Europe/Berlin", "America/Los_Angeles", "Australia/Lord_Howe"]),
    moment=st.datetimes(datetime(2020, 1, 1), datetime(2040, 1, 1), timezones=st.just(UTC)),
)
@example("*/15 * * * *", "Europe/Berlin", datetime(2030, 10, 27, 0, 59, tzinfo=UTC))
@example("*/15 * * * *", "Australia/Lord_Howe", datetime(2030, 4, 6, 14, 50, tzinfo=UTC))
@example("30 2 * * *", "Europe/Berlin", datetime(2030, 10, 27, 1, 15, tzinfo=UTC))
def test_ticks_only_go_forward(cron, zone, moment):
    made = schedule(cron, timezone=zone)

    first = made.next_after(moment)
    second = made.next_after(first)

    assert first.utcoffset() is not None
    # In UTC, because within one zone Python compares the faces of the clocks.
    assert moment < first.astimezone(UTC) < second.astimezone(UTC)


@pytest.mark.parametrize(
    ("cron", "options", "problem"),
    [
        ("* * 31 2 *", {}, "cannot work: Bad day-of-month"),
        ("0 0 30 2 1", {}, None),  # the 30th of February or a Monday: Mondays
        ("61 * * * *", {}, "Bad minute"),
        ("* * * *", {}, "Wrong number of fields"),
        ("* * * * * * *", {}, "Wrong number of fields"),
        ("", {}, "Wrong number of fields"),
        ("@fortnightly", {}, "'@fortnightly' is not known: @yearly"),
        ("@daily", {"timezone": "Europe/Atlantis"}, "no time zone 'Europe/Atlantis'"),
        ("@daily[Atlantis]", {}, "no time zone 'Atlantis'"),
        ("@daily", {"timezone": "../etc/passwd"}, "no time zone"),
        ("@daily", {"timezone": ""}, "no time zone"),
        ("@daily[Europe/Berlin]", {"timezone": "UTC"}, "leave one out"),
        ("@daily", {"missed": "some"}, "latest, skip, all"),
        (7, {}, "cron 7 is not a str"),
    ],
)
def test_what_cannot_work_is_refused_when_it_is_written_down(cron, options, problem):
    if problem is None:
        assert schedule(cron, **options)
        return
    with pytest.raises(DefinitionError) as error:
        schedule(cron, place="jobs.py:7", **options)

    assert str(error.value).startswith("schedule 's' (jobs.py:7): ")
    assert problem in str(error.value)


def test_a_naive_moment_is_a_programming_error():
    with pytest.raises(ValueError, match="aware"):
        schedule("@daily").next_after(datetime(2030, 1, 1))


ZONES = ["Europe/Rome", "America/New_York", "Australia/Lord_Howe"]
CHANGES = {  # of 2030, both ways, in UTC
    "Europe/Rome": [datetime(2030, 3, 31, 1), datetime(2030, 10, 27, 1)],
    "America/New_York": [datetime(2030, 3, 10, 7), datetime(2030, 11, 3, 6)],
    "Australia/Lord_Howe": [datetime(2030, 4, 6, 15), datetime(2030, 10, 5, 15, 30)],
}


def in_a_row(made: Schedule, start: datetime, end: datetime) -> list[datetime]:
    found = []
    while (start := made.next_after(start).astimezone(UTC)) <= end:
        found.append(start)
    return found


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("cron", ["*/15 * * * *", "15 */2 * * *", "45 * * * *", "0 10 * * * *"])
def test_f25_what_goes_by_the_clock_fires_at_every_time_it_shows(zone, which, cron):
    change = CHANGES[zone][which].replace(tzinfo=UTC)
    assert (
        change.astimezone(ZoneInfo(zone)).utcoffset()
        != (change - timedelta(seconds=1)).astimezone(ZoneInfo(zone)).utcoffset()
    ), "the clocks change here"
    start, end = change - timedelta(hours=6), change + timedelta(hours=6)
    fields = cron if len(cron.split()) == 6 else f"0 {cron}"
    minutes, hours = (CronSim(fields, NEW_YEAR).minutes, CronSim(fields, NEW_YEAR).hours)
    shown = [start + timedelta(minutes=n) for n in range(1, 721)]
    wanted = [
        at
        for at in shown
        if (face := at.astimezone(ZoneInfo(zone))).minute in minutes and face.hour in hours
    ]

    assert in_a_row(schedule(cron, timezone=zone), start, end) == wanted


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("cron", ["30 1 * * *", "15 2 * * *", "45 1,2 * * *", "0 3 * * *"])
def test_f25_a_fixed_time_fires_once_a_day_whatever_the_clocks_do(zone, which, cron):
    change = CHANGES[zone][which].replace(tzinfo=UTC)
    times = len(cron.split()[1].split(","))
    for before in range(0, 26):
        found = in_a_row(
            schedule(cron, timezone=zone),
            change - timedelta(hours=before, days=1),
            change - timedelta(hours=before - 72),
        )
        days = [tick.astimezone(ZoneInfo(zone)).date() for tick in found]
        inner = set(days) - {days[0], days[-1]}
        assert [days.count(day) for day in sorted(inner)] == [times] * len(inner)


@given(
    cron=st.sampled_from(["30 2 * * *", "*/15 * * * *", "15 */2 * * *", "20 30 * * * *"]),
    zone=st.sampled_from(ZONES),
    change=st.sampled_from([0, 1]),
    starts=st.lists(st.integers(-20_000, 20_000), min_size=2, max_size=2),
)
def test_f25_ticks_are_the_same_from_wherever_one_asks(cron, zone, change, starts):
    """A chain of ticks that was begun elsewhere meets: what a host computes, any other does."""
    made = schedule(cron, timezone=zone)
    around = CHANGES[zone][change].replace(tzinfo=UTC)
    one, other = (around + timedelta(seconds=n) for n in sorted(starts))
    end = around + timedelta(hours=30)

    assert [t for t in in_a_row(made, one, end) if t > other] == in_a_row(made, other, end)


NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


def due(cron: str, late: float, now: datetime, **options) -> tuple[list[str], str]:
    made = schedule(cron, **options)
    found = made.due(now, since=NEW_YEAR, next_at=now - timedelta(seconds=late))
    return [t.strftime("%H:%M:%S") for t in found.ticks], found.following.strftime("%H:%M:%S")


@pytest.mark.parametrize(
    ("missed", "fired"),
    [("latest", ["11:00:00"]), ("skip", []), ("all", ["09:00:00", "10:00:00", "11:00:00"])],
)
def test_u16_what_was_missed_follows_the_policy(missed, fired):
    now = NOON - timedelta(minutes=30)
    assert due("0 * * * *", 2.5 * 3600, now, missed=missed) == (fired, "12:00:00")


@pytest.mark.parametrize("missed", ["latest", "skip", "all"])
def test_u16_what_is_seen_within_a_minute_was_not_missed(missed):
    assert due("*/20 * * * * *", 50, NOON + timedelta(seconds=10), missed=missed) == (
        ["11:59:20", "11:59:40", "12:00:00"],
        "12:00:20",
    )


@pytest.mark.parametrize(("missed", "fired"), [("latest", 1), ("skip", 1), ("all", 11)])
def test_u16_a_tick_on_time_stands_for_those_that_were_missed(missed, fired):
    ticks, _ = due("* * * * *", 600, NOON, missed=missed)
    assert len(ticks) == fired
    assert ticks[-1] == "12:00:00"


def test_u16_all_of_a_day_of_seconds_come_in_portions():
    made = schedule("* * * * * *", missed="all")
    now = NOON
    found = made.due(now, since=NEW_YEAR, next_at=now - timedelta(days=1))
    assert len(found.ticks) == MOST_AT_ONCE
    assert found.following == found.ticks[-1] + timedelta(seconds=1)


@pytest.mark.parametrize("cron", ["* 0-3 * * * *", "*/5 * * * *", "0 0 1 1 *", "0 3 * * *"])
def test_u16_the_latest_is_found_in_years(cron):
    made = schedule(cron)
    now = datetime(2033, 6, 7, 8, 59, 30, tzinfo=UTC)
    found = made.due(now, since=NEW_YEAR, next_at=made.next_after(NEW_YEAR))
    (latest,) = found.ticks
    assert latest <= now < made.next_after(latest) == found.following


def test_u16_the_first_tick_is_the_first_after_it_was_made():
    made = schedule("0 * * * *")
    before = NOON - timedelta(seconds=30)
    assert made.due(before, since=before, next_at=None) == ([], NOON)
    assert made.due(NOON, since=before, next_at=None).ticks == [NOON]
    assert made.due(NOON, since=NOON, next_at=None).ticks == []


def test_r11_a_definition_has_the_same_fingerprint_however_its_zone_is_written():
    one = schedule("@daily[Europe/Rome]").definition()
    other = schedule("@daily", timezone="Europe/Rome").definition()
    assert one == other
    assert one["cron"] == "@daily"
    assert one["fingerprint"] != schedule("@daily", input="1").definition()["fingerprint"]


@pytest.mark.parametrize("module", ["fleet.schedule", "fleet.store.schedules", "supervisor.ticks"])
def test_f24_what_decides_when_a_tick_fires_never_asks_this_host_s_clock(module):
    tree = ast.parse(Path(import_module(module).__file__ or "").read_text())
    called = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    assert not called & {
        "datetime.now",
        "datetime.utcnow",
        "datetime.today",
        "time.time",
        "time_ns",
    }
    assert {name for name in called if name.startswith("time.")} <= {"time.monotonic"}
