"""Where the files of one project's server are.

<project>/.fleet/
  .gitignore            everything in here stays out of the repository
  postgres/
    start.lock users.lock keeper.lock server.lock
    password            0600, of whoever made it
    port                the one it had last
    server.log          since its last start; server.log.old: the start before
    data/               or, where the server's user cannot reach it:
    elsewhere           the path of the folder that holds it
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path

from fleet.embedded.account import Account
from fleet.errors import EmbeddedError

STATE = Path("/var/lib/pgfleet")


@dataclass(frozen=True, slots=True)
class Home:
    """The files of one server; ``storage`` is the folder that holds its data directory."""

    folder: Path
    storage: Path

    @property
    def data(self) -> Path:
        """The data directory; complete if it exists."""
        return self.storage / "data"

    @property
    def start_lock(self) -> Path:
        """Held by the one process that looks at the server and starts it."""
        return self.folder / "start.lock"

    @property
    def users_lock(self) -> Path:
        """Held, shared, by every user."""
        return self.folder / "users.lock"

    @property
    def keeper_lock(self) -> Path:
        """Held by the server's keeper."""
        return self.folder / "keeper.lock"

    @property
    def server_lock(self) -> Path:
        """Held by every process of the server."""
        return self.folder / "server.lock"

    @property
    def log(self) -> Path:
        """What the server and its keeper print."""
        return self.folder / "server.log"

    @property
    def version(self) -> int | None:
        """The major version that made the data directory; None if there is none yet."""
        try:
            return int((self.data / "PG_VERSION").read_text().strip())
        except FileNotFoundError:
            if self.data.exists():
                raise EmbeddedError(
                    f"{self.data} is not a PostgreSQL data directory: it has no PG_VERSION. "
                    f"If nothing in it is needed, remove it: a new one will be made."
                ) from None
            return None
        except ValueError as error:
            raise EmbeddedError(f"{self.data / 'PG_VERSION'} is damaged: {error}") from error

    @property
    def port(self) -> int | None:
        """The port of the last start."""
        try:
            return int((self.folder / "port").read_text())
        except (FileNotFoundError, ValueError):
            return None

    def keep_port(self, port: int) -> None:
        """Remember the port, so that the URL stays the same from start to start."""
        (self.folder / "port").write_text(f"{port}\n")

    @property
    def password(self) -> str:
        """The superuser's password."""
        path = self.folder / "password"
        try:
            return path.read_text().strip()
        except FileNotFoundError:
            raise EmbeddedError(
                f"{path} is gone, and with it the way into {self.data}. Restore the file, or "
                f"remove {self.folder} to start with an empty database."
            ) from None

    def make_password(self) -> str:
        """Draw a new password and keep it where only its owner can read it."""
        path = self.folder / "password"
        path.unlink(missing_ok=True)
        password = secrets.token_urlsafe(24)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "w") as file:
            file.write(password + "\n")
        return password


def folder_of(root: Path) -> Path:
    """Return the folder of a project's server, made if it is not there."""
    if not root.is_dir():
        raise EmbeddedError(f"{root} is not a folder, so no server can live in its .fleet")
    fleet = root.resolve() / ".fleet"
    folder = fleet / "postgres"
    folder.mkdir(parents=True, exist_ok=True)
    if not (ignore := fleet / ".gitignore").exists():
        ignore.write_text(
            "# Made by Fleet: the server of this project, never for the repository.\n*\n"
        )
    return folder


def locate(folder: Path) -> Home:
    """Return the home as it is on disk."""
    try:
        return Home(folder, Path((folder / "elsewhere").read_text().strip()))
    except FileNotFoundError:
        return Home(folder, folder)


def settle(home: Home, account: Account) -> Home:
    """Return the home with a storage folder in which the account can keep data.

    The project may lie where that user cannot go, as /root does: then its data goes to a folder
    outside, and a note here says which.
    """
    if home.data.exists():
        return home
    if account.uid is None:
        return Home(home.folder, home.folder)
    home.folder.chmod(0o711)
    if _try_out(home.folder, account):
        (home.folder / "elsewhere").unlink(missing_ok=True)
        return Home(home.folder, home.folder)
    storage = STATE / hashlib.sha256(os.fsencode(home.folder)).hexdigest()[:16]
    storage.mkdir(parents=True, exist_ok=True)
    STATE.chmod(0o711)
    storage.chmod(0o711)
    if not _try_out(storage, account):
        storage.rmdir()
        raise EmbeddedError(
            f"the user {account.name}, who has to run PostgreSQL because root must not, can write "
            f"neither in {home.folder} nor in {storage}. Open one of them to that user, or run as "
            f"a normal user."
        )
    (storage / "project").write_text(f"{home.folder}\n")
    (home.folder / "elsewhere").write_text(f"{storage}\n")
    return Home(home.folder, storage)


def _try_out(folder: Path, account: Account) -> bool:
    trial = folder / "data.trial"
    trial.mkdir(mode=0o700, exist_ok=True)
    try:
        account.give(trial)
        return account.can_write(trial)
    except PermissionError:  # a file system that has no owners
        return False
    finally:
        shutil.rmtree(trial, ignore_errors=True)
