"""What every test may ask for: a real server, a database of its own, a connection to it."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncpg
import pytest

from fleet.testing.connections import connection
from tests.servers import TestServer, chosen_version, start_server


def pytest_configure() -> None:
    # A shell lets what it starts in the background ignore Ctrl-C, and so would every process that a
    # test starts and interrupts.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestServer]:
    """A throwaway PostgreSQL of the version that FLEET_TEST_PG names (18 unless it says 15)."""
    directory: Path = tmp_path_factory.mktemp("pg")
    with start_server(chosen_version(), directory) as running:
        yield running


@pytest.fixture(scope="session")
def fleet_server(server: TestServer) -> str:
    """The plugin's fixtures use the suite's own server."""
    return server.dsn


@pytest.fixture
def dsn(fleet_db: str) -> str:
    return fleet_db


@pytest.fixture
async def db(dsn: str) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    async with connection(dsn) as conn:
        yield conn
