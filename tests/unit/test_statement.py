"""job.statement(): the SQL that enqueues, for whoever executes it. On real drivers: tests/store."""

from datetime import UTC, datetime

import pytest
from opentelemetry import trace

from fleet import Context, Fleet, errors
from fleet.client.statement import statement
from fleet.model import Submission

app = Fleet()


@app.job("order", queue="billing", priority=2)
async def order(ctx: Context, order_id: int) -> None: ...


def test_an_unknown_style_is_refused_with_the_known_ones():
    with pytest.raises(errors.InvalidOption, match="asyncpg, psycopg, named"):
        order.statement(1, style="pyformat")


def test_wrong_options_are_refused_before_there_is_a_statement():
    with pytest.raises(errors.InvalidOption, match="delay"):
        order.statement(1, delay=-1)
    with pytest.raises(errors.NotEncodable):
        order.statement(object())


def test_asyncpg_gets_numbers_and_a_tuple():
    assert order.statement(1) == (
        "select id from fleet.enqueue_one(job => $1::text, input => $2::text::jsonb, "
        "queue => $3::text, step => $4::text, priority => $5::int)",
        ("order", "1", "billing", "order", 2),
    )


def test_psycopg_gets_names_and_a_dict():
    sql, params = order.statement(1, delay=90, style="psycopg")
    assert "delay => %(delay)s::text::interval" in sql
    assert params["delay"] == "90.000000 s"


def test_text_gets_casts_that_it_can_read():
    sql, params = order.statement(1, unique="one", unique_scope="while_waiting", style="named")
    assert "input => cast(:input as text)::jsonb" in sql
    assert (params["unique_key"], params["unique_scope"]) == ("one", "while_waiting")


def test_what_is_not_given_is_not_mentioned():
    sql, params = order.statement(1, style="named")
    assert set(params) == {"job", "input", "queue", "step", "priority"}
    assert "unique" not in sql
    assert "delay" not in sql


def test_every_option_finds_its_place():
    moment = datetime(2030, 1, 1, tzinfo=UTC)
    everything = Submission(
        job="j",
        step="s",
        queue="q",
        input="1",
        at=moment,
        key="k",
        unique="u",
        unique_for=60.0,
        on_repeat="replace",
        trace="t",
    )
    _, params = statement(everything, "psycopg")
    assert params == {
        "job": "j",
        "input": "1",
        "queue": "q",
        "step": "s",
        "priority": 0,
        "at": moment,
        "key": "k",
        "unique_key": "u",
        "unique_scope": "while_live",
        "traceparent": "t",
        "unique_for": "60.000000 s",
        "on_repeat": "replace",
    }


def test_the_trace_goes_along():
    span = trace.NonRecordingSpan(trace.SpanContext(1, 2, is_remote=False))
    with trace.use_span(span):
        _, params = order.statement(1, style="named")
    assert params["traceparent"] == f"00-{1:032x}-{2:016x}-00"
