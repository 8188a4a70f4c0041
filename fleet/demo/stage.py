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
# Made by `fleet demo --keep`: the commands find its database from here.
app = "fleet.demo.shop:app"
embedded = true
"""


@contextlib.contextmanager
def kept(folder: Path, say: Callable[[str], None]) -> Iterator[str]:
    """Yield the URL of a server whose data stays in ``folder``."""
    folder.mkdir(exist_ok=True)
    if not (file := folder / "fleet.toml").exists():
        file.write_text(_TOML)
    with serve(folder, progress=say) as server:
        yield server.url


@contextlib.contextmanager
def thrown_away(say: Callable[[str], None]) -> Iterator[str]:
    """Yield the URL of a server that is gone afterwards, however this process ends."""
    folder = Path(tempfile.mkdtemp(prefix="fleet-demo-"))
    # The server of root runs as another user, who must get in.
    folder.chmod(0o711)
    home = locate(folder_of(folder))
    user = try_lock(home.users_lock, shared=True)
    if user is None:
        raise EmbeddedError(f"somebody else uses {folder}, which was just made")
    # Before the server: initdb takes a second, in which this process may be killed.
    janitor = Orders(str(home.users_lock), str(home.server_lock), str(home.data))
    spawn(janitor._replace(remove=(str(folder.resolve()),)), home.log)
    try:
        with serve(folder, progress=say) as server:
            yield server.url
    finally:
        os.close(user)
        _wait_until_gone(folder)


def _wait_until_gone(folder: Path) -> None:
    deadline = time.monotonic() + _PATIENCE
    while folder.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
