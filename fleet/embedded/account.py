"""Who runs the server. PostgreSQL refuses root, so that root hands it to an unprivileged user."""

from __future__ import annotations

import errno
import os
import pwd
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleet.errors import EmbeddedError

CANDIDATES = ("postgres", "nobody")


@dataclass(frozen=True, slots=True)
class Account:
    """A user to become; ``uid`` None is whoever runs this already."""

    name: str
    uid: int | None = None
    gid: int | None = None

    def run(
        self, command: Sequence[str | Path], **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run a short command as this user and return its output, whatever the exit code."""
        try:
            return subprocess.run(
                [str(part) for part in command],
                # The current folder may be closed to that user, and initdb insists on knowing it.
                cwd="/",
                env=clean_environment(),
                umask=0o077,
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                check=False,
                **self._drop(),
                **options,
            )
        except PermissionError as error:
            if error.errno == errno.EACCES:  # the program is out of reach; the caller knows of it
                raise
            raise EmbeddedError(
                f"cannot become the user {self.name} to run PostgreSQL, which refuses root: "
                f"{error}. Run as a normal user, or give the container CAP_SETUID and CAP_SETGID."
            ) from error

    def can_write(self, folder: Path) -> bool:
        """Tell whether this user reaches the folder and may write in it, by trying."""
        return self.run(["/bin/sh", "-c", 'cd -- "$0" && : > reached', folder]).returncode == 0

    def give(self, path: Path) -> None:
        """Make this user the owner of a file or folder."""
        if self.uid is not None and self.gid is not None:
            os.chown(path, self.uid, self.gid)

    def _drop(self) -> dict[str, Any]:
        if self.uid is None:
            return {}
        return {"user": self.uid, "group": self.gid, "extra_groups": []}


def choose(data: Path) -> Account:
    """Return the user to run a server as: oneself; for root the data's owner, or a new one."""
    if os.geteuid() != 0:
        return Account(_name(os.geteuid()))
    if data.exists() and (owner := data.stat()).st_uid != 0:
        return Account(_name(owner.st_uid), owner.st_uid, owner.st_gid)
    for name in CANDIDATES:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(name, entry.pw_uid, entry.pw_gid)
    raise EmbeddedError(
        f"PostgreSQL refuses to run as root, and this system has no user "
        f"{' or '.join(CANDIDATES)} to run it as. Create one (useradd --system postgres), or run "
        f"as a normal user."
    )


def clean_environment() -> dict[str, str]:
    """Return the environment without what would point PostgreSQL's programs at another server."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_"))}
    # Its messages are read by this package. On macOS an unset locale makes the server
    # multithreaded at start-up, which it refuses.
    return kept | {"LC_ALL": "C"}


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
