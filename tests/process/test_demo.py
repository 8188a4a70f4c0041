"""``fleet demo``: the whole story, as root and as a normal user, and nothing left behind."""

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


def check_the_story(said: str) -> None:
    assert said.count("order-receipt.render #1 failed") == 1
    assert said.count("order-receipt.render #2 failed") == 1
    assert "order-receipt.render #3 next" in said
    assert "order-receipt.email #1 succeeded" in said
    assert "enqueued in SQL: select fleet.enqueue('welcome-email'" in said
    assert "welcome-email.welcome #1 succeeded" in said
    first, second = re.findall(r"task (\d+)\s+enqueued with the key customer-7", said)
    ends = re.findall(r"task (\d+)\s+✓ change-address", said)
    assert ends == [first, second]
    buried = re.search(r"task (\d+)\s+✝ take-payment.charge #1 buried: fatal", said)
    assert buried is not None
    assert f"fleet task revive {buried[1]} --input" in said
    assert re.search(rf"task {buried[1]}\s+✓ take-payment.book", said)
    assert "take-payment.book #1 failed" in said
    assert "take-payment.book #2 succeeded" in said
    assert "19.99 + 42.00: each payment once" in said
    assert "buried  1, and revived 1" in said
    assert "tasks a second" in said
    assert "Next:" in said
    assert "\x1b[" not in said


def test_the_story_is_told_without_a_terminal_and_nothing_is_left(folder):
    check_the_story(watch(folder, "--seconds", "1"))

    assert list((folder / "tmp").iterdir()) == []
    assert sorted(path.name for path in folder.iterdir()) == ["tmp"]


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

    check_the_story(watch(folder, "--seconds", "0", python=python, **options))

    assert list((folder / "tmp").iterdir()) == []


def test_kept_it_can_be_looked_at_and_played_again(folder):
    said = watch(folder, "--seconds", "0", "--keep")

    check_the_story(said)
    assert "cd .fleet-demo" in said
    kept = folder / ".fleet-demo"
    status = subprocess.run(
        [sys.executable, "-m", "fleet", "task", "list", "--state", "succeeded"],
        cwd=kept,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "order-receipt" in status.stdout
    (folder / "tmp").rmdir()
    watch(folder, "--seconds", "0", "--keep")
    lock = kept / ".fleet" / "postgres" / "server.lock"
    wait_until(lambda: is_free(lock))


def test_ctrl_c_ends_it_and_nothing_is_left(folder):
    process = start(folder, "--seconds", "60")
    assert process.stdout is not None
    wait_until(lambda: "orders keep coming in" in process.stdout.readline())
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)

    assert process.returncode == 130
    assert stderr == ""
    assert list((folder / "tmp").iterdir()) == []


def test_killed_it_leaves_nothing_either(folder):
    process = start(folder, "--seconds", "60")
    assert process.stdout is not None
    wait_until(lambda: "orders keep coming in" in process.stdout.readline())
    process.kill()
    process.communicate(timeout=60)

    wait_until(lambda: list((folder / "tmp").iterdir()) == [])
