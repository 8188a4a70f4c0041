"""``fleet demo``: a real host at work, as root and as a normal user, and nothing left behind."""

from __future__ import annotations

import os
import pwd
import re
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path
from shutil import rmtree
from typing import Any

import psutil
import pytest

import fleet
from fleet.embedded.keeper import is_free
from tests.servers import wait_until

SOURCE = Path(fleet.__file__ or "").parent.parent
PATH = f"{SOURCE}{os.pathsep}{sysconfig.get_paths()['purelib']}"


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that other users reach, and that no process may still name afterwards."""
    made = Path(tempfile.mkdtemp(prefix="fleet-test-"))
    made.chmod(0o777)
    yield made
    wait_until(lambda: not processes(made))
    rmtree(made)


def processes(folder: Path) -> list[psutil.Process]:
    """Return what still runs with a file of this folder in its command line."""
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if any(str(folder) in part for part in process.info["cmdline"] or [])
    ]


def start(
    folder: Path, *args: str, python: str = sys.executable, **options: Any
) -> subprocess.Popen[str]:
    temporary = folder / "tmp"
    temporary.mkdir()
    temporary.chmod(0o777)
    kept = {n: v for n, v in os.environ.items() if not n.startswith(("FLEET_", "DATABASE_"))}
    return subprocess.Popen(
        [python, "-m", "fleet", "demo", *args],
        cwd=folder,
        env=kept | {"TMPDIR": str(temporary), "HOME": str(folder), "PYTHONPATH": PATH},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def watch(folder: Path, *args: str, **options: Any) -> str:
    process = start(folder, *args, **options)
    stdout, stderr = process.communicate(timeout=110)
    assert process.returncode == 0, (stdout, stderr)
    assert stderr == ""
    return stdout


def check_the_show(said: str) -> None:
    # A poison feed is buried after its budget, and one that crashed once got through.
    assert said.count("task 1: import-feed.parse #1 crashed") == 1
    assert "task 1: import-feed.parse #3 poison: the worker process died: killed by SIGKILL" in said
    assert re.search(r"buried +task 1 \(poison\)", said)
    assert "task 2: import-feed #2 got through" in said
    # Everything else ran, also what had failed.
    ran, enqueued, attempts = map(number, found(r"ran  (\S+) of (\S+) tasks, in (\S+) att", said))
    assert ran == enqueued - 1
    assert attempts > ran
    assert re.search(r"left +0 tasks", said)
    assert number(found(r"crashed  (\S+) attempts", said)[0]) >= 4
    assert number(found(r"restarts  (\d+) by signal", said)[0]) >= 4
    assert number(found(r"recovered  (\S+) tasks", said)[0]) >= 1
    assert "each booked once" in said
    assert re.search(r"speed +\d+ tasks a second .* \(median\), .* \(99 %\)", said)
    assert "Next:" in said
    assert "\x1b[" not in said


def found(pattern: str, said: str) -> tuple[str, ...]:
    match = re.search(pattern, said)
    assert match is not None, said
    return match.groups()


def number(text: str) -> int:
    return int(text.replace(",", ""))


def test_the_show_goes_on_without_a_terminal_and_nothing_is_left(folder):
    check_the_show(watch(folder, "--seconds", "3"))

    assert list((folder / "tmp").iterdir()) == []
    assert [path.name for path in folder.iterdir()] == ["tmp"]


def reachable_python(options: dict[str, Any]) -> str:
    """Return an interpreter that this user may run: ours, or the system's of the same version."""
    for python in (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}"):
        try:
            command = [python, "-c", "import fleet.cli"]
            subprocess.run(command, cwd=SOURCE, env={"PYTHONPATH": PATH}, check=True, **options)
        except (OSError, subprocess.CalledProcessError):
            continue
        return python
    pytest.skip("no interpreter here is open to the user nobody")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_normal_user_sees_the_same(folder):
    options = {"user": "nobody", "group": pwd.getpwnam("nobody").pw_gid, "extra_groups": []}
    python = reachable_python(options)

    check_the_show(watch(folder, "--seconds", "3", python=python, **options))

    assert list((folder / "tmp").iterdir()) == []


def test_kept_it_can_be_looked_at_and_played_again(folder):
    said = watch(folder, "--seconds", "1", "--keep")

    assert "cd .fleet-demo" in said
    kept = folder / ".fleet-demo"
    listed = subprocess.run(
        [sys.executable, "-m", "fleet", "task", "list", "--state", "buried"],
        cwd=kept,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "import-feed" in listed.stdout
    (folder / "tmp").rmdir()
    watch(folder, "--seconds", "0", "--keep")
    lock = kept / ".fleet" / "postgres" / "server.lock"
    wait_until(lambda: is_free(lock))


def test_ctrl_c_drains_it_and_nothing_is_left(folder):
    process = start(folder, "--seconds", "60")
    assert process.stdout is not None
    wait_until(lambda: "orders keep coming in" in process.stdout.readline())
    process.send_signal(signal.SIGINT)
    said, stderr = process.communicate(timeout=60)

    assert (process.returncode, stderr) == (0, "")
    assert "draining: no more claims" in said
    assert re.search(r"ran +\d+ of \d+ tasks", said)
    assert list((folder / "tmp").iterdir()) == []


def test_killed_it_leaves_nothing_either(folder):
    process = start(folder, "--seconds", "60")
    assert process.stdout is not None
    wait_until(lambda: "orders keep coming in" in process.stdout.readline())
    try:
        (tether,) = psutil.Process(process.pid).children()
        wait_until(lambda: len(tether.children(recursive=True)) >= 6)  # with four workers
        started = [tether, *tether.children(recursive=True)]
    finally:
        process.kill()
        process.communicate(timeout=60)

    wait_until(lambda: list((folder / "tmp").iterdir()) == [])
    wait_until(lambda: not any(child.is_running() for child in started))
