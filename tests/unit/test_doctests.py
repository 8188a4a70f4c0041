"""The examples in docstrings are true, and the public names have them."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import fleet
import fleet.testing
from fleet.testing import make_context

OPTIONS = doctest.NORMALIZE_WHITESPACE
# They run the command when imported.
LEFT_OUT = {"fleet.__main__", "fleet.cli.__main__"}


def modules_with_examples() -> list[str]:
    found = []
    for info in pkgutil.walk_packages(fleet.__path__, "fleet."):
        if info.name in LEFT_OUT:
            continue
        module = importlib.import_module(info.name)
        if any(test.examples for test in doctest.DocTestFinder().find(module)):
            found.append(info.name)
    return found


@pytest.mark.parametrize("name", modules_with_examples())
def test_the_examples_of_a_module_are_true(name: str):
    failed, _ = doctest.testmod(importlib.import_module(name), optionflags=OPTIONS)
    assert not failed


def test_the_example_of_the_testing_module_is_python():
    rows = (fleet.testing.__doc__ or "").splitlines()
    example = [row.removeprefix("    ") for row in rows if row.startswith("    ") or not row]

    compile("\n".join(example), "fleet/testing/__init__.py", "exec")


def test_the_public_names_have_docstrings():
    for name in fleet.__all__:
        documented = getattr(fleet, name).__doc__
        assert documented, f"fleet.{name} has no docstring"
        assert len(documented.strip()) > 10, f"fleet.{name}: {documented!r}"


@pytest.mark.parametrize(
    "thing",
    [fleet.Fleet, fleet.Job, fleet.To, fleet.Retry, fleet.Handle, fleet.Schedule, make_context],
    ids=lambda thing: thing.__name__,
)
def test_what_everybody_uses_first_has_an_example(thing: object):
    assert ">>>" in (thing.__doc__ or "")
