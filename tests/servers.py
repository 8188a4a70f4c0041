"""Throwaway PostgreSQL servers for the tests, made of the same parts as the embedded one.

    with start_server(chosen_version(), tmp_path_factory.mktemp("pg")) as server:
        await asyncpg.connect(server.dsn)

A keeper stops the server and removes its files when the test process is gone, also by kill -9.
Nothing is durable, anybody on this machine may log in, and the role is a superuser.
"""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from fleet.embedded import Server
from fleet.embedded.binaries import Binaries, find
from fleet.embedded.home import folder_of, locate
from fleet.embedded.keeper import Orders, is_free, try_lock
from fleet.embedded.server import spawn

SETTINGS = {
    "max_connections": "200",
    "shared_buffers": "128MB",
    "max_wal_size": "4GB",
    "max_prepared_transactions": "10",
    "wal_level": "replica",
}


class TestServer:
    """A running server that tests may stop, crash and start again."""

    __test__ = False  # not a test, whatever its name says to pytest

    def __init__(self, server: Server, binaries: Binaries) -> None:
        self._server = server
        self.binaries = binaries
        self.dsn = server.plain_url

    @property
    def pid(self) -> int | None:
        """The postmaster's process id; None while it does not run."""
        return self._server.pid

    @property
    def data(self) -> Path:
        """The data directory."""
        return self._server.home.data

    @property
    def log(self) -> Path:
        """The server's log since its last start."""
        return self._server.home.log

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop it: SIGINT is fast, SIGQUIT immediate, SIGTERM smart, SIGKILL a crash."""
        pid = self.pid
        if pid is not None:
            os.kill(pid, how)
        wait_until(lambda: is_free(self._server.home.server_lock))

    def start(self) -> None:
        """Start it again; ``dsn`` stays the same unless somebody took the port meanwhile."""
        self._server.acquire()
        self.dsn = self._server.plain_url

    def restart(self, how: signal.Signals = signal.SIGQUIT) -> None:
        """Stop and start it, as ``pg_ctl restart -m immediate`` does."""
        self.stop(how)
        self.start()


def chosen_version() -> int:
    """Return the major version that FLEET_TEST_PG asks for: 15, 16, or 18 by default."""
    return int(os.environ.get("FLEET_TEST_PG") or 18)


@contextlib.contextmanager
def start_server(version: int, directory: Path) -> Iterator[TestServer]:
    """Run a server whose files go into ``directory``; EmbeddedError if it is not installed."""
    binaries = find(version)
    if os.geteuid() == 0:
        # The server runs as another user, whom pytest's folders keep out.
        directory = Path(tempfile.mkdtemp(prefix="fleet-test-pg-"))
        directory.chmod(0o711)
    directory.mkdir(parents=True, exist_ok=True)
    with (
        _thrown_away(directory),
        Server(
            directory, version=version, durable=False, auth="trust", settings=SETTINGS
        ) as server,
    ):
        yield TestServer(server, binaries)


@contextlib.contextmanager
def _thrown_away(directory: Path) -> Iterator[None]:
    home = locate(folder_of(directory))
    user = try_lock(home.users_lock, shared=True)
    assert user is not None, f"{directory} has another user"
    # Before the server: initdb takes a second, in which this process may be killed.
    janitor = Orders(str(home.users_lock), str(home.server_lock), str(home.data))
    spawn(janitor._replace(remove=(str(directory.resolve()),)), home.log)
    try:
        yield
    finally:
        os.close(user)
        wait_until(lambda: not directory.exists())


def wait_until(condition: Callable[[], object], timeout: float = 30.0) -> None:
    """Wait for a condition; an AssertionError says that it did not come."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"it did not come true in {timeout:g}s"
        time.sleep(0.02)
