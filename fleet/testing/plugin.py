"""The pytest plugin: ``fleet_db`` and ``fleet_clock``.

Every test gets a database of its own, copied from a template that is migrated once a session. The
server is the one FLEET_TEST_DATABASE_URL names, whose role must be allowed to create databases;
without it, a throwaway server is started (``pip install 'pgfleet[embedded]'``). To use another
server, override the session fixture ``fleet_server`` in a conftest.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import uuid
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

import pytest

from fleet.store.migrations import migrate
from fleet.testing.clock import Clock
from fleet.testing.connections import connection

T = TypeVar("T")


@pytest.fixture(scope="session")
def fleet_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server on which databases may be created."""
    if url := os.environ.get("FLEET_TEST_DATABASE_URL"):
        yield url
        return
    from fleet.embedded import Server

    with Server(tmp_path_factory.mktemp("fleet"), durable=False) as server:
        yield server.plain_url  # tests give it to drivers of all kinds


@pytest.fixture(scope="session")
def fleet_template(fleet_server: str) -> Iterator[str]:
    """The name of a migrated database to copy from."""
    name = f"fleet_template_{uuid.uuid4().hex[:12]}"
    _run(_execute(fleet_server, f"create database {name}"))
    try:
        _run(_prepare(database_url(fleet_server, name)))
        yield name
    finally:
        _run(_execute(fleet_server, f"drop database if exists {name} with (force)"))


@pytest.fixture
def fleet_db(fleet_server: str, fleet_template: str) -> Iterator[str]:
    """The URL of a fresh database with Fleet's schema, dropped after the test."""
    with scratch_database(fleet_server, fleet_template) as url:
        yield url


@pytest.fixture
def fleet_clock(fleet_db: str) -> Clock:
    """The clock of ``fleet_db``."""
    return Clock(fleet_db)


@contextlib.contextmanager
def scratch_database(server: str, template: str) -> Iterator[str]:
    """Copy a database from a template and drop it afterwards."""
    name = f"fleet_test_{uuid.uuid4().hex[:12]}"
    _run(_execute(server, f"create database {name} template {template}"))
    try:
        yield database_url(server, name)
    finally:
        _run(_execute(server, f"drop database if exists {name} with (force)"))


def database_url(server: str, name: str) -> str:
    """Return the URL of another database on the same server."""
    return urlunsplit(urlsplit(server)._replace(path=f"/{name}"))


async def _execute(url: str, statement: str) -> None:
    async with connection(url) as conn:
        await conn.execute(statement)


async def _prepare(url: str) -> None:
    async with connection(url) as conn:
        # Two hundred files of partitions would make each copy six times as slow.
        async for _ in migrate(conn, partitions=False):
            pass
    await Clock(url).install()


def _run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, whether or not a loop is running in this thread."""
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(asyncio.run, work).result()
