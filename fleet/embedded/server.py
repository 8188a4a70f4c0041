"""The embedded server as its users see it: started by the first, joined by the others.

acquire   start.lock ─▶ users.lock (shared) ─▶ running? ──yes──▶ join
                        │ waits while a keeper    └─no─▶ initdb if need be ─▶ keeper ─▶ ready
                        └ is stopping it
release   give up users.lock; the keeper notices when it was the last
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from fleet.embedded import account, binaries, cluster, keeper
from fleet.embedded.home import Home, folder_of, locate, settle
from fleet.embedded.keeper import Orders, Postmaster, postmaster, try_lock
from fleet.errors import EmbeddedError

_log = logging.getLogger("fleet.embedded")

PATIENCE = 120.0  # initdb on a slow disk, and recovery after a crash
_LOOK = 0.02
_STARTS = 5  # each with another port, before giving up


class Server:
    """A project's PostgreSQL. Use it as a context manager, or ``acquire()`` and ``release()`` it.

    A Server is one user: acquiring it again only makes sure that the server runs. Forked children
    inherit the hold; what they do with the server is covered until they end.
    """

    def __init__(
        self,
        root: Path,
        *,
        version: int | None = None,
        durable: bool = True,
        progress: Callable[[str], None] | None = None,
        auth: str = "scram-sha-256",
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.root = root
        self._wanted = version
        self._say = progress or _log.info
        self._auth = auth
        durability = {} if durable else cluster.NOT_DURABLE
        self._settings = {**cluster.SETTINGS, **durability, **(settings or {})}
        self._home: Home | None = None
        self._users: int | None = None
        self._url: str | None = None

    @property
    def url(self) -> str:
        """Where the database is, password included. Never print it: see ``fleet.config.mask``."""
        if self._url is None:
            raise EmbeddedError("this server is not held: use `with serve(...) as server`")
        # It has no certificate, and a driver that is not told so reads those of the home folder.
        return f"{self._url}?sslmode=disable"

    @property
    def plain_url(self) -> str:
        """The same without options, for drivers that would not know them (SQLAlchemy's asyncpg)."""
        return self.url.partition("?")[0]

    @property
    def home(self) -> Home:
        """Where its files are."""
        return self._home or locate(folder_of(self.root))

    @property
    def pid(self) -> int | None:
        """The postmaster's process id while the server runs."""
        running = postmaster(self.home.data)
        return running.pid if running else None

    def acquire(self) -> Self:
        """Join the server, and start it if it does not run; takes seconds the first time."""
        deadline = time.monotonic() + PATIENCE
        try:
            folder = folder_of(self.root)
            with self._starting(locate(folder), deadline):
                self._hold(deadline)
                self._url = self._url_of(self._ensure(deadline))
        except OSError as error:
            self.release()
            raise EmbeddedError(self._explain(error)) from error
        except BaseException:
            self.release()
            raise
        return self

    def release(self) -> None:
        """Leave the server; it stops when the last user has left. Safe to call twice."""
        if self._users is None:
            return
        if self._home is not None:
            with contextlib.suppress(OSError, EmbeddedError):
                self._replace_lost_keeper(self._home)
        os.close(self._users)
        self._users, self._url = None, None

    def __enter__(self) -> Self:
        return self.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    @contextlib.contextmanager
    def _starting(self, at: Home, deadline: float) -> Iterator[None]:
        self._home = at
        lock = _wait_for(lambda: try_lock(at.start_lock), deadline)
        if lock is None:
            raise EmbeddedError(
                f"another process has been starting the server of {self.root} for "
                f"{PATIENCE:g}s; look at {at.log}"
            )
        try:
            # Read again: the one that was ahead may have settled the data elsewhere.
            self._home = locate(at.folder)
            yield
        finally:
            os.close(lock)

    def _hold(self, deadline: float) -> None:
        if self._users is None:
            lock = self.home.users_lock
            self._users = _wait_for(lambda: try_lock(lock, shared=True), deadline)
        if self._users is None:
            raise EmbeddedError(
                f"the server of {self.root} has been stopping for {PATIENCE:g}s; "
                f"look at {self.home.log}"
            )

    def _ensure(self, deadline: float) -> Postmaster:
        """Bring the server to where it accepts connections under the eyes of a keeper."""
        starts = 0
        while time.monotonic() < deadline:
            at = self.home
            running = postmaster(at.data)
            watch = try_lock(at.keeper_lock)
            if watch is None:
                if running is not None and running.ready:
                    return running
            else:
                with _closing(watch), _closing(try_lock(at.server_lock)) as free:
                    if free is not None:
                        self._check_last_start(starts)
                        self._start(watch, free)
                        starts += 1
                    elif running is not None:
                        spawn(Orders(**self._places(), keeper_fd=watch), at.log)
                    # else the last backends of a killed server are about to notice: wait for them
            time.sleep(_LOOK)
        raise EmbeddedError(
            f"the PostgreSQL of {self.root} was not ready after {PATIENCE:g}s: "
            f"{cluster.failure(self.home.log)}. Its log: {self.home.log}"
        )

    def _check_last_start(self, starts: int) -> None:
        if starts == 0 or (starts < _STARTS and cluster.port_was_taken(self.home.log)):
            return
        raise EmbeddedError(
            f"the PostgreSQL of {self.root} did not start: {cluster.failure(self.home.log)}. "
            f"Its log: {self.home.log}"
        )

    def _start(self, watch: int, free: int) -> None:
        found = self._find_programs()
        who = account.choose(self.home.data)
        at = self._home = settle(self.home, who)
        programs = binaries.reachable(found, who)
        if at.version is None:
            cluster.create(at, programs, who, auth=self._auth, lock=free, say=self._say)
        cluster.clear_stale_pid(at.data)
        if at.log.exists():
            at.log.replace(at.log.with_suffix(".log.old"))
        port = cluster.free_port(at.port)
        at.keep_port(port)
        command = cluster.command(at, programs, port, self._settings)
        orders = Orders(**self._places(), keeper_fd=watch, server_fd=free, command=command)
        spawn(orders._replace(uid=who.uid, gid=who.gid), at.log)

    def _find_programs(self) -> binaries.Binaries:
        data, made_by, wanted = self.home.data, self.home.version, self._wanted
        if made_by is not None and wanted not in (None, made_by):
            raise EmbeddedError(
                f"{data} was made by PostgreSQL {made_by}, and {wanted} is asked for: another "
                f"major version cannot read it. Ask for {made_by}, or remove {data} to start with "
                f"an empty database."
            )
        try:
            return binaries.find(made_by or wanted)
        except EmbeddedError as error:
            if made_by is None:
                raise
            raise EmbeddedError(
                f"{data} was made by PostgreSQL {made_by}, which only PostgreSQL {made_by} can "
                f"read: {error} To start with an empty database instead, remove {data}."
            ) from error

    def _places(self) -> dict[str, Any]:
        at = self.home
        return {
            "users": str(at.users_lock),
            "server": str(at.server_lock),
            "data": str(at.data),
        }

    def _replace_lost_keeper(self, at: Home) -> None:
        with _closing(try_lock(at.keeper_lock)) as watch:
            if watch is not None and postmaster(at.data) is not None:
                spawn(Orders(**self._places(), keeper_fd=watch), at.log)

    def _url_of(self, running: Postmaster) -> str:
        secret = f":{self.home.password}" if self._auth != "trust" else ""
        return f"postgresql://{cluster.NAME}{secret}@{cluster.HOST}:{running.port}/{cluster.NAME}"

    def _explain(self, error: OSError) -> str:
        text = f"the PostgreSQL of {self.root} cannot be used: {error}."
        if error.errno in (errno.EACCES, errno.EPERM):
            folder = self.root.resolve() / ".fleet"
            if not folder.exists():
                return f"{text} This user may not write in {self.root}."
            return (
                f"{text} {folder} is of the user {folder.owner()}: run as that one, or remove it."
            )
        if error.errno == errno.ENOSPC:
            return text + " The disk is full."
        return text


def serve(
    root: Path,
    *,
    version: int | None = None,
    durable: bool = True,
    progress: Callable[[str], None] | None = None,
) -> Server:
    """Return the PostgreSQL of a project, kept in its ``.fleet`` folder; it starts when it is used.

    >>> with serve(Path(".")) as server:                               # doctest: +SKIP
    ...     print(server.url)

    ``version`` asks for a major version. ``durable=False`` turns fsync off, for tests. ``progress``
    is told what takes long; without it that is logged.
    """
    return Server(root, version=version, durable=durable, progress=progress)


def spawn(orders: Orders, log: Path) -> None:
    """Start a keeper, which goes on when this process is gone."""
    with log.open("ab") as output:
        started = subprocess.run(
            [sys.executable, "-I", "-S", keeper.__file__, json.dumps(orders._asdict())],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd="/",
            env=account.clean_environment(),
            pass_fds=[fd for fd in (orders.keeper_fd, orders.server_fd) if fd is not None],
            start_new_session=True,
            check=False,
        )
    if started.returncode != 0:
        raise EmbeddedError(f"the keeper of PostgreSQL did not start: {cluster.failure(log)}")


def _wait_for(look: Callable[[], int | None], deadline: float) -> int | None:
    while (found := look()) is None and time.monotonic() < deadline:
        time.sleep(_LOOK)
    return found


@contextlib.contextmanager
def _closing(fd: int | None) -> Iterator[int | None]:
    try:
        yield fd
    finally:
        if fd is not None:
            os.close(fd)
