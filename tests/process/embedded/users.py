"""Users of an embedded server: this process, others, and other people's."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import asyncpg
import psutil
import pytest

import fleet
from fleet.embedded.keeper import is_free
from tests.servers import wait_until

ROOT = os.geteuid() == 0
as_root = pytest.mark.skipif(not ROOT, reason="only root hands the server to another user")
SOURCE = Path(fleet.__file__ or "").parent.parent

# A user in a process of its own: says where the server is, and stays until its stdin ends.
USER = """
import sys
from pathlib import Path
from fleet.embedded import serve
from fleet.errors import EmbeddedError
try:
    with serve(Path(sys.argv[1])) as server:
        print(server.url, server.pid, flush=True)
        sys.stdin.read()
except EmbeddedError as error:
    print(error, flush=True)
"""


def new_folder() -> Path:
    """Make a project's folder that the server's user can reach."""
    folder = Path(tempfile.mkdtemp(prefix="fleet-test-"))
    folder.chmod(0o755)
    return folder


def wait_until_idle(folder: Path) -> None:
    """Nothing may run in a project that nobody uses."""
    lock = folder / ".fleet" / "postgres" / "server.lock"
    wait_until(lambda: not lock.exists() or is_free(lock))
    wait_until(lambda: not keepers(folder))


def run(url: str, sql: str) -> Any:
    async def ask() -> Any:
        connection = await asyncpg.connect(url)
        try:
            return await connection.fetchval(sql)
        finally:
            await connection.close()

    return asyncio.run(ask())


@contextlib.contextmanager
def user(
    project: Path, somebody: Somebody | None = None, **options: Any
) -> Iterator[subprocess.Popen[str]]:
    """Run a user of the server: ourselves, or somebody else."""
    if somebody is not None:
        options |= somebody.options
    process = subprocess.Popen(
        [somebody.python if somebody else sys.executable, "-c", USER, str(project)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        **{"cwd": SOURCE, **options},
    )
    with process:
        yield process
        process.communicate()


class Somebody(NamedTuple):
    """A normal user, with an interpreter that this user can run."""

    python: str
    options: dict[str, Any]


@contextlib.contextmanager
def nobody() -> Iterator[Somebody]:
    """Yield the user nobody; where our interpreter is closed to everybody else, with a copy."""
    options = {"user": "nobody", "group": pwd.getpwnam("nobody").pw_gid, "extra_groups": []}
    with tempfile.TemporaryDirectory(prefix="fleet-test-python-") as folder:
        somebody = Somebody(sys.executable, options)
        if not _can_run(somebody):
            Path(folder).chmod(0o755)
            python = _copy_interpreter(Path(folder))
            libraries = {**os.environ, "LD_LIBRARY_PATH": f"{folder}/lib"}
            somebody = Somebody(str(python), options | {"cwd": folder, "env": libraries})
            assert _can_run(somebody), "the user nobody cannot run a copy of this interpreter"
        yield somebody


def _can_run(somebody: Somebody) -> bool:
    command = [somebody.python, "-c", "import fleet.embedded"]
    try:
        found = subprocess.run(command, check=False, **{"cwd": SOURCE, **somebody.options})
    except PermissionError:
        return False
    return found.returncode == 0


def _copy_interpreter(folder: Path) -> Path:
    """Copy this interpreter and all that it can import to where everybody may go.

    Its home is where it finds its library beside it, so that no variable has to say so.
    """
    library = Path("lib") / f"python{sysconfig.get_python_version()}"
    python = folder / "bin" / "python3"
    python.parent.mkdir()
    _link(str(Path(sys.executable).resolve()), str(python))
    unused = shutil.ignore_patterns("site-packages", "dist-packages", "test", "config-*")
    for source, target, ignored in (
        (sysconfig.get_path("stdlib"), library, unused),
        (sysconfig.get_path("purelib"), library / "site-packages", None),
        (SOURCE / "fleet", library / "site-packages" / "fleet", None),
    ):
        shutil.copytree(
            source, folder / target, ignore=ignored, copy_function=_link, dirs_exist_ok=True
        )
    if sysconfig.get_config_var("Py_ENABLE_SHARED"):
        shared = str(sysconfig.get_config_var("INSTSONAME"))
        _link(f"{sysconfig.get_config_var('LIBDIR')}/{shared}", str(folder / "lib" / shared))
    return python


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def keepers(project: Path) -> list[psutil.Process]:
    """Return the keepers of a project, not counting one that is about to let go of its parent."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or [])
        if "keeper.py" in line and f"{project}/.fleet" in line:
            found.append(process)
    return found


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
