"""The embedded server under real signals. As root and as a normal user; nothing may be left."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import resource
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import psutil
import pytest

import fleet
from fleet.embedded import account, binaries, cluster, home, serve
from fleet.embedded.keeper import is_free, postmaster
from fleet.errors import EmbeddedError
from tests.servers import TestServer, chosen_version, start_server, wait_until

ROOT = os.geteuid() == 0
as_root = pytest.mark.skipif(not ROOT, reason="only root hands the server to another user")
SOURCE = Path(fleet.__file__ or "").parent.parent

# A user in a process of its own: says where the server is, and stays until its stdin ends.
USER = """
import sys
from pathlib import Path
from fleet.embedded import serve
from fleet.errors import EmbeddedError
try:
    with serve(Path(sys.argv[1])) as server:
        print(server.url, server.pid, flush=True)
        sys.stdin.read()
except EmbeddedError as error:
    print(error, flush=True)
"""


def new_folder() -> Path:
    """Make a project's folder that the server's user can reach."""
    folder = Path(tempfile.mkdtemp(prefix="fleet-test-"))
    folder.chmod(0o755)
    return folder


def wait_until_idle(folder: Path) -> None:
    """Nothing may run in a project that nobody uses."""
    lock = folder / ".fleet" / "postgres" / "server.lock"
    wait_until(lambda: not lock.exists() or is_free(lock))
    wait_until(lambda: not keepers(folder))


@pytest.fixture
def empty() -> Iterator[Path]:
    folder = new_folder()
    yield folder
    wait_until_idle(folder)
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def veteran() -> Iterator[Path]:
    folder = new_folder()
    with serve(folder, durable=False) as server:
        run(server.url, "create table kept as select 42 as answer")
    wait_until_idle(folder)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def project(veteran: Path) -> Iterator[Path]:
    """A project whose server has run before, for tests that leave it as it was."""
    yield veteran
    wait_until_idle(veteran)


@pytest.fixture
def doomed(empty: Path, veteran: Path) -> Path:
    """A copy of it, for tests that do harm."""
    subprocess.run(["cp", "-a", str(veteran / ".fleet"), str(empty)], check=True)
    return empty


def run(url: str, sql: str) -> Any:
    async def ask() -> Any:
        connection = await asyncpg.connect(url)
        try:
            return await connection.fetchval(sql)
        finally:
            await connection.close()

    return asyncio.run(ask())


@contextlib.contextmanager
def user(project: Path, **options: Any) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", USER, str(project)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        **{"cwd": SOURCE, **options},
    )
    with process:
        yield process
        process.communicate()


def somebody_else() -> dict[str, Any]:
    """Return how to run this interpreter as nobody, if that user can reach it."""
    options = {"user": "nobody", "group": pwd.getpwnam("nobody").pw_gid, "extra_groups": []}
    try:
        subprocess.run([sys.executable, "-c", "import fleet"], cwd=SOURCE, check=True, **options)
    except (PermissionError, subprocess.CalledProcessError):
        pytest.skip("this interpreter is closed to the user nobody")
    return options


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def keepers(project: Path) -> list[psutil.Process]:
    """Return the keepers of a project, not counting one that is about to let go of its parent."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or [])
        if "keeper.py" in line and f"{project}/.fleet" in line:
            found.append(process)
    return found


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


# What cannot work ---------------------------------------------------------------------------------


def test_no_postgresql_at_all_says_what_to_install(empty, monkeypatch):
    monkeypatch.setattr(binaries, "WHEEL", "no_such_wheel")
    monkeypatch.setattr(binaries, "SYSTEM", ())
    monkeypatch.setenv("PATH", "")
    with pytest.raises(EmbeddedError, match=r"pip install 'pgfleet\[embedded\]'"):
        serve(empty).acquire()


def test_a_version_that_is_not_here_names_those_that_are(empty):
    with pytest.raises(EmbeddedError, match=r"PostgreSQL 12 is not installed.*18\.\d+ \(wheel\)"):
        serve(empty, version=12).acquire()


def test_data_of_a_version_that_is_not_here(doomed):
    (serve(doomed).home.data / "PG_VERSION").write_text("12\n")
    with pytest.raises(EmbeddedError, match=r"made by PostgreSQL 12.*there is 18.*remove"):
        serve(doomed).acquire()


def test_data_of_another_version_than_asked_for(project):
    with pytest.raises(EmbeddedError, match=r"made by PostgreSQL 18, and 16 is asked for"):
        serve(project, version=16).acquire()


def test_a_folder_that_is_no_data_directory(doomed):
    (serve(doomed).home.data / "PG_VERSION").unlink()
    with pytest.raises(EmbeddedError, match="has no PG_VERSION"):
        serve(doomed).acquire()


def test_a_password_that_is_gone(doomed):
    (serve(doomed).home.folder / "password").unlink()
    with pytest.raises(EmbeddedError, match=r"password is gone"):
        serve(doomed).acquire()


def test_damaged_data_says_what_the_server_said(doomed):
    (serve(doomed).home.data / "global" / "pg_control").write_bytes(b"nonsense")
    with pytest.raises(EmbeddedError, match=r"did not start: .*(FATAL|PANIC).*server\.log"):
        serve(doomed).acquire()


def test_a_project_that_is_not_there(tmp_path):
    with pytest.raises(EmbeddedError, match="not a folder"):
        serve(tmp_path / "nowhere").acquire()


def test_a_url_is_only_to_be_had_while_it_is_held(empty):
    with pytest.raises(EmbeddedError, match="not held"):
        _ = serve(empty).url


def test_a_folder_that_may_not_be_written_in(empty):
    empty.chmod(0o555)
    with user(empty, **(somebody_else() if ROOT else {})) as process:
        assert "This user may not write" in said(process)
    empty.chmod(0o755)


@as_root
def test_the_server_of_another_user(project):
    with user(project, **somebody_else()) as process:
        assert "is of the user root: run as that one" in said(process)


def test_no_space_left_leaves_nothing_half_made(empty):
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, resource.RLIM_INFINITY))

    with user(empty, preexec_fn=limit) as process:
        assert "initdb failed" in (word := said(process))
        assert "too large" in word
    assert not list((empty / ".fleet" / "postgres").glob("data*"))


def test_root_without_anybody_to_run_the_server(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(account, "CANDIDATES", ("no-such-user",))
    with pytest.raises(EmbeddedError, match="no user no-such-user"):
        account.choose(tmp_path / "data")


def test_a_server_started_by_hand_is_not_touched(project):
    at = serve(project).home
    who = account.choose(at.data)
    command = [binaries.find(18).postgres, "-D", at.data, "-p", cluster.free_port(None)]
    by_hand = subprocess.Popen(
        [*map(str, command), "-c", "unix_socket_directories="],
        stderr=subprocess.DEVNULL,
        cwd="/",
        **who._drop(),
    )
    try:
        wait_until(lambda: (found := postmaster(at.data)) and found.ready)
        with pytest.raises(EmbeddedError, match=rf"pid {by_hand.pid}.*pg_ctl stop"):
            serve(project).acquire()
        assert by_hand.poll() is None
    finally:
        by_hand.send_signal(signal.SIGINT)
        by_hand.wait()


# Start, join, stop --------------------------------------------------------------------------------


def test_made_once_kept_and_stopped(empty):
    words: list[str] = []
    with serve(empty, progress=words.append) as server:
        first, pid = server.url, server.pid
        run(server.url, "create table kept as select 42 as answer")
        assert run(server.url, "show fsync") == "on"
    assert pid is not None
    wait_until(lambda: gone(pid))

    with serve(empty, progress=words.append) as server:
        assert server.url == first
        assert run(server.url, "select answer from kept") == 42
    assert words == [f"creating a PostgreSQL 18 for this project in {server.home.storage}"]
    assert (empty / ".fleet" / ".gitignore").read_text().endswith("*\n")


def test_the_first_users_start_one_server_between_them(empty):
    with contextlib.ExitStack() as stack:
        users = [stack.enter_context(user(empty)) for _ in range(4)]
        places = {said(process) for process in users}
        assert len(places) == 1
        assert len(keepers(empty)) == 1
    url, pid = places.pop().split()
    assert url.startswith("postgresql://")
    wait_until(lambda: gone(int(pid)))


def test_it_runs_until_the_last_user_is_gone(project):
    with user(project) as other:
        pid = int(said(other).split()[1])
        with serve(project) as server:
            assert server.pid == pid
        assert not gone(pid)
        with serve(project) as server:
            assert run(server.url, "select answer from kept") == 42
    wait_until(lambda: gone(pid))


def test_a_user_killed_with_9_is_gone_too(project):
    with user(project) as other:
        pid = int(said(other).split()[1])
        other.kill()
    wait_until(lambda: gone(pid))


def test_killed_in_the_middle_of_initdb_the_next_one_starts_over(empty):
    folder = empty / ".fleet" / "postgres"
    with user(empty) as first:
        wait_until((folder / "data.partial" / "PG_VERSION").exists)
        first.kill()
    with serve(empty) as server:
        assert run(server.url, "select 1") == 1
    assert not list(folder.glob("*.partial"))


def test_a_killed_server_is_started_again_for_its_users(project):
    with serve(project) as server, serve(project) as other:
        before = server.pid
        assert before is not None
        os.kill(before, signal.SIGKILL)
        wait_until(lambda: gone(before))
        server.acquire()
        assert server.pid != before
        assert run(server.url, "select answer from kept") == 42
        assert run(other.acquire().url, "select answer from kept") == 42


def test_backends_that_survive_a_killed_server_are_waited_for(project):
    async def crash_under_a_connection() -> None:
        with serve(project) as server:
            busy = await asyncpg.connect(server.url)
            waiting = asyncio.create_task(busy.execute("select pg_sleep(60)"))
            look = await asyncpg.connect(server.url)
            asleep = "select 1 from pg_stat_activity where wait_event = 'PgSleep'"
            while not await look.fetchval(asleep):
                pass
            pid = server.pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            await asyncio.to_thread(wait_until, lambda: gone(pid))
            await asyncio.to_thread(server.acquire)
            fresh = await asyncpg.connect(server.url)
            assert await fresh.fetchval("select answer from kept") == 42
            await fresh.close()
            with pytest.raises((asyncpg.PostgresError, OSError)):
                await waiting
            look.terminate()

    asyncio.run(crash_under_a_connection())


def test_a_pid_that_went_to_another_process_after_a_reboot(project):
    at = serve(project).home
    who = account.choose(at.data)
    innocent = subprocess.Popen(["sleep", "60"], cwd="/", **who._drop())
    try:
        lines = [innocent.pid, at.data, 1, 5432, "", "127.0.0.1", "12345 67890", "ready"]
        (at.data / "postmaster.pid").write_text("".join(f"{line}\n" for line in lines))
        who.give(at.data / "postmaster.pid")
        with serve(project) as server:
            assert run(server.url, "select answer from kept") == 42
        assert innocent.poll() is None
    finally:
        innocent.kill()
        innocent.wait()


def test_a_lost_keeper_is_replaced_by_the_next_user(project):
    with serve(project) as server:
        pid = server.pid
        kill_keeper(project)
        with serve(project) as other:
            assert other.pid == pid
            assert len(keepers(project)) == 1
    assert pid is not None
    wait_until(lambda: gone(pid))


def test_a_lost_keeper_is_replaced_by_the_last_user(project):
    with serve(project) as server:
        pid = server.pid
        kill_keeper(project)
    assert pid is not None
    wait_until(lambda: gone(pid))


def test_a_keeper_told_to_stop_waits_for_the_users(project):
    with serve(project) as server:
        pid = server.pid
        assert pid is not None
        [keeper] = keepers(project)
        for sig in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            keeper.send_signal(sig)
        assert run(server.url, "select answer from kept") == 42
        assert keepers(project) == [keeper]
    wait_until(lambda: gone(pid))


def test_a_project_removed_under_its_server(doomed):
    with serve(doomed) as server:
        pid = server.pid
        shutil.rmtree(doomed / ".fleet")
        with serve(doomed) as fresh:
            assert run(fresh.url, "select to_regclass('kept')") is None
    assert pid is not None
    wait_until(lambda: gone(pid))


def kill_keeper(project: Path) -> None:
    [keeper] = keepers(project)
    keeper.kill()
    wait_until(lambda: is_free(serve(project).home.keeper_lock))


# Ports, passwords, places -------------------------------------------------------------------------


def test_a_port_that_was_taken_meanwhile(project):
    with socket.socket() as squatter:
        squatter.bind(("127.0.0.1", 0))
        squatter.listen()
        taken = squatter.getsockname()[1]
        serve(project).home.keep_port(taken)
        with serve(project) as server:
            assert f":{taken}/" not in server.url
            assert run(server.url, "select answer from kept") == 42
            assert f":{server.home.port}/" in server.url


def test_somebody_quicker_takes_the_port_between_the_look_and_the_start(project, monkeypatch):
    with socket.socket() as squatter:
        squatter.bind(("127.0.0.1", 0))
        squatter.listen()
        looks = iter([squatter.getsockname()[1]])
        monkeypatch.setattr(
            cluster, "free_port", lambda last, real=cluster.free_port: next(looks, 0) or real(last)
        )
        with serve(project) as server:
            assert run(server.url, "select answer from kept") == 42


def test_nobody_gets_in_without_the_password(project):
    with serve(project) as server:
        port = server.home.port
        for wrong in ("fleet", "fleet:guess", "postgres"):
            with pytest.raises((asyncpg.InvalidPasswordError, asyncpg.PostgresError)):
                run(
                    f"postgresql://{wrong}@127.0.0.1:{port}/fleet?passfile=/nonexistent", "select 1"
                )
        mode = (server.home.folder / "password").stat().st_mode
        assert stat.S_IMODE(mode) == 0o600
        assert server.home.password not in server.home.log.read_text()
        for process in (*keepers(project), psutil.Process(server.pid)):
            assert server.home.password not in " ".join(process.cmdline())


def test_a_project_deeper_than_a_socket_path_may_be(empty, veteran):
    deep = empty.joinpath(*["a-folder-with-a-rather-long-name"] * 6)
    deep.mkdir(parents=True)
    subprocess.run(["cp", "-a", str(veteran / ".fleet"), str(deep)], check=True)
    with serve(deep) as server:
        assert run(server.url, "select answer from kept") == 42
    wait_until(lambda: is_free(server.home.server_lock))


def test_not_durable_where_asked_for(project):
    with serve(project, durable=False) as server:
        assert run(server.url, "show fsync") == "off"
        assert run(server.url, "show synchronous_commit") == "off"
        assert run(server.url, "show full_page_writes") == "off"


def test_data_is_run_by_the_version_that_made_it(empty):
    with serve(empty, version=16) as server:
        pid = server.pid
    assert pid is not None
    wait_until(lambda: gone(pid))
    with serve(empty) as server:
        assert run(server.url, "show server_version").startswith("16.")


def test_without_the_wheel_the_newest_of_the_system_is_taken(monkeypatch, tmp_path):
    for version in (14, 15, 17):
        folder = tmp_path / str(version) / "bin"
        folder.mkdir(parents=True)
        for name in ("postgres", "initdb"):
            (folder / name).write_text(f"#!/bin/sh\necho '{name} (PostgreSQL) {version}.3'\n")
            (folder / name).chmod(0o755)
    monkeypatch.setattr(binaries, "WHEEL", "no_such_wheel")
    monkeypatch.setattr(binaries, "SYSTEM", (f"{tmp_path}/*/bin",))
    monkeypatch.setenv("PATH", "")
    assert [found.version for found in binaries.installed()] == [17, 15]
    assert binaries.find().release == "17.3"


# Root ---------------------------------------------------------------------------------------------


@as_root
def test_root_runs_the_server_as_somebody_else(project):
    with serve(project) as server:
        assert psutil.Process(server.pid).uids().real != 0
        assert psutil.Process(server.pid).gids().real != 0


@as_root
def test_root_joins_the_data_of_a_normal_user(empty):
    nobody = pwd.getpwnam("nobody")
    os.chown(empty, nobody.pw_uid, nobody.pw_gid)
    with user(empty, **somebody_else()) as process:
        pid = int(said(process).split()[1])
        with serve(empty) as server:
            assert server.pid == pid
    wait_until(lambda: gone(pid))
    with serve(empty) as server:
        assert psutil.Process(server.pid).uids().real == nobody.pw_uid


@as_root
def test_root_in_a_folder_closed_to_the_server(empty):
    # A clone and its virtual environment under /root: neither the project nor the programs can
    # be reached by the user who has to run the server.
    closed = empty / "root"
    site = closed / "site"
    site.mkdir(parents=True)
    closed.chmod(0o700)
    shutil.copytree(SOURCE / "fleet", site / "fleet")
    wheel = binaries.find(18).folder.parent
    shutil.copytree(wheel, site / binaries.WHEEL / wheel.name)
    (site / binaries.WHEEL / "__init__.py").touch()
    shutil.copytree(wheel.parent.parent / f"{binaries.WHEEL}.libs", site / f"{binaries.WHEEL}.libs")
    elsewhere = (
        "from fleet.embedded import binaries, home\nfrom pathlib import Path\n"
        f"binaries.CACHE = Path({str(empty / 'cache')!r})\n"
        f"home.STATE = Path({str(empty / 'state')!r})\n"
    )
    for _ in range(2):
        process = subprocess.run(
            [sys.executable, "-c", elsewhere + USER, str(closed)],
            input="",
            capture_output=True,
            text=True,
            check=True,
            cwd=closed,
            env={**os.environ, "PYTHONPATH": str(site)},
        )
        pid = int(process.stdout.split()[1])
        wait_until(lambda pid=pid: gone(pid))
    at = home.locate(home.folder_of(closed))
    assert at.data.is_relative_to(empty / "state")
    assert (at.storage / "project").read_text().strip() == str(at.folder)
    assert len(list((empty / "cache").iterdir())) == 1
    assert str(empty / "cache") in (at.data / "postmaster.opts").read_text()
    wait_until(lambda: is_free(at.server_lock))


# The servers of the test suite --------------------------------------------------------------------


def test_a_throwaway_server_comes_and_goes(tmp_path):
    with start_server(chosen_version(), tmp_path / "pg") as server:
        assert run(server.dsn, "show server_version_num")[:2] == str(chosen_version())
        assert run(server.dsn, "select rolsuper from pg_roles where rolname = user") is True
        before, folder = server.pid, server.data.parents[2]
        server.restart(signal.SIGKILL)
        assert server.pid not in (None, before)
        assert run(server.dsn, "select 1") == 1
        server.stop()
        assert server.pid is None
        server.start()
    assert not folder.exists()


def test_a_throwaway_server_of_a_version_that_is_not_here(tmp_path):
    with pytest.raises(EmbeddedError, match="12 is not installed"), start_server(12, tmp_path):
        pass


SUITE = """
import sys
from pathlib import Path
from tests.servers import start_server, TestServer
with start_server(18, Path(sys.argv[1])) as server:
    print(server.data.parents[2], server.pid, flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("when", ["initdb", "running"])
def test_a_test_run_killed_with_9_leaves_nothing(when):
    base = Path(tempfile.mkdtemp(prefix="fleet-test-"))
    process = subprocess.Popen(
        [sys.executable, "-c", SUITE, str(base / "pg")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=SOURCE,
        env={**os.environ, "TMPDIR": str(base)},
    )
    base.chmod(0o755)
    with process:
        if when == "running":
            pid = int(said(process).split()[1])
        else:
            wait_until(lambda: list(base.glob("*/.fleet/postgres/data.partial/PG_VERSION")))
        process.kill()
    wait_until(lambda: not list(base.iterdir()))
    if when == "running":
        assert gone(pid)
    base.rmdir()


def test_the_name_of_the_helper_does_not_make_it_a_test():
    assert TestServer.__test__ is False
