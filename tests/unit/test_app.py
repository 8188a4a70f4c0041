"""The application's registry (R15)."""

import inspect
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from fleet import Fleet
from fleet.errors import AlreadyRegistered, ConfigError, DefinitionError, InvalidName, NotEncodable


@dataclass
class Order:
    n: int


@pytest.fixture
def app() -> Fleet:
    return Fleet()


def line() -> int:
    frame = inspect.currentframe()
    assert frame is not None and frame.f_back is not None
    return frame.f_back.f_lineno


def test_r15_the_same_job_twice_names_both_places(app):
    async def report(ctx) -> None: ...

    first = line() + 1
    app.job("report")(report)

    with pytest.raises(AlreadyRegistered) as error:
        app.job("report")(report)

    assert str(error.value).startswith("job 'report' is registered twice")
    assert f"{__file__}:{first}" in str(error.value)
    assert f"{__file__}:{first + 3}" in str(error.value)


def test_r15_another_job_of_the_name_is_refused_and_the_first_stays(app):
    kept = app.job("report", queue="a")

    with pytest.raises(AlreadyRegistered):
        app.job("report", queue="b")

    assert app.jobs == {"report": kept}


def test_r15_a_schedule_twice_names_both_places(app):
    @app.job("report")
    async def report(ctx) -> None: ...

    first = line() + 1
    app.schedule("nightly", "@daily", report)

    with pytest.raises(AlreadyRegistered) as error:
        app.schedule("nightly", "@hourly", report)

    assert str(error.value).startswith("schedule 'nightly' is registered twice")
    assert f"{__file__}:{first}" in str(error.value)
    assert f"{__file__}:{first + 3}" in str(error.value)
    assert app.schedules["nightly"].cron == "@daily"


@pytest.mark.parametrize("queue", [None, "", 7])
def test_r15_no_queue_is_refused(app, queue):
    with pytest.raises(InvalidName, match=f"queue name {queue!r}"):
        app.job("report", queue=queue)

    assert app.jobs == {}


@pytest.mark.parametrize(
    "name", ["", "Report", "a b", "ü", "x" * 64, "1st", "x'; drop table fleet.task; --", None, 7]
)
def test_names_that_cannot_be_are_refused(app, name):
    with pytest.raises(InvalidName, match="job name"):
        app.job(name)
    with pytest.raises(InvalidName, match="schedule name"):
        app.schedule(name, "@daily", "report")


def test_a_schedule_of_an_unknown_job_is_refused(app):
    with pytest.raises(DefinitionError, match=r"schedule 'nightly' \(.*names job 'nothing', which"):
        app.schedule("nightly", "@daily", "nothing")


def test_a_schedule_of_another_applications_job_is_refused(app):
    other = Fleet()

    @other.job("report")
    async def report(ctx) -> None: ...

    with pytest.raises(DefinitionError, match="which this application does not have"):
        app.schedule("nightly", "@daily", report)

    @app.job("report")
    async def mine(ctx) -> None: ...

    with pytest.raises(DefinitionError, match="of another application"):
        app.schedule("nightly", "@daily", report)


def test_a_schedule_encodes_its_input_when_it_is_written_down(app):
    @app.job("report")
    async def report(ctx, order: Order) -> None: ...

    schedule = app.schedule("nightly", "@daily", report, Order(1), timezone="Europe/Berlin")

    assert schedule.input == '{"n":1}'
    assert schedule.job == "report"
    assert schedule.timezone == "Europe/Berlin"
    with pytest.raises(NotEncodable, match="job 'report' takes Order, no input was given"):
        app.schedule("other", "@daily", report)


def test_a_schedule_of_a_job_without_steps_is_refused(app):
    job = app.job("report")

    with pytest.raises(DefinitionError, match="has no steps"):
        app.schedule("nightly", "@daily", job)


def test_the_registry_cannot_be_changed_from_outside(app):
    with pytest.raises(TypeError):
        app.jobs["x"] = None
    with pytest.raises(TypeError):
        app.schedules["x"] = None


def test_nothing_of_the_url_is_printed():
    assert "secret" not in repr(Fleet("postgresql://me:secret@db/shop", name="shop"))


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("lifespan", 7),
        ("middleware", [7]),
        ("max_payload", 0),
        ("max_payload", True),
        ("max_payload", "1MiB"),
        ("max_payload", 1_048_577),
    ],
)
def test_an_option_that_cannot_work_is_refused_by_name(option, value):
    with pytest.raises(ConfigError, match=f"^{option} = "):
        Fleet(**{option: value})


def test_lifespan_and_middleware_are_kept_for_the_worker():
    @asynccontextmanager
    async def lifespan():
        yield "state"

    def layer(ctx, call_next): ...

    app = Fleet(lifespan=lifespan, middleware=[layer])

    assert app.lifespan is lifespan
    assert app.middleware == (layer,)
