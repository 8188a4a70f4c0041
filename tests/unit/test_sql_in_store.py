"""SQL in Python is written in ``fleet.store``, beside the function that runs it; nowhere else."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import fleet
import supervisor

FLEET = Path(fleet.__file__ or "").parent
SUPERVISOR = Path(supervisor.__path__[0])
ROOT = FLEET.parent

# What an application does to its own tables is the application's: the demo shows one.
OF_THE_USER = {FLEET / "demo" / "shop.py"}

# How a statement begins. Prose may begin with such a word, too, and then goes on as prose does.
STATEMENT = re.compile(
    r"""\s*(?:--[^\n]*\s+)*(?:
        with\s+\w+\s+as\b | select\s | insert\s+into\b | update\s+[\w.]+\s+(?:\w+\s+)?set\b
      | delete\s+from\b | truncate\s+[\w.]+\s*$ | call\s+\w+\.
      | (?:create|alter|drop)\s+(?:or\s+replace\s+|unique\s+)?
            (?:table|schema|function|index|sequence)\b
      | (?:grant|revoke)\s+[\w ,]+\s+on\b | lock\s+table\b
      | set\s+(?:local|session)\s+\w+\s*(?:=|to\b)
    )""",
    re.VERBOSE | re.IGNORECASE,
)
PING = "select 1"  # asks whether anybody is there, and nothing of the schema


def strings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield every string that is not a docstring; what an f-string fills in is left empty."""
    passed = set()
    for node in ast.walk(tree):
        if id(node) in passed:
            continue
        match node:
            case ast.Expr(value=ast.Constant() as docstring):
                passed.add(id(docstring))
            case ast.JoinedStr():
                passed |= {id(part) for part in node.values}
                parts = [part.value for part in node.values if isinstance(part, ast.Constant)]
                yield node.lineno, "".join(map(str, parts))
            case ast.Constant(value=str(text)):
                yield node.lineno, text


def statements(path: Path) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{line}: {' '.join(text.split())[:60]}"
        for line, text in strings(ast.parse(path.read_text()))
        if STATEMENT.match(text) and text != PING
    ]


def files() -> list[Path]:
    found = [*FLEET.rglob("*.py"), *SUPERVISOR.rglob("*.py")]
    return sorted(path for path in found if FLEET / "store" not in path.parents)


def test_sql_is_written_in_the_store_and_nowhere_else():
    ours = [path for path in files() if path not in OF_THE_USER]
    assert [found for path in ours for found in statements(path)] == []


def test_what_the_demo_s_shop_does_to_its_tables_names_none_of_fleet_s():
    found = [text for path in OF_THE_USER for _, text in strings(ast.parse(path.read_text()))]
    assert [text for text in found if STATEMENT.match(text) and "fleet." in text] == []


@pytest.mark.parametrize(
    "text",
    [
        "select fleet.now()",
        "\nwith due as materialized (select 1)",
        "insert into fleet.job values ($1)",
        "update fleet.task t set state = 'ready'",
        "update fleet.task set state = 'ready'",
        "delete from fleet.task",
        "truncate shop.ledger",
        "create or replace function fleet.now()",
        "create table if not exists fleet.test_clock (shift interval)",
        "alter table fleet.task reset (autovacuum_enabled)",
        "set local statement_timeout = '1s'",
        "-- why\nselect 1 from fleet.task",
    ],
)
def test_this_is_sql(text):
    assert STATEMENT.match(text)


@pytest.mark.parametrize(
    "text",
    [
        "update the schema first: fleet migrate",
        "create a role, then run this again",
        "creating a PostgreSQL for this project",
        "set FLEET_DATABASE_URL, or database_url in fleet.toml",
        "grant",
        "set synchronous_commit = on, for this database or this role",
        "with --print: the version to start from",
        "in psql: select * from fleet.maintain()",
    ],
)
def test_this_is_prose(text):
    assert not STATEMENT.match(text)
