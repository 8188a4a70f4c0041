from __future__ import annotations

from inspect import signature
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.config import (
    DatabaseUrl,
    Embedded,
    Rate,
    find_database,
    load,
    mask,
    parse_duration,
    parse_rate,
    parse_size,
)
from fleet.errors import ConfigError, NoDatabase

URL = "postgresql://shop:hunter2@db.example/shop"


@pytest.fixture
def project(tmp_path):
    def write(text: str | bytes) -> Path:
        data = text.encode() if isinstance(text, str) else text
        (tmp_path / "fleet.toml").write_bytes(data)
        return tmp_path

    return write


# Bad files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("app = ]", ["TOML", "line 1"]),
        (b"app = '\xff'", ["UTF-8"]),
        ("aap = 'shop:app'", ["aap", "did you mean app"]),
        ("databse_url = 'postgresql://h/d'", ["databse_url", "did you mean database_url"]),
        ("[supervsior]\nlease = '15s'", ["supervsior", "did you mean supervisor"]),
        ("[queue.images]\nlimit = 1", ["queue", "did you mean queues"]),
        ("zzz = 1", ["zzz", "app, database_url, embedded"]),
        ("app = 3", ["app", "3", "module:attribute"]),
        ("app = 'shop.jobs'", ["app", "shop.jobs", "module:attribute"]),
        ("app = ''", ["app", "module:attribute"]),
        ("database_url = 5432", ["database_url", "5432", "postgresql://"]),
        ("database_url = ''", ["database_url", "empty"]),
        ("database_url = '  '", ["database_url", "empty"]),
        ("database_url = 'mysql://h/d'", ["database_url", "mysql", "postgresql://"]),
        ("database_url = 'db.example:5432/shop'", ["database_url", "postgresql://"]),
        ("database_url = 'host=h dbname=d'", ["database_url", "postgresql://"]),
        ("database_url = 'postgresql://h:54x/d'", ["database_url", "54x", "port"]),
        ("database_url = 'postgresql://h:99999/d'", ["database_url", "99999", "port"]),
        ("database_url = 'postgresql://a:1,b:x/d'", ["database_url", "port"]),
        ("embedded = 1", ["embedded", "true or false"]),
        ("embedded = 'yes'", ["embedded", "true or false"]),
        ("embedded = true\ndatabase_url = 'postgresql://h/d'", ["embedded", "database_url", "one"]),
        ("supervisor = 4", ["supervisor", "[supervisor]"]),
        ("queues = ['images']", ["queues", "[queues"]),
    ],
)
def test_a_file_that_cannot_work_is_refused_with_the_remedy(project, text, words):
    with pytest.raises(ConfigError) as refused:
        load(project(text), {})
    for word in words:
        assert word in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        "databse_url = 'postgresql://u:hunter2@h/d'",
        "database_url = ['postgresql://u:hunter2@h/d']",
        "database_url = 'mysql://u:hunter2@h/d'",
        "database_url = 'postgresql://u:hunter2@h:x/d'",
        "database_url = 'host=h password=hunter2'",
        "password = 'hunter2'",
        "[database]\npassword = 'hunter2'",
        "supervisor = 'postgresql://u:hunter2@h/d'",
        "database_url = 'postgresql://u:hunter2@h/d'\nembedded = true",
    ],
)
def test_no_refusal_shows_a_password(project, text):
    with pytest.raises(ConfigError) as refused:
        load(project(text), {})
    assert "hunter2" not in str(refused.value)
    assert "hunter2" not in repr(refused.value.value)


def test_a_file_that_was_named_must_be_there(tmp_path):
    with pytest.raises(ConfigError, match="no such file"):
        load(tmp_path, {}, file=tmp_path / "other.toml")


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"FLEET_DATABASE_URL": ""}, ["FLEET_DATABASE_URL", "empty"]),
        ({"DATABASE_URL": ""}, ["DATABASE_URL", "empty"]),
        ({"DATABASE_URL": "sqlite:///db.sqlite3"}, ["DATABASE_URL", "FLEET_DATABASE_URL"]),
        ({"FLEET_EMBEDDED": "perhaps"}, ["FLEET_EMBEDDED", "perhaps", "1 or 0"]),
        ({"FLEET_APP": "shop"}, ["FLEET_APP", "module:attribute"]),
    ],
)
def test_a_variable_that_cannot_work_is_refused(project, env, words):
    # Falling through to the file would turn a secret that is missing into an empty database.
    with pytest.raises(ConfigError) as refused:
        load(project("embedded = true"), env)
    for word in words:
        assert word in str(refused.value)


def test_nothing_configured_names_the_choices(tmp_path):
    with pytest.raises(NoDatabase, match="FLEET_DATABASE_URL"):
        find_database(None, start=tmp_path, env={})


@pytest.mark.parametrize("explicit", ["", "mysql://h/d", "shop"])
def test_a_wrong_argument_is_refused_and_nothing_else_is_tried(tmp_path, explicit):
    with pytest.raises(ConfigError, match="database_url"):
        find_database(explicit, start=tmp_path, env={"FLEET_DATABASE_URL": URL})


# Where the database is ----------------------------------------------------------------------------


def test_precedence(project):
    root = project("database_url = 'postgresql://file/d'")
    env = {"FLEET_DATABASE_URL": "postgresql://fleet-env/d", "DATABASE_URL": "postgresql://env/d"}

    assert url(find_database("postgresql://flag/d", start=root, env=env)) == "postgresql://flag/d"
    assert url(find_database(None, start=root, env=env)) == "postgresql://fleet-env/d"
    del env["FLEET_DATABASE_URL"]
    assert url(find_database(None, start=root, env=env)) == "postgresql://env/d"
    del env["DATABASE_URL"]
    assert url(find_database(None, start=root, env=env)) == "postgresql://file/d"


def test_a_source_that_is_not_used_is_not_judged(project):
    env = {"FLEET_DATABASE_URL": URL, "DATABASE_URL": "sqlite:///db.sqlite3"}
    assert url(find_database(None, start=project(""), env=env)) == URL


def test_the_file_is_searched_upwards(project):
    root = project("app = 'shop.jobs:app'\nembedded = true")
    deep = root / "src" / "shop"
    deep.mkdir(parents=True)
    settings = load(deep, {})
    assert settings.root == root
    assert settings.file == root / "fleet.toml"
    assert settings.app == "shop.jobs:app"
    assert settings.database == Embedded(root, source=str(root / "fleet.toml"))


def test_the_nearest_file_wins(project):
    root = project("app = 'outer:app'")
    inner = root / "inner"
    inner.mkdir()
    (inner / "fleet.toml").write_text("app = 'inner:app'")
    assert load(inner, {}).app == "inner:app"


def test_without_a_file_the_start_folder_is_the_project(tmp_path):
    settings = load(tmp_path, {})
    assert (settings.root, settings.file, settings.app) == (tmp_path, None, None)
    assert settings.database is None


def test_embedded_only_where_asked_for(project, tmp_path):
    assert isinstance(find_database(None, start=project("embedded = true"), env={}), Embedded)
    with pytest.raises(NoDatabase):
        find_database(None, start=project("embedded = false"), env={})
    on = find_database(None, start=tmp_path, env={"FLEET_EMBEDDED": "1"})
    assert on == Embedded(tmp_path, source="FLEET_EMBEDDED")


def test_an_address_in_the_environment_beats_an_embedded_project(project):
    root = project("embedded = true")
    assert url(find_database(None, start=root, env={"FLEET_DATABASE_URL": URL})) == URL
    assert url(find_database(None, start=root, env={"DATABASE_URL": URL})) == URL
    env = {"FLEET_DATABASE_URL": URL, "FLEET_EMBEDDED": "1"}
    assert url(find_database(None, start=root, env=env)) == URL


def test_asking_fleet_for_embedded_beats_what_other_programs_read(tmp_path):
    env = {"DATABASE_URL": URL, "FLEET_EMBEDDED": "1"}
    assert isinstance(find_database(None, start=tmp_path, env=env), Embedded)


def test_embedded_can_be_turned_off(project):
    with pytest.raises(NoDatabase):
        find_database(None, start=project("embedded = true"), env={"FLEET_EMBEDDED": "0"})


@pytest.mark.parametrize(
    ("given_url", "normal"),
    [
        ("postgres://h/d", "postgresql://h/d"),
        ("postgresql+asyncpg://u:p@h/d", "postgresql://u:p@h/d"),
        ("postgresql+psycopg://h/d", "postgresql://h/d"),
        ("postgres+psycopg2://h/d", "postgresql://h/d"),
        ("PostgreSQL://h/d", "postgresql://h/d"),
        (" postgresql://h/d\n", "postgresql://h/d"),
        ("postgresql:///d?host=/run/postgresql", "postgresql:///d?host=/run/postgresql"),
        ("postgresql://u@[::1]:5432/d", "postgresql://u@[::1]:5432/d"),
        ("postgresql://", "postgresql://"),
        ("postgres://h/d?connect_timeout=5", "postgresql://h/d"),
        (
            "postgres://h/d?sslmode=require&channel_binding=require",
            "postgresql://h/d?sslmode=require",
        ),
        (
            "postgresql://u:p@a:5432,b:5433/d?target_session_attrs=read-write",
            "postgresql://u:p@a:5432,b:5433/d?target_session_attrs=read-write",
        ),
    ],
)
def test_the_usual_spellings_are_accepted(given_url, normal):
    assert url(find_database(given_url)) == normal


def test_several_hosts_reach_asyncpg():
    from asyncpg import connect_utils

    found = find_database("postgres://u:p@a:5432,b:5433/d?target_session_attrs=read-write")
    parse = connect_utils._parse_connect_dsn_and_args
    others = set(signature(parse).parameters) - {"dsn"}
    addresses, params = parse(dsn=url(found), **dict.fromkeys(others))
    assert addresses == [("a", 5432), ("b", 5433)]
    assert params.target_session_attrs.value == "read-write"


def test_the_environment_beats_the_file_for_the_application(project):
    assert load(project("app = 'a:app'"), {"FLEET_APP": "b:app"}).app == "b:app"


def test_tables_are_handed_back_as_they_are(project):
    settings = load(project("[supervisor]\nlease = '5s'\n[queues.images]\nlimit = 20"), {})
    assert settings.tables == {"supervisor": {"lease": "5s"}, "queues": {"images": {"limit": 20}}}


# Passwords ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dsn", "masked"),
    [
        (URL, "postgresql://shop:***@db.example/shop"),
        ("postgresql://shop@h/d", "postgresql://shop@h/d"),
        ("postgresql://h:5432/d", "postgresql://h:5432/d"),
        ("postgresql://[::1]:5432/d", "postgresql://[::1]:5432/d"),
        ("postgresql://:pw@h/d", "postgresql://:***@h/d"),
        ("postgresql://u:a@b/c?d#e@h/d", "postgresql://u:***@h/d"),
        ("postgresql://u@tenant:pw@h/d", "postgresql://u@tenant:***@h/d"),
        ("no answer from postgresql://u:pw@h/d", "no answer from postgresql://u:***@h/d"),
        ("postgresql://h/d?user=u&password=pw&x=1", "postgresql://h/d?user=u&password=***&x=1"),
        ("postgresql://h/d?pass%77ord=pw", "postgresql://h/d?pass%77ord=***"),
        ("postgresql://h/d?sslpassword=pw", "postgresql://h/d?sslpassword=***"),
        ("host=h password=pw dbname=d", "host=h password=*** dbname=d"),
        (r"password = 'a b\' c' host=h", "password = *** host=h"),
        (r"password=a\ b host=h", "password=*** host=h"),
        ("password='unterminated secret", "password=***"),
        ("PASSWORD=pw", "PASSWORD=***"),
    ],
)
def test_mask(dsn, masked):
    assert mask(dsn) == masked


secrets = st.text(min_size=1).map(lambda text: f"<S3cr{text}3t>")


@given(secrets)
def test_no_password_survives_the_mask(secret):
    for dsn in (
        f"postgresql://u:{quote(secret, safe='')}@h/d",
        f"postgresql://u:{secret}@h/d",
        f"postgresql://h/d?password={quote(secret, safe='')}",
        "password='" + secret.replace("\\", "\\\\").replace("'", "\\'") + "' host=h",
    ):
        masked = mask(dsn)
        assert "S3cr" not in masked
        assert "3t>" not in masked
        assert "3t%3E" not in masked


def test_a_database_prints_without_its_password():
    found = find_database(URL)
    assert "hunter2" not in f"{found} {found!r} {[found]}"
    assert url(found) == URL


# Durations, sizes, rates --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("250ms", 0.25),
        ("15s", 15.0),
        ("1.5m", 90.0),
        ("2h", 7200.0),
        ("1h30m", 5400.0),
        ("14d", 1_209_600.0),
        ("0s", 0.0),
    ],
)
def test_durations(text, seconds):
    assert parse_duration("fetch.empty_delay", text) == seconds


@pytest.mark.parametrize(
    "value",
    [
        *("", "15", "s", "-1s", "15 seconds", "1h 30m", "15S", "nan", "infs", "1e3s", "٣s"),
        *("9" * 400 + "s", "1s1s", "1s1h", "99999999d", "15s\n", "1.s", ".5s"),
        *(15, 1.5, True, None, ["15s"]),
    ],
)
def test_what_is_no_duration_is_refused(value):
    with pytest.raises(ConfigError, match=r'^supervisor\.lease = .*"15s"'):
        parse_duration("supervisor.lease", value)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1B", 1),
        ("512MiB", 512 * 1024**2),
        ("512Mi", 512 * 1024**2),
        ("1.5GiB", 1_610_612_736),
        ("2GB", 2_000_000_000),
        ("4KiB", 4096),
    ],
)
def test_sizes(text, size):
    parsed = parse_size("queues.images.max_memory", text)
    assert parsed == size
    assert type(parsed) is int


@pytest.mark.parametrize(
    "value",
    ["", "512", "MiB", "-1MiB", "0B", "0.3B", "1 MiB", "1XB", "9" * 400 + "B", 512, True, None],
)
def test_what_is_no_size_is_refused(value):
    with pytest.raises(ConfigError, match=r'^queues\.images\.max_memory = .*"512MiB"'):
        parse_size("queues.images.max_memory", value)


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("100/s", Rate(100, 1.0)),
        ("30/m", Rate(30, 60.0)),
        ("1000/h", Rate(1000, 3600.0)),
        ("5/10s", Rate(5, 10.0)),
    ],
)
def test_rates(text, rate):
    assert parse_rate("queues.images.rate", text) == rate


@pytest.mark.parametrize(
    "value",
    [
        *("", "100", "/s", "100/", "0/s", "-1/s", "1.5/s", "100/0s", "100 / s", "9" * 400 + "/s"),
        *("100/fortnight", "1/2", 100, True, None),
    ],
)
def test_what_is_no_rate_is_refused(value):
    with pytest.raises(ConfigError, match=r'^queues\.images\.rate = .*"100/s"'):
        parse_rate("queues.images.rate", value)


def test_a_rate_knows_its_pace():
    assert parse_rate("r", "30/m").per_second == 0.5


def url(found: DatabaseUrl | Embedded) -> str:
    assert isinstance(found, DatabaseUrl)
    return found.url
