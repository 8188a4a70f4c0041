"""What is no Exception fails its attempt like one: a panic of an extension, a group."""

from __future__ import annotations

import pytest

from fleet import Context, Fleet, Retry, TaskBuried
from fleet.testing import drain


class Panic(BaseException):
    """As pyo3 raises them."""


RAISED = [
    Panic("index out of bounds"),
    BaseExceptionGroup("both", [Panic("a")]),
    GeneratorExit("x"),
]


@pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("kind", ["async", "def"])
async def test_r08_what_is_no_exception_fails_its_attempt_with_its_traceback(dsn, error, kind):
    app = Fleet(dsn)

    @app.job("async", retry=Retry(max_attempts=1))
    async def awaits(ctx: Context) -> None:
        raise error

    @app.job("def", retry=Retry(max_attempts=1))
    def plain(ctx: Context) -> None:
        raise error

    async with app:
        handle = await app.jobs[kind].enqueue(None)
        await drain(app)
        with pytest.raises(TaskBuried) as told:
            await handle.result(timeout=5)
    assert type(error).__name__ in str(told.value)
