"""Jobs and steps: what the registry in the database knows of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pydantic
import pytest

from fleet import Fleet, Job, Retry
from fleet.policy import Settings
from tests.unit.job.orders import Order


def test_a_definition_is_json_and_says_how_each_step_runs(receipts):
    definition = json.loads(json.dumps(receipts.definition()))

    assert definition["name"] == "order-receipt"
    assert definition["queue"] == "billing"
    first = definition["steps"][0]
    assert (first["name"], first["kind"], first["input"]) == ("render", "async", "Order")
    assert (first["timeout"], first["priority"], first["transactional"]) == (30.0, 0, False)
    assert first["retry"]["max_attempts"] == 5


def _defined(**changes: Any) -> Job[Any, Any]:
    job = Fleet().job("j", **changes)

    @job.step
    async def only(ctx, order: Order) -> None: ...

    return job


def test_a_fingerprint_is_the_same_for_the_same_definition_and_no_other():
    same, again = _defined(), _defined()
    others = [
        _defined(queue="other"),
        _defined(timeout=1),
        _defined(retry=Retry(max_attempts=1)),
        _defined(on_success="delete"),
        _defined(key=lambda order: "x"),
    ]

    assert same.fingerprint() == again.fingerprint()
    assert len({job.fingerprint() for job in [same, *others]}) == 6
    assert same.fingerprint(Settings(timeout=7)) != same.fingerprint()


@pytest.mark.parametrize("kind", ["dataclass", "pydantic", "list"])
def test_a_fingerprint_tells_two_versions_of_an_input_apart(kind):
    def version(fields: dict[str, type]) -> str:
        if kind == "pydantic":
            made: Any = pydantic.create_model("In", **{n: (t, ...) for n, t in fields.items()})
        else:
            made = dataclass(type("In", (), {"__annotations__": fields}))
        job = Fleet().job("j")

        def only(ctx, value): ...

        only.__annotations__["value"] = list[made] if kind == "list" else made
        job.step(only)
        return job.fingerprint()

    assert version({"a": int}) == version({"a": int})
    assert version({"a": int}) != version({"a": int, "b": str})
    assert version({"a": int}) != version({"a": str})
