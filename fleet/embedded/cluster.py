"""Making a data directory, and the command line of the server on it."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from fleet.embedded.account import Account
from fleet.embedded.binaries import Binaries
from fleet.embedded.home import Home
from fleet.embedded.keeper import postmaster
from fleet.errors import EmbeddedError

NAME: Final = "fleet"  # of the database and of its superuser
HOST: Final = "127.0.0.1"

SETTINGS: Final[Mapping[str, str]] = {
    "listen_addresses": HOST,
    # No socket: its path has a limit of 107 bytes that a deep project exceeds, and every driver
    # takes a port.
    "unix_socket_directories": "",
    "max_connections": "100",
    "shared_buffers": "64MB",
    "dynamic_shared_memory_type": "mmap",
    "log_checkpoints": "off",
    # Inputs never go into a log: neither the statement of an error nor its detail.
    "log_min_error_statement": "panic",
    "log_error_verbosity": "terse",
}
NOT_DURABLE: Final[Mapping[str, str]] = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
}


def create(
    home: Home,
    binaries: Binaries,
    account: Account,
    *,
    auth: str,
    lock: int,
    say: Callable[[str], None],
) -> None:
    """Make the data directory, with the database in it; under another name until it is complete.

    ``lock`` is the held server.lock. initdb inherits it: if this process is killed, initdb goes on
    for a while, and the next one has to wait for its end.
    """
    say(f"creating a PostgreSQL {binaries.version} for this project in {home.storage}")
    staged, secret = home.storage / "data.partial", home.storage / "password.partial"
    shutil.rmtree(staged, ignore_errors=True)  # an earlier initdb was interrupted
    secret.unlink(missing_ok=True)
    staged.mkdir(mode=0o700)
    account.give(staged)
    secret.touch(mode=0o600)
    secret.write_text(home.make_password())
    account.give(secret)
    try:
        where: list[str | Path] = ["--pgdata", staged, "--username", NAME, "--pwfile", secret]
        what = ["--auth", auth, "--encoding", "UTF8", "--no-locale", "--no-instructions"]
        made = account.run([binaries.initdb, *where, *what], pass_fds=[lock])
        if made.returncode != 0:
            raise EmbeddedError(f"initdb failed in {home.storage}: {_reason(made.stdout)}")
        # Single-user mode: a directory that bears its final name always has the database.
        made = account.run(
            [binaries.postgres, "--single", "-D", staged, "postgres"],
            input=f"create database {NAME};\n",
            pass_fds=[lock],
        )
        if made.returncode != 0 or "ERROR" in made.stdout:
            raise EmbeddedError(
                f"could not create the database {NAME} in {home.storage}: {_reason(made.stdout)}"
            )
        staged.rename(home.data)
    finally:
        secret.unlink(missing_ok=True)
        shutil.rmtree(staged, ignore_errors=True)


def command(home: Home, binaries: Binaries, port: int, settings: Mapping[str, str]) -> list[str]:
    """Return the server's command line; what is set here beats the files in the data directory."""
    parts = [str(binaries.postgres), "-D", str(home.data), "-p", str(port)]
    for name, value in settings.items():
        parts += ["-c", f"{name}={value}"]
    return parts


def free_port(preferred: int | None) -> int:
    """Return the preferred port if it is free on the loopback interface, else any that is."""
    for port in (preferred or 0, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise EmbeddedError(f"no port is free on {HOST}")


def clear_stale_pid(data: Path) -> None:
    """Remove a postmaster.pid that would keep the server from starting though nothing runs.

    PostgreSQL sees for itself that a pid is dead. After a reboot the number may have gone to
    another process of the same user, which it takes for a server. Call this with server.lock held.
    """
    path = data / "postmaster.pid"
    if (running := postmaster(data)) is not None:
        raise EmbeddedError(
            f"a PostgreSQL that Fleet did not start (pid {running.pid}, port {running.port}) runs "
            f"on {data}. Stop it first: pg_ctl stop -D {data}"
        )
    try:
        os.kill(int(path.read_text().splitlines()[0]), 0)
    except PermissionError:
        pass
    except (OSError, ValueError, IndexError):
        return
    path.unlink()


def failure(log: Path) -> str:
    """Return why the server did not start, from its log."""
    try:
        return _reason(log.read_text(errors="replace"))
    except OSError as error:
        return f"and its log cannot be read: {error}"


def port_was_taken(log: Path) -> bool:
    """Tell whether the server failed because somebody was quicker to take its port."""
    return "could not bind" in failure(log) or "could not create any TCP/IP sockets" in failure(log)


def _reason(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    telling = [line for line in lines if any(mark in line for mark in ("FATAL", "PANIC", "rror:"))]
    return "; ".join((telling or lines)[-3:]) or "it said nothing"
