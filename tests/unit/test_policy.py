"""Settings, their defaults and their precedence (U01, R01, R10)."""

from dataclasses import fields
from datetime import timedelta

import pytest

from fleet import Fleet, Retry
from fleet.errors import InvalidSetting
from fleet.policy import Policy, Settings, resolve


def test_u01_defaults():
    assert resolve() == Policy(
        retry=Retry(max_attempts=5, initial=1, coefficient=2, maximum=60, jitter=0.5),
        timeout=15 * 60,
        priority=0,
        keep=14 * 86_400,
        key=None,
        on_success="archive",
        on_failure="bury",
    )


def test_u01_every_setting_can_be_said_by_the_job_and_by_the_step():
    app = Fleet()
    job = app.job("j", retry=Retry(max_attempts=2), timeout=10, priority=1, key="a", keep=100)

    @job.step
    async def first(ctx): ...

    @job.step(
        retry=Retry(max_attempts=3),
        timeout=timedelta(minutes=1),
        priority=2,
        key="b",
        keep=timedelta(days=1),
    )
    async def second(ctx): ...

    by_job, by_step = job.policy(first), job.policy(second)

    assert (by_job.retry.max_attempts, by_job.timeout, by_job.priority) == (2, 10.0, 1)
    assert (by_job.key, by_job.keep) == ("a", 100.0)
    assert (by_step.retry.max_attempts, by_step.timeout, by_step.priority) == (3, 60.0, 2)
    assert (by_step.key, by_step.keep) == ("b", 86_400.0)


LAYERS = [
    Settings(
        retry=Retry(max_attempts=n),
        timeout=n,
        priority=n,
        keep=n,
        key=f"key-{n}",
        on_success="delete" if n % 2 else "archive",
        on_failure="delete" if n % 2 else "bury",
    )
    for n in range(1, 5)
]


@pytest.mark.parametrize("setting", [field.name for field in fields(Settings)])
def test_r01_the_first_layer_that_says_something_wins(setting):
    for strongest, layer in enumerate(LAYERS):
        silent = [Settings()] * strongest
        policy = resolve(*silent, *LAYERS[strongest:])

        assert getattr(policy, setting) == getattr(layer, setting)


def test_r01_step_over_job_over_queue_over_config_over_defaults():
    app = Fleet()
    job = app.job("j", timeout=2)

    @job.step(timeout=1)
    async def said(ctx): ...

    @job.step
    async def silent(ctx): ...

    queue, config = Settings(timeout=3, priority=3), Settings(timeout=4, priority=4, keep=4)

    assert job.policy(said, queue, config).timeout == 1.0
    assert job.policy(silent, queue, config).timeout == 2.0
    assert job.policy(silent, queue, config).priority == 3
    assert job.policy(silent, queue, config).keep == 4.0
    assert job.policy(silent, queue, config).retry == Retry()


def test_r01_a_priority_of_zero_is_said_and_not_left_out():
    assert resolve(Settings(priority=0), Settings(priority=9)).priority == 0


@pytest.mark.parametrize(
    ("on_success", "on_failure"), [("archive", "bury"), ("delete", "delete"), (None, None)]
)
def test_r10_actions_are_per_job_and_keep_by_default(on_success, on_failure):
    job = Fleet().job("j", on_success=on_success, on_failure=on_failure)

    @job.step
    async def only(ctx): ...

    policy = job.policy(only)
    assert policy.on_success == (on_success or "archive")
    assert policy.on_failure == (on_failure or "bury")
    assert job.definition()["on_success"] == policy.on_success


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("retry", 5),
        ("timeout", 0),
        ("timeout", -1),
        ("timeout", float("nan")),
        ("timeout", "30s"),
        ("timeout", True),
        ("keep", timedelta(0)),
        ("keep", timedelta.max),
        ("priority", 10_001),
        ("priority", -10_001),
        ("priority", 1.0),
        ("priority", False),
        ("key", ""),
        ("key", 7),
        ("key", "a\0b"),
        ("key", "x" * 256),
        ("on_success", "bury"),
        ("on_failure", "archive"),
    ],
)
def test_a_setting_that_cannot_work_is_refused_by_name(setting, value):
    with pytest.raises(InvalidSetting, match=f"^{setting} = "):
        Fleet().job("j", **{setting: value})


@pytest.mark.parametrize("priority", [-10_000, 0, 10_000])
def test_priorities_at_the_bounds_are_fine(priority):
    assert Settings(priority=priority).priority == priority
