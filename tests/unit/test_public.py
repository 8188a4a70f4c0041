"""The public names, and the tree of errors as it is printed."""

import inspect
import re
import subprocess
import sys

import fleet
from fleet import errors


def test_the_public_names():
    assert fleet.__all__ == sorted(fleet.__all__, key=lambda name: (name[0].islower(), name))
    assert {"Context", "Fatal", "Fleet", "FleetError", "Job", "Retry", "To"} <= set(fleet.__all__)
    for name in fleet.__all__:
        assert getattr(fleet, name) is not None


def test_what_a_function_of_yours_may_take_or_return_can_be_named():
    for name in ("Handle", "SyncHandle", "TaskFailure", "TaskStatus"):
        assert name in fleet.__all__
        assert inspect.isclass(getattr(fleet, name))


def test_every_error_is_public_and_below_the_root():
    for name in errors.__all__:
        assert issubclass(getattr(errors, name), fleet.FleetError)
        assert name in fleet.__all__


def test_the_printed_tree_of_errors_is_the_real_one():
    printed: dict[str, str] = {}
    parents: list[str] = []
    for row in inspect.cleandoc(errors.__doc__ or "").splitlines()[1:]:
        found = re.match(r"([│├└─ ]*)([A-Z]\w+)", row)
        if found:
            depth = len(found[1]) // 4
            parents[depth:] = [found[2]]
            printed[found[2]] = parents[depth - 1] if depth else "Exception"

    assert printed.keys() == set(errors.__all__)
    for name, parent in printed.items():
        bases = {base.__name__ for base in getattr(errors, name).__bases__}
        assert parent in bases, f"{name} stands below {parent}, its bases are {bases}"


def test_importing_fleet_imports_no_driver_no_pydantic_and_no_telemetry_sdk():
    code = (
        "import sys, fleet\n"
        "heavy = {'asyncpg', 'pydantic', 'psycopg', 'sqlalchemy', 'django', 'opentelemetry.sdk'}\n"
        "print(sorted(heavy & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )

    assert done.stdout.strip() == "[]"


def test_u09_fatal_keeps_its_message_and_is_told_from_other_failures():
    error = fleet.Fatal("the card was reported stolen")

    assert str(error) == "the card was reported stolen"
    assert isinstance(error, fleet.FleetError)
    # A step's own failures are never Fleet's: catching FleetError must not catch them.
    assert not issubclass(TimeoutError, fleet.FleetError)
