"""What SQL lets in as a cron expression is what Python does: neither knows more than the other."""

from __future__ import annotations

from collections.abc import Iterator

import asyncpg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fleet.errors import DefinitionError
from fleet.schedule import Schedule


def python_takes(cron: str) -> bool:
    try:
        Schedule(name="s", cron=cron, job="j")
    except DefinitionError:
        return False
    return True


async def sql_takes(db, cron: str) -> bool:
    try:
        await db.fetchval("select fleet.check_cron($1)", cron)
    except asyncpg.InvalidParameterValueError:
        return False
    return True


CRONS = [
    *("* * * * *", "* * * * * *", "* * * *", "* * * * * * *", "", " ", "0 3 * * *\t"),
    *("@daily", "@Daily ", "@weekly", "@fortnightly", "@reboot", "@"),
    *("* * 31 2 *", "0 0 30 2 *", "0 0 29 2 *", "0 0 30 2 1", "0 0 31 4,6,9,11 *", "0 0 31 4,5 *"),
    *("61 * * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * 32 * *", "* * * 13 *"),
    *("* * * 0 *", "* * * * 8", "* * * * 7", "* * * * 0", "60 * * * * *", "59 * * * * *"),
    *("*/0 * * * *", "*/5 * * * *", "5/10 * * * *", "*/99999999999 * * * *", "*/ * * * *"),
    *("1-5/2 * * * *", "5-1 * * * *", "1-5-7 * * * *", "1,2,3 * * * *", "1,,3 * * * *"),
    *(", * * * *", "1, * * * *", "-1 * * * *", "1- * * * *", "*-5 * * * *", "*,5 * * * *"),
    *("007 * * * *", "0000000059 * * * *", "0000000060 * * * *", "1.5 * * * *", "a * * * *"),
    *("* * L * *", "* * LW * *", "* * L/2 * *", "* * L-3 * *", "* * 1,L * *", "* * W * *"),
    *("* * * jan *", "* * * JAN-mar *", "* * * JAN/2 *", "* * * FOO *", "* * * * mon-fri"),
    *("* * * * sat-sun", "* * * * 5L", "* * * * L", "* * * * MONL", "* * * * L5", "* * * * 5-L"),
    *("* * * * 1#1", "* * * * MON#5", "* * * * 1#6", "* * * * 1#0", "* * * * 1#", "* * * * #1"),
    *("* * * * 1-2#1", "* * * * */2#1", "* * * * 1#1#1", "* * * * 1#1,3#2", "* * * * 1#1/2"),
    *("0 0 */30 2 1#5", "0 0 * 2 1#5", "0 0 LW * */6", "0 0 LW * *", "0 0 L 2 *", "0 0 ? * *"),
    *("* * 1/2/3 * *", "* * */5-7 * *", "* * 8L * *", "* * * L *", "L * * * *", "* * * * 0L,7L"),
    *("* * 30,31 2 *", "* * 31,L 2 *", "* * * * 10L", "* * * * 007L", "¼ * * * *", "٣ * * * *"),
]


async def test_u16_sql_takes_what_python_takes(db):
    assert {cron: await sql_takes(db, cron) for cron in CRONS} == {
        cron: python_takes(cron) for cron in CRONS
    }


atom = st.sampled_from(
    [
        *"*0123456789",
        "12",
        "23",
        "31",
        "59",
        "60",
        "L",
        "LW",
        "MON",
        "SUN",
        "FEB",
        "DEC",
        "5L",
        "1#5",
    ]
)
spec = st.recursive(
    atom, lambda s: st.builds("{}{}{}".format, s, st.sampled_from(",-/#"), s), max_leaves=3
)
crons = st.lists(spec, min_size=5, max_size=6).map(" ".join)


async def test_u16_sql_takes_what_python_takes_whatever_it_is(db):
    drawn: list[str] = []

    @settings(max_examples=400, database=None, suppress_health_check=list(HealthCheck))
    @given(crons)
    def draw(cron: str) -> None:
        drawn.append(cron)

    draw()
    for cron in [*drawn, *_days()]:
        assert await sql_takes(db, cron) == python_takes(cron), cron


def _days() -> Iterator[str]:
    for day in ("*", "30", "31", "29", "L", "LW", "*/30", "*/31", "1-3", "30,L"):
        for month in ("*", "2", "4,6", "FEB"):
            for dow in ("*", "1", "*/6", "1#5", "5L", "6,7", "0#1,3#5"):
                yield f"0 0 {day} {month} {dow}"


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        ("'s', '* * 31 2 *', 'j'", "cannot work: it matches no day"),
        ("'s', '61 * * * *', 'j'", "bad minute"),
        ("'s', '* * *', 'j'", "wrong fields"),
        ("'s', null, 'j'", "wrong fields"),
        ("'s', '@daily[Atlantis]', 'j'", "there is no time zone 'Atlantis'"),
        ("'s', '@daily', 'j', timezone => 'europe/rome'", "there is no time zone 'europe/rome'"),
        ("'s', '@daily[Europe/Rome]', 'j', timezone => 'UTC'", "names a zone and timezone another"),
        ("'s', '@daily', 'j', missed => 'some'", "missed 'some' is unknown"),
        ("'s', '@daily', 'j', missed => null", "missed NULL is unknown"),
        ("'S!', '@daily', 'j'", "schedule name 'S!' is not allowed"),
        ("'s', '@daily', 'J!'", "job name 'J!' is not allowed"),
        ("'s', '@daily', 'j', key => ''", "key must have 1 to 255 characters"),
    ],
)
async def test_u16_what_cannot_work_is_refused_in_sql_with_a_word(db, call, problem):
    with pytest.raises(asyncpg.InvalidParameterValueError) as error:
        await db.fetchval(f"select fleet.schedule({call})")
    assert problem in str(error.value)
    assert await db.fetchval("select count(*) from fleet.schedule") == 0
