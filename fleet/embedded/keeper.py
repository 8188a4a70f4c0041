"""The process that outlives its users: it runs PostgreSQL, and stops it when the last one is gone.

Every user holds a shared lock on ``users.lock``. The kernel drops it however the user ends, so
that a user killed with -9 counts as gone like any other. The keeper is the parent of the server,
and looks whether it could have that lock for itself: then nobody is left.

    users.lock     shared: each user               exclusive: the keeper, while it stops the server
    keeper.lock    exclusive: the keeper           free: nobody watches the server
    server.lock    exclusive: postgres and all     free: no process of the server is left, so its
                   its backends, by inheritance    postmaster.pid, if there is one, is stale

It is started by path as ``python -I -S keeper.py`` and imports nothing of Fleet: it is resident,
and must not weigh what an application weighs. The others import its few primitives from here.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

# Asked for again and again rather than waited for: a blocked exclusive request may hold up new
# shared ones on some systems, and one loop can watch two locks and a signal.
LOOK = 0.2
FAST, IMMEDIATE = (signal.SIGINT, 30.0), (signal.SIGQUIT, 15.0)


class Orders(NamedTuple):
    """What a keeper is told, as JSON in its only argument."""

    users: str
    server: str
    data: str
    keeper_fd: int | None = None  # the held keeper.lock; None: watch the users alone
    server_fd: int | None = None  # the held server.lock, for the server to inherit
    command: list[str] | None = None  # None: the server runs already
    uid: int | None = None
    gid: int | None = None
    remove: tuple[str, ...] = ()  # a throwaway server's folders


class Postmaster(NamedTuple):
    """A running server, as its postmaster.pid tells."""

    pid: int
    port: int
    ready: bool


def open_lock(path: str | os.PathLike[str]) -> int:
    """Open a lock file; nothing is held yet."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def flock(fd: int, how: int = fcntl.LOCK_EX) -> bool:
    """Take the lock of an open file without waiting, if it can be had."""
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def try_lock(path: str | os.PathLike[str], *, shared: bool = False) -> int | None:
    """Take a lock without waiting and return the descriptor that holds it, or None."""
    fd = open_lock(path)
    held = False
    try:
        held = flock(fd, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
    finally:
        if not held:
            os.close(fd)
    return fd if held else None


def is_free(path: str | os.PathLike[str]) -> bool:
    """Tell whether nobody holds the lock."""
    fd = try_lock(path)
    if fd is not None:
        os.close(fd)
    return fd is not None


def postmaster(data: str | os.PathLike[str]) -> Postmaster | None:
    """Return the server that runs on a data directory, if there is one."""
    try:
        lines = Path(data, "postmaster.pid").read_text().splitlines()
        pid, port = int(lines[0]), int(lines[3])
    except (OSError, ValueError, IndexError):
        return None
    # After a reboot the number may belong to anything, also to another project's server.
    if f" -D {data} " not in _command_line(pid):
        return None
    return Postmaster(pid, port, ready=len(lines) > 7 and lines[7].strip() == "ready")


def _command_line(pid: int) -> str:
    if Path("/proc/self/cmdline").exists():
        try:
            return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ")
        except OSError:
            return ""
    shown = subprocess.run(
        ["ps", "-ww", "-p", str(pid), "-o", "command="], capture_output=True, text=True, check=False
    )
    return shown.stdout.strip() + " "


class Keeper:
    """One server, from its start to its end."""

    def __init__(self, orders: Orders) -> None:
        self.orders = orders
        self.child: subprocess.Popen[bytes] | None = None
        # Opened once: somebody may remove the project under a running server.
        self.users, self.server = open_lock(orders.users), open_lock(orders.server)

    def run(self) -> None:
        """Start the server, watch it, and clear up."""
        # A service manager or a logout signals every process at once. The users may be draining:
        # they still need the server, and when they are gone this ends by itself.
        for sig in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            signal.signal(sig, signal.SIG_IGN)
        self._start()
        if self._users_left():
            self._stop()
            for folder in self.orders.remove:
                shutil.rmtree(folder, ignore_errors=True)

    def _start(self) -> None:
        o = self.orders
        if o.command is None or o.server_fd is None:
            return
        drop: dict[str, Any] = {}
        if o.uid is not None:
            drop = {"user": o.uid, "group": o.gid, "extra_groups": []}
        self.child = subprocess.Popen(
            o.command,
            stdin=subprocess.DEVNULL,
            cwd="/",
            umask=0o077,
            pass_fds=[o.server_fd],
            **drop,
        )
        os.close(o.server_fd)

    def _users_left(self) -> bool:
        """Wait until the users are gone, or return False as soon as the server is.

        The lock on the users stays held for the rest of this process, so that a newcomer waits
        for the stop to end.
        """
        while not flock(self.users):
            if self.orders.keeper_fd is not None and self._is_over():
                return False
            time.sleep(LOOK)
        return True

    def _is_over(self) -> bool:
        if self.child is not None:
            self.child.poll()  # a zombie would keep its pid taken
        free = flock(self.server)
        if free:
            fcntl.flock(self.server, fcntl.LOCK_UN)
        return free

    def _stop(self) -> None:
        for sig, patience in (FAST, IMMEDIATE):
            self._signal(sig)
            deadline = time.monotonic() + patience
            while time.monotonic() < deadline:
                if self._is_over():
                    return
                time.sleep(LOOK / 10)

    def _signal(self, sig: signal.Signals) -> None:
        if self.child is not None:
            self.child.send_signal(sig)
        elif (server := postmaster(self.orders.data)) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(server.pid, sig)


def main(argument: str) -> None:
    """Leave the parent behind, then keep the server."""
    orders = Orders(**json.loads(argument))
    # The parent waits for this first process only: the keeper is nobody's child, so that no
    # application ever finds it among its own, or has to reap it.
    if os.fork():
        os._exit(0)
    Keeper(orders).run()


if __name__ == "__main__":
    main(sys.argv[1])
