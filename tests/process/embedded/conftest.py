"""Projects with an embedded server: one that never had any, one that has run before."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet.embedded import serve
from tests.process.embedded.users import Somebody, new_folder, nobody, run, wait_until_idle


@pytest.fixture
def empty() -> Iterator[Path]:
    folder = new_folder()
    yield folder
    wait_until_idle(folder)
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def veteran() -> Iterator[Path]:
    folder = new_folder()
    with serve(folder, durable=False) as server:
        run(server.url, "create table kept as select 42 as answer")
    wait_until_idle(folder)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def project(veteran: Path) -> Iterator[Path]:
    """A project whose server has run before, for tests that leave it as it was."""
    yield veteran
    wait_until_idle(veteran)


@pytest.fixture
def doomed(empty: Path, veteran: Path) -> Path:
    """A copy of it, for tests that do harm."""
    subprocess.run(["cp", "-a", str(veteran / ".fleet"), str(empty)], check=True)
    return empty


@pytest.fixture(scope="session")
def somebody() -> Iterator[Somebody]:
    """A normal user, who is not root."""
    with nobody() as found:
        yield found
