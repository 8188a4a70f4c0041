"""``fleet.toml``'s tables, ``FLEET_*`` and flags as settings: what is read, and what wins."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.config import Rate
from fleet.errors import ConfigError
from fleet.policy import Settings, resolve
from fleet.retry import Retry
from fleet.settings import Address, FetchSettings, QueueSettings, run_settings
from fleet.settings.schema import SCHEMA
from fleet.settings.sources import Spot
from fleet.settings.variables import variable
from tests.unit.settings_of import read

SPOTS = [Spot(t, "a" if t == "queues" else None, key) for t in SCHEMA for key in SCHEMA[t]]


def test_nothing_said_gives_the_documented_defaults():
    found = read("")
    supervisor = found.supervisor

    assert (supervisor.processes, supervisor.concurrency) == ("auto", 10)
    assert (supervisor.lease, supervisor.drain_timeout, supervisor.boot_timeout) == (15, 25, 60)
    assert (supervisor.balance, supervisor.preload) == ("fair", True)
    assert (str(supervisor.http), str(supervisor.console)) == ("127.0.0.1:8787", "127.0.0.1:8788")
    assert found.fetch == FetchSettings(empty_delay=1, error_delay=5, batch=500)
    assert found.queues == ()


def test_the_file_of_the_design_is_read():
    found = read("""
        [supervisor]
        processes = "auto"
        concurrency = 10
        lease = "15s"
        drain_timeout = "25s"
        balance = "fair"
        http = "127.0.0.1:8787"
        console = "127.0.0.1:8788"
        [fetch]
        empty_delay = "1s"
        error_delay = "5s"
        batch = 500
        [queues.default]
        weight = 1
        [queues.images]
        processes = 4
        concurrency = 1
        limit = 20
        rate = "100/s"
        max_memory = "512MiB"
        max_tasks = 10000
    """)

    assert found.supervisor == read("").supervisor
    assert found.queues == (
        QueueSettings(name="default"),
        QueueSettings(
            name="images",
            processes=4,
            concurrency=1,
            limit=20,
            rate=Rate(100, 1.0),
            max_memory=512 * 1_048_576,
            max_tasks=10_000,
        ),
    )
    assert [queue.dedicated for queue in found.queues] == [False, True]


def test_queues_stand_in_the_order_of_the_file_and_new_ones_behind():
    found = run_settings(
        tomllib.loads("[queues.z]\n[queues.a]\n[queues.m]"),
        {"FLEET_QUEUES_Y_LIMIT": "1", "FLEET_QUEUES_B_LIMIT": "1", "FLEET_QUEUES_A_LIMIT": "1"},
        {"queues.c.limit": 1},
    )

    assert [queue.name for queue in found.queues] == ["z", "a", "m", "b", "y", "c"]


def test_flags_beat_variables_which_beat_the_file():
    text, env = "[fetch]\nbatch = 1", {"FLEET_FETCH_BATCH": "2"}

    assert read(text).fetch.batch == 1
    assert read(text, env).fetch.batch == 2
    assert run_settings({}, env, {"fetch.batch": 3}).fetch.batch == 3
    assert run_settings({}, env, {"fetch.batch": "3"}).fetch.batch == 3
    assert run_settings({}, env, {"fetch.batch": None}).fetch.batch == 2


@pytest.mark.parametrize(
    ("name", "text", "spot"),
    [
        ("FLEET_QUEUES_IMAGES_MAX_TASKS", "7", ("images", "max_tasks")),
        ("FLEET_QUEUES_BULK_MAIL_LIMIT", "7", ("bulk_mail", "limit")),
        ("FLEET_QUEUES_BULK__MAIL_LIMIT", "7", ("bulk-mail", "limit")),
        ("FLEET_QUEUES_EU___IMAGES_LIMIT", "7", ("eu.images", "limit")),
        ("FLEET_QUEUES_LIMIT_LIMIT", "7", ("limit", "limit")),
        ("FLEET_QUEUES_PORT_LIMIT", "7", ("port", "limit")),
        ("FLEET_QUEUES_SERVICE_PORT_LIMIT", "7", ("service_port", "limit")),
        ("FLEET_QUEUES_A__LIMIT", "7", ("a_", "limit")),
    ],
)
def test_a_variable_names_queue_and_key(name, text, spot):
    env = {name: text}
    if spot[1] == "max_tasks":
        env["FLEET_QUEUES_IMAGES_PROCESSES"] = "1"
    (queue,) = read("", env).queues

    assert (queue.name, getattr(queue, spot[1])) == (spot[0], 7)


@pytest.mark.parametrize("spot", SPOTS, ids=str)
def test_every_key_has_a_variable_and_a_flag(spot):
    # Refused for its value, which is none of any key, and so found under its name.
    for env, flags in (({variable(spot): "?"}, {}), ({}, {str(spot): "?"})):
        with pytest.raises(ConfigError) as refused:
            run_settings({}, env, flags)
        assert refused.value.key == str(spot)


@given(st.from_regex(r"[a-z][a-z0-9]{0,5}([-._][a-z0-9]{1,5}){0,3}", fullmatch=True))
def test_every_usual_queue_name_can_be_written_as_a_variable(name):
    (queue,) = read("", {variable(Spot("queues", name, "limit")): "3"}).queues

    assert (queue.name, queue.limit) == (name, 3)


@pytest.mark.parametrize(
    "name",
    [
        "FLEET_SUPERVISOR_PORT",
        "FLEET_SUPERVISOR_SERVICE_HOST",
        "FLEET_SUPERVISOR_SERVICE_PORT",
        "FLEET_SUPERVISOR_SERVICE_PORT_HTTP",
        "FLEET_SUPERVISOR_PORT_8787_TCP",
        "FLEET_SUPERVISOR_PORT_8787_TCP_ADDR",
        "FLEET_QUEUE_SERVICE_HOST",
        "FLEET_QUEUES_SERVICE_HOST",
        "FLEET_FETCH_PORT_80_TCP_PROTO",
        "FLEET_APP",
        "FLEET_DATABASE_URL",
        "FLEET_EMBEDDED",
        "FLEET_TEST_PG",
        "FLEETING_SUPERVISOR_LEASE",
        "fleet_supervisor_home",
        "PATH",
    ],
)
def test_a_variable_of_others_is_left_alone(name):
    # The first ones are what Kubernetes sets for a Service called fleet-supervisor.
    assert read("", {name: "tcp://10.0.0.1:8787"}) == read("")


def test_variables_are_read_by_the_type_of_their_key():
    found = read(
        "",
        {
            "FLEET_SUPERVISOR_PROCESSES": " 4 ",
            "FLEET_SUPERVISOR_PRELOAD": "No",
            "FLEET_SUPERVISOR_HTTP": "off",
            "FLEET_SUPERVISOR_CONSOLE": "[::1]:0",
            "FLEET_QUEUES_A_WEIGHT": "2.5",
            "FLEET_TELEMETRY_SUPERVISOR_SAMPLE": "1",
        },
    )

    assert (found.supervisor.processes, found.supervisor.preload) == (4, False)
    assert (found.supervisor.http, found.supervisor.console) == (None, Address("::1", 0))
    assert str(found.supervisor.console) == "[::1]:0"
    assert found.queues[0].weight == 2.5
    assert found.telemetry.supervisor_sample == 1.0
    assert read("", {"FLEET_SUPERVISOR_PROCESSES": "auto"}).supervisor.processes == "auto"


def test_three_beats_fit_in_a_lease_of_exactly_three():
    # 3 × 0.1 is more than 0.3 in binary.
    assert read("[supervisor]\nlease = '300ms'\n[fetch]\nempty_delay = '100ms'").supervisor.lease


def test_ports_that_are_any_free_one_never_clash():
    found = read("[supervisor]\nhttp = '127.0.0.1:0'\nconsole = '127.0.0.1:0'")

    assert found.supervisor.http == found.supervisor.console


def test_r01_a_queue_and_the_config_say_what_jobs_leave_open():
    found = read("""
        [defaults]
        timeout = "5m"
        priority = 3
        [queues.images]
        timeout = "30s"
        on_success = "delete"
        keep = "1d"
        retry = { max_attempts = 3, initial = "2s" }
    """)

    in_images = resolve(Settings(keep=60), *found.policy_layers("images"))
    elsewhere = resolve(Settings(), *found.policy_layers("emails"))

    assert in_images.retry == Retry(max_attempts=3, initial=2.0)
    assert (in_images.timeout, in_images.priority, in_images.keep) == (30.0, 3, 60.0)
    assert in_images.on_success == "delete"
    assert (elsewhere.timeout, elsewhere.priority, elsewhere.retry) == (300.0, 3, Retry())
