"""The drawing of a task's life."""

from __future__ import annotations

import pytest

from fleet.cli.timeline import WAIT, WORK, Stretch, draw


def test_waits_and_attempts_are_drawn_to_scale_on_one_axis():
    lines = draw(
        [
            Stretch("render #1", 0, 10, 20, "failed"),
            Stretch("render #2", 20, 30, 40, "succeeded"),
        ],
        53,
    )

    assert [line.plain[11:52] for line in lines] == [
        WAIT * 10 + WORK * 10 + "✗" + " " * 20,
        " " * 20 + WAIT * 10 + WORK * 10 + "✓",
    ]
    assert "waited 10.0 s, ran 10.0 s" in lines[0].plain


def test_the_shortest_attempt_is_seen_and_the_outcomes_stand_in_one_column():
    lines = draw(
        [
            Stretch("a #1", 0, 0, 0, "next"),
            Stretch("long-name #1", 0, 0.001, 0.002, "snoozed"),
            Stretch("b #1", 0.002, 3600, 3600, "fatal"),
        ],
        60,
    )

    assert all(line.plain.count(WORK) == 1 for line in lines)
    words = ("next", "snoozed", "fatal")
    columns = {line.plain.index(word) for line, word in zip(lines, words, strict=True)}
    assert len(columns) == 1


def test_a_task_that_never_ran_has_only_waited():
    (line,) = draw([], 40, still_waiting=90)

    assert set(line.plain.partition("  waiting")[0].strip()) == {WAIT}
    assert "waiting for 1m 30s" in line.plain


@pytest.mark.parametrize("width", [0, 1, 10, 300])
def test_any_width_will_do(width):
    assert len(draw([Stretch("step #1", 0, 0, 0, "running")], width, still_waiting=0.0)) == 2
