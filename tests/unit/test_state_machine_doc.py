"""docs/state-machine.md names what exists, and has every arrow that the code can take."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import get_args

import pytest

from fleet import lifecycle, model
from fleet.lifecycle import Advance, Bury, Cancel, Finish, PutBack, Transition
from fleet.model import Failure
from tests.unit.model import PAGE, Arrow, Task, apply, documented_arrows

MIGRATIONS = Path(__file__).parents[2] / "migrations"
ERROR = Failure(type="ValueError", message="boom")
AGAIN = {
    "step": "a",
    "visit": 1,
    "failures": 0,
    "crashes": 0,
    "losses": 0,
    "releases": 0,
    "prior": 0,
    "alone": False,
}

EVERY_WAY = [
    Advance("b", "1"),
    PutBack(outcome="released", **AGAIN),
    PutBack(outcome="failed", delay=1.0, **AGAIN),
    PutBack(outcome="next", key="k", **AGAIN),
    PutBack(outcome="next", key="k", delay=1.0, **AGAIN),
    Finish("1"),
    Finish("1", keep=False),
    Bury("fatal", ERROR, 0, 0, 0),
    Bury("fatal", ERROR, 0, 0, 0, keep=False),
    Cancel(),
]


def spans_of_code() -> set[str]:
    # Without the blocks: the diagram has no names of ours in it.
    return set(re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", PAGE.read_text(), flags=re.S)))


def rows_of_arrows() -> set[Arrow]:
    """The arrows in the first column of the table, each state with each."""
    rows = re.findall(r"^\| `([^`]+) → ([^`]+)` \|", PAGE.read_text(), re.MULTILINE)
    return {
        (source, target)
        for sources, targets in rows
        for source in sources.split(", ")
        for target in targets.split(", ")
    }


def test_every_kind_of_transition_is_among_the_ways_we_look_at():
    assert {type(way) for way in EVERY_WAY} == set(get_args(Transition))


@pytest.mark.parametrize("way", EVERY_WAY, ids=repr)
def test_u03_every_transition_is_an_arrow_of_the_diagram(way: Transition):
    task = Task(id=1, state="running", fence=1, owner=1)

    assert ("running", apply(task, way).state) in documented_arrows()


def test_the_table_and_the_diagram_have_the_same_arrows():
    assert rows_of_arrows() == documented_arrows()


def test_u03_the_diagram_has_the_states_of_the_code_and_no_other():
    states = {state for arrow in documented_arrows() for state in arrow}

    assert states == {*get_args(model.State), "deleted", "[*]"}


def test_each_transition_is_named_with_the_function_that_decides_it():
    for transition in get_args(Transition):
        assert transition.__name__ in spans_of_code()


@pytest.mark.parametrize(
    "name", sorted(name for name in spans_of_code() if re.fullmatch(r"fleet(\.\w+){2,}", name))
)
def test_every_python_name_on_the_page_exists(name: str):
    module, _, attribute = name.rpartition(".")

    assert hasattr(importlib.import_module(module), attribute)


@pytest.mark.parametrize(
    "name", sorted(name for name in spans_of_code() if re.fullmatch(r"fleet\.\w+\(\)", name))
)
def test_every_sql_function_on_the_page_exists(name: str):
    sql = "".join(path.read_text() for path in sorted(MIGRATIONS.glob("*.sql")))

    assert f"function {name.removesuffix('()')}(" in sql


def test_every_file_on_the_page_exists():
    files = [name for name in spans_of_code() if name.startswith("tests/")]

    assert files
    assert all((PAGE.parents[1] / name).is_file() for name in files)


@pytest.mark.parametrize("budget", ["CRASH_BUDGET", "FREE_LOSSES"])
def test_the_budgets_on_the_page_are_those_of_the_code(budget: str):
    assert f"`{budget}` ({getattr(lifecycle, budget)})" in PAGE.read_text()
