"""As root: the server is somebody else's."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys

import psutil

from fleet.embedded import binaries, home, serve
from fleet.embedded.keeper import is_free
from tests.process.embedded.users import (
    SOURCE,
    USER,
    as_root,
    gone,
    said,
    user,
)
from tests.servers import wait_until


@as_root
def test_root_runs_the_server_as_somebody_else(project):
    with serve(project) as server:
        assert psutil.Process(server.pid).uids().real != 0
        assert psutil.Process(server.pid).gids().real != 0


@as_root
def test_root_joins_the_data_of_a_normal_user(empty, somebody):
    nobody = pwd.getpwnam("nobody")
    os.chown(empty, nobody.pw_uid, nobody.pw_gid)
    with user(empty, somebody) as process:
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
