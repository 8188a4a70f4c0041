"""Ports, passwords, versions, and where the files are."""

from __future__ import annotations

import socket
import stat
import subprocess

import asyncpg
import psutil
import pytest

from fleet.embedded import binaries, cluster, serve
from fleet.embedded.keeper import is_free
from tests.process.embedded.users import (
    gone,
    keepers,
    run,
)
from tests.servers import wait_until


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


def test_what_lies_in_the_home_folder_for_other_servers_is_not_read(project, tmp_path, monkeypatch):
    certificates = tmp_path / ".postgresql"
    certificates.mkdir()
    for name in ("postgresql.crt", "postgresql.key", "root.crt", "root.crl"):
        (certificates / name).write_text("not a certificate\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    with serve(project) as server:
        assert run(server.url, "select answer from kept") == 42


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
