"""``fleet top``: one frame for scripts, a live one in a real terminal."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys

import pytest

from fleet.store import beats
from fleet.testing import drain
from tests.servers import wait_until

WORKERS = [{"name": "shared#1", "pid": 71, "state": "ready", "running": ["charge.charge"]}]


@pytest.fixture
async def busy(app, db):
    """A fleet with a host, something that waits and something that went wrong."""
    await app.jobs["charge"].enqueue("expired")
    await drain(app)
    await app.jobs["charge"].enqueue_many(["valid"] * 3)
    owner = await beats.register(db, "web-1", 4242, 600.0)
    await beats.beat(db, owner, "running", WORKERS, ["billing"])


@pytest.mark.parametrize("args", [[], ["--once"]])
def test_without_a_terminal_it_is_one_frame(fleet, busy, args):
    said = fleet("top", *args).stdout

    assert re.search(r"^billing +3", said, re.MULTILINE)
    assert re.search(r"^web-1 +\d+ +4242 +running", said, re.MULTILINE)
    assert re.search(r"shared#1 +71 +charge\.charge", said)
    assert "ready 3 █" in said
    assert re.search(r"charge\.charge #1 +buried: fatal +Fatal: the card has expired", said)
    assert "\x1b[" not in said


class Terminal:
    """A command in a terminal of its own, by the pty module."""

    def __init__(self, fleet, *args):
        self.ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "fleet", *args],
            cwd=fleet.folder,
            env=fleet.environment(TERM="xterm", COLUMNS="120", LINES="40"),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        self.seen = ""

    def shows(self, text):
        """Read what has come, and tell whether the text was ever on the screen."""
        while select.select([self.ours], [], [], 0)[0]:
            try:
                data = os.read(self.ours, 65536)
            except OSError:  # Linux: nobody has the other end open any more
                break
            if not data:
                break
            self.seen += data.decode(errors="replace")
        return text in self.seen

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.ours)


@pytest.fixture
def terminal(fleet):
    opened = []

    def open_one(*args):
        opened.append(Terminal(fleet, *args))
        return opened[-1]

    yield open_one
    for each in opened:
        each.close()


@pytest.mark.parametrize("leave", ["q", "Ctrl-C"])
async def test_in_a_terminal_it_looks_again_until_one_leaves(terminal, app, db, busy, leave):
    top = terminal("top", "--interval", "100ms")
    wait_until(lambda: top.shows("running 0"))
    await app.jobs["charge"].enqueue_many(["valid"] * 4321)
    wait_until(lambda: top.shows("4,324"))
    assert "\x1b[?1049h" in top.seen  # on a screen of its own

    if leave == "q":
        os.write(top.ours, b"q")
    else:
        top.process.send_signal(signal.SIGINT)

    # Read on, or it could not write its last words.
    wait_until(lambda: (top.shows(""), top.process.poll())[1] is not None)
    assert top.process.returncode == (0 if leave == "q" else 130)
    assert "\x1b[?1049l" in top.seen  # and what was there before is back
    assert "Traceback" not in top.seen
