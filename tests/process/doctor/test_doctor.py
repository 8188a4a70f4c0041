"""``fleet doctor``: every finding, provoked for real; and a section of the runbook for each."""

from __future__ import annotations

import re
import socket
import threading
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import pytest

from fleet import Context
from fleet.cli.checks import _server
from fleet.store import beats
from fleet.store.health import Server
from fleet.store.migrations import LATEST
from fleet.store.registry import register
from tests.pages import ROOT
from tests.process.commands import Commands
from tests.process.doctor.visits import SLUGS, as_role, one, set_for_database, visit

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


def test_every_finding_is_provoked_above():
    tests = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("*.py"))
    provoked = set(re.findall(r'one\(.*?"([a-z-]+)", "(?:note|warning|error)"\)', tests))

    assert provoked >= SLUGS - {"durability", "server"}  # these two in other words
