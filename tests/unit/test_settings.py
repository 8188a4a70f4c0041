"""``fleet.toml``'s tables, ``FLEET_*`` and flags as settings: what is refused."""

from __future__ import annotations

from datetime import date

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.errors import ConfigError
from fleet.settings import RunSettings, run_settings
from fleet.settings.schema import SCHEMA
from fleet.settings.sources import Spot
from fleet.settings.variables import variable
from tests.unit.settings_of import read

SECRET = "hunter2-hunter2-hunter2"

# Bad files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        # keys
        ("[supervisor]\nlase = '15s'", ["supervisor.lase = '15s'", "did you mean lease"]),
        ("[supervisor]\nproceses = 4", ["supervisor.proceses = 4", "did you mean processes"]),
        ("[supervisor]\nzzz = 4", ["supervisor.zzz", "processes, concurrency, lease"]),
        ("[fetch]\nemptydelay = '1s'", ["fetch.emptydelay", "did you mean empty_delay"]),
        ("[queues.images]\nmaxmemory = '1GB'", ["queues.images.maxmemory", "max_memory"]),
        ("[queues.images]\nretries = 3", ["queues.images.retries", "did you mean retry"]),
        ("[queues.images.retry]\nattempts = 3", ["queues.images.retry.attempts", "max_attempts"]),
        ("[queues.images]\n'retry.initial' = '1s'", ["queues.images.retry.initial", "retry"]),
        ("[queues.images]\nlease = '15s'", ["queues.images.lease", "no such key"]),
        ("[telemetry]\nsample = 1", ["telemetry.sample", "supervisor_sample"]),
        ("[defaults]\nlimit = 1", ["defaults.limit", "no such key"]),
        ("[supervisr]\nlease = '15s'", ["supervisr", "did you mean supervisor"]),
        ('[supervisor]\n"a\\nb" = 1', ["supervisor.'a\\nb'", "no such key"]),
        # tables
        ("supervisor = 4", ["supervisor = 4", "[supervisor]"]),
        ("queues = ['images']", ["queues", "[queues.<name>]"]),
        ("[queues]\nimages = 4", ["queues.images = 4", "[queues.<name>]"]),
        ("[[queues.images]]\nlimit = 4", ["queues.images", "a list", "[queues.<name>]"]),
        ("[queues.images]\nretry = 5", ["queues.images.retry = 5", "max_attempts = 3"]),
        ("[supervisor.lease]\nttl = 4", ["supervisor.lease = 'a table'", "duration"]),
        # whole numbers
        ("[supervisor]\nprocesses = -1", ["supervisor.processes = -1", "from 0", '"auto"']),
        ("[supervisor]\nprocesses = true", ["supervisor.processes = True", "whole number"]),
        ("[supervisor]\nprocesses = '4'", ["supervisor.processes = '4'", "whole number"]),
        ("[supervisor]\nprocesses = 2.5", ["supervisor.processes = 2.5", "whole number"]),
        ("[supervisor]\nprocesses = 'all'", ["supervisor.processes = 'all'", '"auto"']),
        ("[supervisor]\nprocesses = 0x" + "f" * 5_000, ["processes", "20000 bits"]),
        ("[supervisor]\nconcurrency = 0", ["supervisor.concurrency = 0", "from 1"]),
        ("[queues.images]\nprocesses = 0", ["queues.images.processes = 0", "shared pool"]),
        ("[queues.images]\nprocesses = -3", ["queues.images.processes = -3", "from 1"]),
        ("[queues.images]\nprocesses = false", ["queues.images.processes = False"]),
        ("[queues.images]\nprocesses = 'auto'", ["queues.images.processes = 'auto'", "from 1"]),
        ("[queues.images]\nlimit = 0", ["queues.images.limit = 0", "fleet queue pause"]),
        ("[queues.images]\nlimit = 1.0", ["queues.images.limit = 1.0", "whole number"]),
        ("[fetch]\nbatch = 0", ["fetch.batch = 0", "1 to 5,000"]),
        ("[fetch]\nbatch = 5001", ["fetch.batch = 5001", "1 to 5,000"]),
        ("[fetch]\nbatch = true", ["fetch.batch = True"]),
        ("[supervisor]\nmax_tasks = 0", ["supervisor.max_tasks = 0", "from 1"]),
        ("[queues.images]\npriority = 10001", ["queues.images.priority = 10001", "10,000"]),
        ("[queues.a]\nretry.max_attempts = 0", ["queues.a.retry.max_attempts = 0", "no retry"]),
        # numbers
        ("[queues.images]\nweight = 0", ["queues.images.weight = 0", "from 0.001"]),
        ("[queues.images]\nweight = -1", ["queues.images.weight = -1"]),
        ("[queues.images]\nweight = nan", ["queues.images.weight = nan"]),
        ("[queues.images]\nweight = inf", ["queues.images.weight = inf"]),
        ("[queues.images]\nweight = true", ["queues.images.weight = True", "a number"]),
        ("[queues.images]\nweight = 0x" + "f" * 5_000, ["queues.images.weight", "bits"]),
        ("[telemetry]\nsupervisor_sample = 1.5", ["telemetry.supervisor_sample = 1.5"]),
        ("[queues.a]\nretry.jitter = 2", ["queues.a.retry.jitter = 2", "from 0 to 1"]),
        ("[queues.a]\nretry.coefficient = 0.5", ["queues.a.retry.coefficient = 0.5"]),
        # durations
        ("[supervisor]\nlease = 15", ["supervisor.lease = 15", '"15s"']),
        ("[supervisor]\nlease = '15'", ["supervisor.lease = '15'", '"15s"']),
        ("[supervisor]\nlease = ''", ["supervisor.lease = ''", '"15s"']),
        ("[supervisor]\nlease = '2h'", ["supervisor.lease = '2h'", "1h"]),
        ("[supervisor]\nlease = 2026-01-01", ["supervisor.lease", '"15s"']),
        ("[supervisor]\nlease = 0x" + "f" * 5_000, ["supervisor.lease", "bits", '"15s"']),
        ("[supervisor]\ndrain_timeout = '-1s'", ["supervisor.drain_timeout = '-1s'", '"15s"']),
        ("[supervisor]\ndrain_timeout = -1", ["supervisor.drain_timeout = -1", '"15s"']),
        ("[supervisor]\nboot_timeout = '0s'", ["supervisor.boot_timeout = '0s'", "1s"]),
        ("[fetch]\nempty_delay = '0s'", ["fetch.empty_delay = '0s'", "10ms"]),
        ("[fetch]\nerror_delay = '1 s'", ["fetch.error_delay = '1 s'", '"15s"']),
        ("[queues.images]\ntimeout = '0s'", ["queues.images.timeout = '0s'", "1ms"]),
        ("[queues.images]\ntimeout = 30", ["queues.images.timeout = 30", '"15s"']),
        ("[defaults]\nkeep = 'forever'", ["defaults.keep = 'forever'", '"15s"']),
        # sizes and rates
        ("[queues.a]\nprocesses = 1\nmax_memory = '1KB'", ["queues.a.max_memory", "64MiB"]),
        ("[queues.a]\nprocesses = 1\nmax_memory = 512", ["queues.a.max_memory = 512", "512MiB"]),
        ("[supervisor]\nmax_memory = '1mb'", ["supervisor.max_memory = '1mb'", "512MiB"]),
        ("[queues.images]\nrate = 100", ["queues.images.rate = 100", '"100/s"']),
        ("[queues.images]\nrate = '0/s'", ["queues.images.rate = '0/s'", '"100/s"']),
        ("[queues.images]\nrate = '9999999999/s'", ["queues.images.rate", "take it away"]),
        # words and flags
        ("[supervisor]\nbalance = 'random'", ["supervisor.balance", '"fair" or "strict"']),
        ("[supervisor]\nbalance = ['fair']", ["supervisor.balance = 'a list'", '"fair"']),
        ("[supervisor]\npreload = 1", ["supervisor.preload = 1", "true or false"]),
        ("[supervisor]\npreload = 'yes'", ["supervisor.preload = 'yes'", "true or false"]),
        ("[queues.a]\non_success = 'keep'", ["queues.a.on_success = 'keep'", '"archive"']),
        ("[queues.a]\nretry.strategy = 'x'", ["queues.a.retry.strategy = 'x'", '"linear"']),
        # addresses
        ("[supervisor]\nhttp = 8787", ["supervisor.http = 8787", "host:port"]),
        ("[supervisor]\nhttp = true", ["supervisor.http = True", "host:port"]),
        ("[supervisor]\nhttp = '8787'", ["supervisor.http = '8787'", "host:port"]),
        ("[supervisor]\nhttp = ':8787'", ["supervisor.http = ':8787'", "0.0.0.0:8787"]),
        ("[supervisor]\nhttp = 'localhost'", ["supervisor.http = 'localhost'", "host:port"]),
        ("[supervisor]\nhttp = 'localhost:http'", ["supervisor.http", "host:port"]),
        ("[supervisor]\nhttp = '127.0.0.1:65536'", ["supervisor.http", "65536"]),
        ("[supervisor]\nhttp = '127.0.0.1:-1'", ["supervisor.http", "host:port"]),
        ("[supervisor]\nhttp = '127.1:8787'", ["supervisor.http", "host:port"]),
        ("[supervisor]\nhttp = '1.2.3.400:8787'", ["supervisor.http", "host:port"]),
        ("[supervisor]\nhttp = '::1:8787'", ["supervisor.http", "[::1]:8787"]),
        ("[supervisor]\nhttp = '[::z]:8787'", ["supervisor.http", "[::1]:8787"]),
        ("[supervisor]\nhttp = 'http://localhost:80'", ["supervisor.http", "host:port"]),
        ("[supervisor]\nconsole = 'a b:80'", ["supervisor.console", "host:port"]),
        ("[supervisor]\nlisten_url = 5432", ["supervisor.listen_url = 5432", "postgresql://"]),
        ("[supervisor]\nlisten_url = 'mysql://h/d'", ["supervisor.listen_url", "postgresql://"]),
        # names of queues
        ("[queues.Images]\nlimit = 1", ["queues.Images", "lower-case"]),
        ("[queues.'']\nlimit = 1", ["queues.''", "1 to 63"]),
        ("[queues.'ä']\nlimit = 1", ["queues.'\\xe4'", "a-z"]),
        ("[queues.'x; drop table']", ["queues.x; drop table", "a-z"]),
        (f"[queues.{'a' * 64}]", ["queues.", "1 to 63"]),
        (f"[queues.{'a' * 9_999}]", ["queues.", "1 to 63"]),
    ],
)
def test_a_table_that_cannot_work_is_refused_with_key_value_and_remedy(text, words):
    with pytest.raises(ConfigError) as refused:
        read(text)
    message = str(refused.value)
    for word in words:
        assert word in message
    assert len(message) < 600
    assert "\n" not in message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[supervisor]\nlease = '2s'", ["supervisor.lease = 2.0", "three beats", "3s or more"]),
        ("[fetch]\nempty_delay = '6s'", ["supervisor.lease = 15.0", "empty_delay", "18s"]),
        ("[queues.a]\nweight = 2\nprocesses = 1", ["queues.a.weight = 2.0", "processes"]),
        ("[queues.a]\nweight = 1\nprocesses = 1", ["queues.a.weight = 1.0", "processes"]),
        ("[queues.a]\nconcurrency = 2", ["queues.a.concurrency = 2", "shared", "limit caps"]),
        ("[queues.a]\nmax_memory = '1GiB'", ["queues.a.max_memory", "supervisor.max_memory"]),
        ("[queues.a]\nmax_tasks = 5", ["queues.a.max_tasks = 5", "supervisor.max_tasks"]),
        ("[queues.shared]\nprocesses = 2", ["queues.shared.processes = 2", "another name"]),
        (
            "[queues.a.retry]\ninitial = '2m'",
            ["queues.a.retry.maximum = 60.0", "initial (120)"],
        ),
        (
            "[supervisor]\nbalance = 'strict'\n[queues.a]\nweight = 3",
            ["queues.a.weight = 3.0", "strict", "fair"],
        ),
        ("[supervisor]\nconsole = '127.0.0.1:8787'", ["supervisor.console", "supervisor.http"]),
        (
            "[supervisor]\nhttp = '0.0.0.0:8788'",
            ["supervisor.console = '127.0.0.1:8788'", "supervisor.http"],
        ),
    ],
)
def test_a_combination_that_cannot_work_is_refused(text, words):
    with pytest.raises(ConfigError) as refused:
        read(text)
    for word in words:
        assert word in str(refused.value)


@pytest.mark.parametrize("queues", ["", "[queues.a]", "[queues.a]\n[queues.b]"])
def test_r04_no_balance_at_all_is_refused_and_explained(queues):
    with pytest.raises(ConfigError) as refused:
        read(f"[supervisor]\nbalance = 'none'\n{queues}")
    for word in ("supervisor.balance = 'none'", '"fair" or "strict"', "starve"):
        assert word in str(refused.value)


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "10.0.0.7", "[::]", "console.example", "localhost.example", "[::2]"]
)
def test_a_console_that_others_can_reach_needs_a_token(host):
    text = f"[supervisor]\nconsole = '{host}:9000'"
    with pytest.raises(ConfigError, match="FLEET_SUPERVISOR_CONSOLE_TOKEN"):
        read(text)

    assert read(text, {"FLEET_SUPERVISOR_CONSOLE_TOKEN": SECRET}).supervisor.console is not None


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "[::1]", "localhost", "LOCALHOST"])
def test_a_console_on_loopback_needs_none(host):
    assert read(f"[supervisor]\nconsole = '{host}:9000'").supervisor.console is not None


# Bad variables and flags --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"FLEET_SUPERVISOR_LEASE": "15"}, ["supervisor.lease = '15'", "FLEET_SUPERVISOR_LEASE"]),
        ({"FLEET_SUPERVISOR_LEASE": ""}, ["supervisor.lease", "FLEET_SUPERVISOR_LEASE", "empty"]),
        ({"FLEET_SUPERVISOR_LEASE": "  "}, ["supervisor.lease", "empty"]),
        ({"FLEET_SUPERVISOR_LEAS": "5s"}, ["FLEET_SUPERVISOR_LEAS", "FLEET_SUPERVISOR_LEASE?"]),
        ({"FLEET_SUPERVISR_LEASE": "5s"}, ["did you mean FLEET_SUPERVISOR_LEASE?"]),
        ({"FLEET_QUEUE_A_LIMIT": "5"}, ["did you mean FLEET_QUEUES_A_LIMIT?"]),
        ({"FLEET_SUPERVISOR": "5"}, ["FLEET_SUPERVISOR", "PROCESSES"]),
        ({"FLEET_SUPERVISOR_PROCESSES": "four"}, ["supervisor.processes = 'four'", "whole"]),
        ({"FLEET_SUPERVISOR_PROCESSES": "²"}, ["supervisor.processes", "whole"]),
        ({"FLEET_SUPERVISOR_PROCESSES": "9" * 9_999}, ["supervisor.processes", "characters"]),
        ({"FLEET_SUPERVISOR_PRELOAD": "maybe"}, ["supervisor.preload = 'maybe'", "true or false"]),
        ({"FLEET_FETCH_BATCH": "1e3"}, ["fetch.batch = '1e3'", "FLEET_FETCH_BATCH"]),
        ({"FLEET_QUEUES_A_LIMIT": "0"}, ["queues.a.limit = 0", "FLEET_QUEUES_A_LIMIT"]),
        ({"FLEET_QUEUES_A_LIMT": "1"}, ["did you mean FLEET_QUEUES_A_LIMIT?"]),
        ({"FLEET_QUEUES_LIMIT": "1"}, ["FLEET_QUEUES_LIMIT", "no such key"]),
        ({"FLEET_QUEUES_7UP_LIMIT": "1"}, ["FLEET_QUEUES_7UP_LIMIT", "lower-case letter"]),
        ({"FLEET_QUEUES_A____B_LIMIT": "1"}, ["FLEET_QUEUES_A____B_LIMIT", "___ is ."]),
        ({"FLEET_QUEUES_a_LIMIT": "1"}, ["capitals", "FLEET_QUEUES_A_LIMIT"]),
        ({"fleet_supervisor_lease": "5s"}, ["capitals", "FLEET_SUPERVISOR_LEASE"]),
        ({"FLEET_QUEUES_BULK_MAIL_LIMIT": "1"}, ["bulk-mail", "FLEET_QUEUES_BULK__MAIL_LIMIT"]),
        ({"FLEET_QUEUES_A_PROCESSES": "2", "FLEET_QUEUES_A_WEIGHT": "2"}, ["queues.a.weight"]),
    ],
)
def test_a_variable_that_cannot_work_is_refused(env, words):
    with pytest.raises(ConfigError) as refused:
        read("[queues.bulk-mail]\nlimit = 2", env)
    for word in words:
        assert word in str(refused.value)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"supervisor.lease": "x"}, ["supervisor.lease = 'x'", "a flag"]),
        ({"supervisor.leese": "5s"}, ["supervisor.leese", "did you mean lease"]),
        ({"supervizor.lease": "5s"}, ["supervizor", "did you mean supervisor"]),
        ({"queues.a.limt": 5}, ["queues.a.limt = 5", "did you mean limit"]),
        ({"queues.limit": 5}, ["queues.limit = 5", "queues.<name>.limit"]),
        ({"queues.A.limit": 5}, ["queues.A", "lower-case"]),
        ({"": 5}, ["no such key"]),
        ({"supervisor": 5}, ["supervisor", "no such key"]),
    ],
)
def test_a_flag_that_cannot_work_is_refused(flags, words):
    with pytest.raises(ConfigError) as refused:
        run_settings({}, {}, flags)
    for word in words:
        assert word in str(refused.value)


@pytest.mark.parametrize(
    ("text", "env"),
    [
        (f"[supervisor]\nconsole_tokn = '{SECRET}'", {}),
        (f"[supervisor]\ntoken = '{SECRET}'", {}),
        (f"[supervisor]\npassword = '{SECRET}'", {}),
        (f"[supervisor]\nconsole_token = '{SECRET} '", {}),
        (f"[supervisor]\nconsole_token = ['{SECRET}']", {}),
        (f"[supervisor]\nlisten_ulr = 'postgresql://u:{SECRET}@h/d'", {}),
        (f"[supervisor]\nlisten_url = 'mysql://u:{SECRET}@h/d'", {}),
        (f"[supervisor]\nlisten_url = 'postgresql://u:{SECRET}@h:x/d'", {}),
        (f"[supervisor]\nhttp = 'postgresql://u:{SECRET}@h/d'", {}),
        ("", {"FLEET_SUPERVISOR_CONSOLE_TOKN": SECRET}),
        ("", {"FLEET_SUPERVISOR_CONSOLE_TOKEN": f"{SECRET} x"}),
        ("", {"FLEET_SUPERVISOR_CONSOLE_TOKEN": "hunter2"}),
        ("", {"FLEET_SUPERVISR_CONSOLE_TOKEN": SECRET}),
        ("[supervisor]\nconsole = '0.0.0.0:1'", {"Fleet_Supervisor_Console_Token": SECRET}),
    ],
)
def test_no_refusal_shows_a_secret(text, env):
    with pytest.raises(ConfigError) as refused:
        read(text, env)
    assert "hunter2" not in str(refused.value)
    assert "hunter2" not in repr(refused.value.value)


def test_no_setting_prints_a_secret():
    found = read(
        f"[supervisor]\nlisten_url = 'postgresql://u:{SECRET}@h/d'",
        {"FLEET_SUPERVISOR_CONSOLE_TOKEN": SECRET},
    )

    assert found.supervisor.console_token == SECRET
    assert found.supervisor.listen_url is not None
    assert found.supervisor.listen_url.url.endswith(f"u:{SECRET}@h/d")
    assert SECRET not in repr(found)
    assert SECRET not in str(found.supervisor.listen_url)


# Whatever is in there -----------------------------------------------------------------------------

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.just(date(2026, 1, 1))
    | st.just(20_000).map(lambda bits: 1 << bits)  # more digits than Python prints
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["auto", "5s", "0s", "64MiB", "1/s", "fair", "none", "off", "0.0.0.0:1"])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=4,
)


def tables_of(keys: object) -> st.SearchStrategy[object]:
    words = sorted({key.partition(".")[0] for key in keys} | {"retry", ""})
    retry = st.dictionaries(st.sampled_from([key[6:] for key in SCHEMA["defaults"]]), SCALARS)
    named = st.dictionaries(st.sampled_from(words) | st.text(max_size=3), VALUES | retry)
    return named | VALUES


TABLES = st.fixed_dictionaries(
    {},
    optional={
        "supervisor": tables_of(SCHEMA["supervisor"]),
        "fetch": tables_of(SCHEMA["fetch"]),
        "queues": st.dictionaries(
            st.sampled_from(["a", "b-c", "d.e", "shared"]) | st.text(max_size=3),
            tables_of(SCHEMA["queues"]),
            max_size=3,
        ),
        "telemetry": tables_of(SCHEMA["telemetry"]),
        "defaults": tables_of(SCHEMA["defaults"]),
        "other": VALUES,
    },
)
SPOTS = [Spot(t, "a" if t == "queues" else None, key) for t in SCHEMA for key in SCHEMA[t]]
NAMES = st.sampled_from([variable(spot) for spot in SPOTS]) | st.text(max_size=9).map(
    "FLEET_QUEUES_{}".format
)


@settings(max_examples=400, deadline=None)
@given(
    tables=TABLES,
    env=st.dictionaries(NAMES, st.text() | st.sampled_from(["1", "5s", "64MiB"]), max_size=2),
    flags=st.dictionaries(
        st.sampled_from([str(spot) for spot in SPOTS]) | st.text(max_size=9), SCALARS, max_size=2
    ),
)
def test_garbage_gives_settings_or_a_config_error_and_nothing_else(tables, env, flags):
    try:
        found = run_settings(tables, env, flags)
    except ConfigError as error:
        assert str(error)
    else:
        assert isinstance(found, RunSettings)


@settings(max_examples=400, deadline=None)
@given(spot=st.sampled_from(SPOTS), value=VALUES)
def test_garbage_under_one_right_key_is_refused_by_the_name_of_that_table(spot, value):
    table, tables = {}, {spot.table: {"a": {}} if spot.queue else {}}
    inner = tables[spot.table]["a"] if spot.queue else tables[spot.table]
    table = inner.setdefault("retry", {}) if spot.key.startswith("retry.") else inner
    table[spot.key.removeprefix("retry.")] = value
    try:
        assert isinstance(run_settings(tables, {}), RunSettings)
    except ConfigError as error:
        assert error.key.startswith(str(spot).removesuffix(spot.key))
