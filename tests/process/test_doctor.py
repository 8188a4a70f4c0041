"""``fleet doctor``: every finding, provoked for real; and a section of the runbook for each."""

from __future__ import annotations

import asyncio
import re
import socket
import threading
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import pytest

from fleet import Context
from fleet.cli.checks import _server
from fleet.store import beats, control
from fleet.store.health import Server
from fleet.store.migrations import LATEST
from fleet.store.registry import register
from tests.pages import ROOT
from tests.process.commands import Commands
from tests.servers import wait_until

SOURCES = [ROOT / "fleet" / "cli" / f"{name}.py" for name in ("checks", "rounds", "doctor")]
SLUGS = {
    slug
    for source in SOURCES
    for slug in re.findall(r'(?:Finding|ok)\(\s*"([a-z-]+)"', source.read_text())
}


def visit(fleet, *args, code=0, **env):
    """Return what it found, as {about: [(severity, says, do)]}."""
    found: dict[str, list[tuple[str, str, str]]] = {}
    for finding in fleet.json("doctor", *args, code=code, **env)["findings"]:
        told = (finding["severity"], finding["says"], finding["do"] or "")
        found.setdefault(finding["about"], []).append(told)
    return found


def one(found, about, severity):
    """Return the words of the only finding of that severity, and what to do."""
    (said,) = [told for told in found[about] if told[0] == severity]
    return f"{said[1]} → {said[2]}"


def as_role(dsn, role):
    parts = urlsplit(dsn)
    return urlunsplit(parts._replace(netloc=f"{role}@{parts.netloc.rpartition('@')[2]}"))


@pytest.fixture
async def role(db, fleet):
    """A role that may do nothing yet, gone after the test."""
    await db.execute("create role patient login")
    yield "patient"
    await db.execute("drop owned by patient; drop role patient")


async def set_for_database(db, setting, value):
    name = await db.fetchval("select current_database()")
    await db.execute(f"alter database {name} set {setting} = '{value}'")


# ── as a whole ───────────────────────────────────────────────────────────────────────────────────


def test_every_finding_has_a_section_in_the_runbook():
    page = (ROOT / "docs" / "runbook.md").read_text(encoding="utf-8")
    headings = set(re.findall(r"^### ([a-z-]+)$", page, re.MULTILINE))

    assert headings >= SLUGS
    assert len(SLUGS) >= 22


async def test_a_healthy_fleet_has_a_page_of_ok_and_exits_with_0(fleet, app, db):
    owner = await beats.register(db, "web-1", 1, 15.0)
    await beats.beat(db, owner, "running", [], ["billing"])
    await register(db, app)
    await app.jobs["charge"].enqueue("valid")
    await db.execute("select fleet.maintain()")

    said = fleet("doctor").stdout
    found = visit(fleet)

    assert re.search(r"^ok +connection +postgresql://", said, re.MULTILINE)
    assert re.search(r"^ok +schema +version", said, re.MULTILINE)
    # A test server is not durable, and that is said with what to do and where to read on.
    assert "→ set synchronous_commit = on" in said
    assert "docs/runbook.md#durability" in said
    well = {about for about, told in found.items() if all(t[0] == "ok" for t in told)}
    # The defaults are longer than a drain, there is no fleet.toml, and see above.
    assert found.keys() - well == {"drain", "config", "durability"}


# ── the way to it ────────────────────────────────────────────────────────────────────────────────


def test_a_database_that_is_away_is_an_error_and_no_password_is_shown(fleet):
    url = "postgresql://me:hunter2@127.0.0.1:1/none"
    said = fleet("doctor", "--database-url", url, code=1)

    assert re.search(r"^error +connection .*me:\*\*\*@127.0.0.1:1", said.stdout, re.MULTILINE)
    assert "hunter2" not in said.stdout + said.stderr


def test_no_database_at_all(folder):
    found = visit(Commands(folder, None), code=1)
    assert "no database is configured" in one(found, "connection", "error")


@pytest.mark.parametrize(
    ("toml", "says"),
    [
        ("[supervisor\n", "is not valid TOML"),
        ('[supervisor]\nlease = "1s"\n', "at least three beats must fit in it"),
        ("[supervisor]\nleese = 1\n", "did you mean lease?"),
    ],
)
def test_a_file_that_cannot_work(fleet, toml, says):
    (fleet.folder / "fleet.toml").write_text(toml)
    assert says in one(visit(fleet, code=1), "config", "error")


def test_a_good_file_and_none(fleet):
    assert "no fleet.toml" in one(visit(fleet), "config", "note")
    (fleet.folder / "fleet.toml").write_text('[supervisor]\nlease = "20s"\n')
    assert str(fleet.folder) in one(visit(fleet), "config", "ok")


# ── the server ───────────────────────────────────────────────────────────────────────────────────


def test_a_server_that_is_too_old():
    (finding,) = _server(Server(14, "14.9", False, "me", True, True))
    assert (finding.severity, finding.about) == ("error", "server")


async def test_a_server_that_takes_no_writes(fleet, db):
    await set_for_database(db, "default_transaction_read_only", "on")
    assert "takes no writes" in one(visit(fleet, code=1), "server", "error")


async def test_the_schema_is_missing_old_changed_or_new(folder, fleet, empty, db):
    assert "fleet migrate" in one(visit(Commands(folder, empty), code=1), "schema", "error")

    row = await db.fetchrow("delete from fleet.migration where version = $1 returning *", LATEST)
    assert f"this release needs {LATEST}" in one(visit(fleet, code=1), "schema", "error")

    insert = "insert into fleet.migration (version, name, checksum) values ($1, $2, $3)"
    await db.execute(insert, LATEST, row["name"], "other")
    assert "was changed after" in one(visit(fleet, code=1), "schema", "error")

    await db.execute("update fleet.migration set checksum = $1 where version = $2", row[2], LATEST)
    await db.execute(insert, LATEST + 1, "future", "")
    assert "newer than this release" in one(visit(fleet), "schema", "note")


async def test_roles_by_what_they_may_do(fleet, db, dsn, role):
    there = ["--database-url", as_role(dsn, role)]
    assert "fleet grant worker patient" in one(visit(fleet, *there, code=1), "role", "error")

    for level, may in (("client", "only enqueue"), ("app", "enqueue, look and cancel")):
        fleet("grant", level, role)
        assert any(may in told[1] for told in visit(fleet, *there)["role"])

    fleet("grant", "worker", role)
    assert "patient (worker)" in one(visit(fleet, *there), "role", "ok")


async def test_what_is_not_durable(fleet, db):
    words = [told[1] for told in visit(fleet)["durability"]]
    assert any("fsync" in said for said in words)
    assert any("synchronous_commit is off" in said for said in words)

    await set_for_database(db, "synchronous_commit", "on")

    assert len(visit(fleet)["durability"]) == 1


async def test_an_isolation_in_which_claims_conflict(fleet, db):
    await set_for_database(db, "default_transaction_isolation", "serializable")
    assert "read committed" in one(visit(fleet, code=1), "isolation", "error")


async def test_timeouts_of_the_server_that_cut_steps(fleet, app, db):
    slow = app.job("slow", queue="billing")

    @slow.step(transactional=True, timeout=60)
    async def book(ctx: Context) -> None: ...

    await register(db, app)
    await set_for_database(db, "idle_in_transaction_session_timeout", "5s")
    said = one(visit(fleet), "timeouts", "warning")
    assert "idle_in_transaction_session_timeout is 5.0 s" in said
    assert "slow.book (60s)" in said

    await set_for_database(db, "idle_in_transaction_session_timeout", "0")
    await set_for_database(db, "statement_timeout", "1s")
    assert "statement_timeout is 1.0 s" in one(visit(fleet), "timeouts", "warning")


async def test_too_few_connections(fleet, db, dsn, role):
    fleet("grant", "worker", role)
    await db.execute("alter role patient connection limit 3")
    said = one(visit(fleet, "--database-url", as_role(dsn, role)), "connections", "warning")
    assert "room for 2 more of 3" in said

    for number in range(60):
        await beats.register(db, f"web-{number}", 1, 60.0)
    assert "60 hosts" in one(visit(fleet), "connections", "warning")


@contextmanager
def deaf_pooler(dsn):
    """A proxy that hands on everything but notifications, as a pooler in transaction mode does."""
    parts = urlsplit(dsn)
    listening = socket.create_server(("127.0.0.1", 0))

    def forward(source, sink):
        while data := source.recv(65536):
            sink.sendall(data)
        sink.close()

    def hear(source, sink):
        with source.makefile("rb") as stream:
            while len(head := stream.read(5)) == 5:
                body = stream.read(int.from_bytes(head[1:]) - 4)
                if head[:1] != b"A":
                    sink.sendall(head + body)
        sink.close()

    def serve():
        while True:
            try:
                client, _ = listening.accept()
            except OSError:
                return
            server = socket.create_connection((parts.hostname, parts.port))
            # asyncpg asks for TLS first; the answer is one byte without a length.
            asked = client.recv(8)
            if asked[4:] == b"\x04\xd2\x16\x2f":
                client.sendall(b"N")
            else:
                server.sendall(asked)
            for target, args in ((forward, (client, server)), (hear, (server, client))):
                threading.Thread(target=target, args=args, daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    netloc = f"{parts.netloc.rpartition('@')[0]}@127.0.0.1:{listening.getsockname()[1]}"
    try:
        yield urlunsplit(parts._replace(netloc=netloc))
    finally:
        listening.close()


def test_a_pooler_that_swallows_notifications(fleet, dsn):
    assert "LISTEN hears NOTIFY" in one(visit(fleet), "pooler", "ok")
    with deaf_pooler(dsn) as url:
        found = visit(fleet, "--database-url", url)
        assert "pooler in transaction mode" in one(found, "pooler", "warning")
        past = {"FLEET_SUPERVISOR_LISTEN_URL": dsn}
        assert one(visit(fleet, "--database-url", url, **past), "pooler", "ok")
    away = {"FLEET_SUPERVISOR_LISTEN_URL": "postgresql://me@127.0.0.1:1/none"}
    assert "listen_url" in one(visit(fleet, code=1, **away), "pooler", "error")


async def test_clocks_that_differ(fleet, fleet_clock):
    assert one(visit(fleet), "clock", "ok")
    await fleet_clock.advance(5)
    assert "5.0 s ahead" in one(visit(fleet), "clock", "note")
    await fleet_clock.advance(minutes=5)
    assert "5m 5s ahead" in one(visit(fleet), "clock", "warning")


# ── the tables ───────────────────────────────────────────────────────────────────────────────────


async def test_a_table_that_is_not_vacuumed(fleet, app, db):
    await db.execute("alter table fleet.task set (autovacuum_enabled = off)")
    assert "reset (autovacuum_enabled)" in one(visit(fleet), "autovacuum", "warning")

    await app.jobs["charge"].enqueue_many(["valid"] * 12_000)
    await db.execute("delete from fleet.task")
    await db.execute("select pg_stat_force_next_flush()")
    warnings = [told for told in visit(fleet)["autovacuum"] if told[0] == "warning"]
    assert any("dead" in told[1] for told in warnings)


async def test_autovacuum_off_for_the_whole_server(fleet, db):
    await db.execute("alter system set autovacuum = off")
    try:
        await db.execute("select pg_reload_conf()")
        await asyncio.to_thread(
            wait_until, lambda: any(told[0] == "warning" for told in visit(fleet)["autovacuum"])
        )
        assert "autovacuum is off" in one(visit(fleet), "autovacuum", "warning")
    finally:
        await db.execute("alter system reset autovacuum")
        await db.execute("select pg_reload_conf()")


async def test_an_old_snapshot_and_who_holds_it(fleet, db, dsn, role):
    await db.execute("set application_name = 'report'")
    await db.execute("begin isolation level repeatable read")
    await db.execute("select count(*) from fleet.task")
    pid = await db.fetchval("select pg_backend_pid()")

    found = visit(fleet, "--patience", "1ms")
    assert f"session pid {pid} report" in one(found, "idle-in-transaction", "warning")
    assert f"pg_terminate_backend({pid})" in one(found, "idle-in-transaction", "warning")
    assert found["snapshot"][0][0] == "ok"  # said once
    # One that is at work and holds its snapshot.
    working = asyncio.create_task(db.execute("select pg_sleep(60)"))
    found = await asyncio.to_thread(visit, fleet, "--patience", "1ms")
    assert f"pid {pid} report of " in one(found, "snapshot", "warning")
    assert found["idle-in-transaction"][0][0] == "ok"
    assert visit(fleet, "--patience", "1h")["snapshot"][0][0] == "ok"
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)
    await db.execute("rollback")

    fleet("grant", "worker", role)
    blind = visit(fleet, "--database-url", as_role(dsn, role))
    assert "pg_read_all_stats" in one(blind, "snapshot", "note")


async def test_a_prepared_transaction_that_was_forgotten(fleet, db):
    await db.execute("begin; insert into fleet.key values ('q', 'k'); prepare transaction 'lost-1'")
    try:
        said = one(visit(fleet, "--patience", "1ms"), "snapshot", "warning")
        assert "prepared transaction lost-1" in said
        assert "rollback prepared 'lost-1'" in said
    finally:
        await db.execute("rollback prepared 'lost-1'")


async def test_partitions_that_are_missing_and_rows_without_one(fleet, db, fleet_clock):
    assert len(visit(fleet)["partitions"]) == 2  # the template of test databases has none at all
    await db.execute("select fleet.maintain()")
    assert one(visit(fleet), "partitions", "ok")
    await db.execute(
        """
        insert into fleet.attempt (keep_until, task_id, fence, started_at, ended_at, visit, attempt,
                                   queue, job, step, outcome)
        values (fleet.now() + interval '90 days', 1, 1, now(), now(), 1, 1, 'q', 'j', 's', 'failed')
        """
    )
    assert "kept for over 3 weeks" in one(visit(fleet), "partitions", "note")

    await fleet_clock.advance(days=6)
    said = [told[1] for told in visit(fleet)["partitions"]]
    assert "fleet.archive has partitions for 1 more days" in said

    await fleet_clock.advance(days=70)
    said = [told[1] for told in visit(fleet)["partitions"]]
    assert "1 rows in fleet.attempt_default that have no day there" in said


# ── the fleet ────────────────────────────────────────────────────────────────────────────────────


async def host(db, *queues, name="web-1", lease=15.0, silent=0):
    owner = await beats.register(db, name, 1, lease)
    await beats.beat(db, owner, "running", [], list(queues))
    await db.execute(
        "update fleet.owner set beaten_at = fleet.now() - $2 * interval '1 s' where id = $1",
        owner,
        silent,
    )


async def test_hosts_that_are_gone_or_late(fleet, db):
    assert "no host runs tasks" in one(visit(fleet), "hosts", "note")

    await host(db, silent=60)
    assert "start a host" in one(visit(fleet), "hosts", "warning")
    await host(db, name="web-2")
    assert "a live host takes them over" in one(visit(fleet), "hosts", "warning")

    await host(db, name="web-3", lease=60.0, silent=40)
    found = visit(fleet)
    assert "web-3" in one(found, "lease", "warning")
    assert "different leases: 15.0 s, 1m 0s" in one(found, "lease", "note")


async def test_work_that_nobody_will_take(fleet, app, db):
    await app.jobs["charge"].enqueue("valid")
    assert "1 task waits in billing" in one(visit(fleet, code=1), "unserved", "error")

    await host(db, "billing")
    found = visit(fleet)
    assert one(found, "unserved", "ok")
    assert "charge" in one(found, "unknown", "warning")
    await register(db, app)
    assert one(visit(fleet), "unknown", "ok")

    await db.execute("update fleet.task set releases = 5")
    assert "task 1 (charge.charge)" in one(visit(fleet), "released", "warning")


async def test_a_queue_that_was_set_by_hand(fleet, db):
    await control.pause(db, "a", None, "ada")
    assert "a: paused (by ada" in one(visit(fleet), "set-by-hand", "note")


async def test_settings_that_do_not_fit_the_jobs(fleet, app, db):
    await register(db, app)
    (fleet.folder / "fleet.toml").write_text("[queues.biling]\nweight = 2\n")
    found = visit(fleet)
    assert "jobs name billing" in one(found, "strays", "warning")
    assert "charge.charge (900s)" in one(found, "drain", "note")

    (fleet.folder / "fleet.toml").write_text('[supervisor]\ndrain_timeout = "20m"\n')
    found = visit(fleet)
    assert one(found, "drain", "ok")
    assert one(found, "strays", "ok")


def test_every_finding_is_provoked_above():
    tests = Path(__file__).read_text(encoding="utf-8")
    provoked = set(re.findall(r'one\(.*?"([a-z-]+)", "(?:note|warning|error)"\)', tests))

    assert provoked >= SLUGS - {"durability", "server"}  # these two in other words
