"""Started by the first user, joined by the others, stopped after the last, however they end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
from pathlib import Path

import asyncpg
import pytest

from fleet.embedded import account, serve
from fleet.embedded.keeper import is_free
from tests.process.embedded.users import (
    gone,
    keepers,
    run,
    said,
    user,
)
from tests.servers import wait_until


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
