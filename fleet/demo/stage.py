"""Where the demo plays: an embedded PostgreSQL in a folder of its own, thrown away unless kept."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from fleet.embedded import serve
from fleet.embedded.home import folder_of, locate
from fleet.embedded.keeper import Orders, try_lock
from fleet.embedded.server import spawn
from fleet.errors import EmbeddedError

_PATIENCE: Final = 30.0

_TOML: Final = """\
# Made by `fleet demo`: the commands find its database from here.
app = "fleet.demo.shop:app"
embedded = true

[supervisor]
processes = 2           # of the pool that billing and emails share
lease = "5s"
drain_timeout = "10s"
http = "127.0.0.1:0"    # any free port

[queues.billing]        # shared
weight = 3

[queues.emails]
weight = 1

[queues.images]         # dedicated: def steps, one at a time in each process
processes = 1
concurrency = 1

[queues.feeds]          # dedicated: what crashes takes no neighbour down
processes = 1
concurrency = 1
"""


@contextlib.contextmanager
def kept(folder: Path, say: Callable[[str], None]) -> Iterator[tuple[str, Path]]:
    """Yield the URL of a server whose data stays in ``folder``, and that folder."""
    folder.mkdir(exist_ok=True)
    (folder / "fleet.toml").write_text(_TOML)
    with serve(folder, progress=say) as server:
        yield server.url, folder


@contextlib.contextmanager
def thrown_away(say: Callable[[str], None]) -> Iterator[tuple[str, Path]]:
    """Yield the same of a server that is gone afterwards, however this process ends."""
    folder = Path(tempfile.mkdtemp(prefix="fleet-demo-"))
    # The server of root runs as another user, who must get in.
    folder.chmod(0o711)
    (folder / "fleet.toml").write_text(_TOML)
    home = locate(folder_of(folder))
    user = try_lock(home.users_lock, shared=True)
    if user is None:
        raise EmbeddedError(f"somebody else uses {folder}, which was just made")
    # Before the server: initdb takes a second, in which this process may be killed.
    janitor = Orders(str(home.users_lock), str(home.server_lock), str(home.data))
    spawn(janitor._replace(remove=(str(folder.resolve()),)), home.log)
    try:
        with serve(folder, progress=say) as server:
            yield server.url, folder
    finally:
        os.close(user)
        _wait_until_gone(folder)


def _wait_until_gone(folder: Path) -> None:
    deadline = time.monotonic() + _PATIENCE
    while folder.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
