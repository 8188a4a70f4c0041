"""The servers of the test suite."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from fleet.errors import EmbeddedError
from tests.process.embedded.users import (
    SOURCE,
    gone,
    run,
    said,
)
from tests.servers import TestServer, chosen_version, start_server, wait_until


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
