"""The demo's host: a real ``fleet run`` as a process of its own, which ends with the demo."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final, TypeAlias

import orjson

from fleet.errors import FleetError
from fleet.model import Seconds

Record: TypeAlias = dict[str, Any]

_START: Final[Seconds] = 30.0
_STOP: Final[Seconds] = 30.0
_LOOK: Final[Seconds] = 0.05
_RESTARTS: Final = re.compile(r'^fleet_worker_restarts_total\{cause="(\w+)"\} (\S+)', re.MULTILINE)


class Host:
    """A supervisor with its workers, and what it says in its log."""

    def __init__(self, process: asyncio.subprocess.Process, said: Callable[[Record], None]) -> None:
        self._process = process
        self._said = said
        self._http: str | None = None
        self._started = asyncio.Event()
        self._last: str = ""

    async def _hear(self) -> None:
        assert self._process.stderr is not None
        async for line in self._process.stderr:
            try:
                record: Record = orjson.loads(line)
            except orjson.JSONDecodeError:
                self._last = line.decode(errors="replace").strip()
                continue
            if record.get("http"):
                self._http = record["http"]
                self._started.set()
            self._said(record)
        self._started.set()

    async def _wait_started(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_START):
                await self._started.wait()
                # It runs before its workers do: a task that came now would wait for their boot.
                while self._http and not await self._all_ready(self._http):  # noqa: ASYNC110
                    await asyncio.sleep(_LOOK)
                if self._http is not None:
                    return
        raise FleetError(f"fleet run did not start: {self._last or 'it says nothing'}")

    async def _all_ready(self, address: str) -> bool:
        if self._process.returncode is not None:
            raise FleetError(f"fleet run ended: {self._last or 'it says nothing'}")
        with contextlib.suppress(OSError, orjson.JSONDecodeError):
            told = orjson.loads((await _get(address, "/readyz")).partition("\r\n\r\n")[2])
            return bool(told["ready"] and told["workers"]["ready"] == told["workers"]["all"])
        return False

    def stop(self) -> None:
        """Have it drain; the second time, end at once."""
        if self._process.stdin is not None and not self._process.stdin.is_closing():
            self._process.stdin.write(b"\n")

    async def stopped(self) -> int:
        """Wait for its end and return its exit code."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STOP):
                return await self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        return await self._process.wait()

    async def restarts(self) -> Counter[str]:
        """Return how many workers it had to replace, by cause, as its metrics count them."""
        if self._http is None:
            return Counter()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(5):
                text = await _get(self._http, "/metrics")
                return Counter({cause: int(float(n)) for cause, n in _RESTARTS.findall(text)})
        return Counter()


async def _get(address: str, path: str) -> str:
    where, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(where.strip("[]"), int(port))
    writer.write(f"GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    return answer.decode(errors="replace")


@contextlib.asynccontextmanager
async def running(folder: Path, url: str, said: Callable[[Record], None]) -> AsyncIterator[Host]:
    """Run ``fleet run`` in ``folder`` until this is left; ``said`` gets every line of its log."""
    run = [sys.executable, "-m", "fleet", "run", "--log-format", "json", "--host", "demo"]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "fleet.demo.tether", *run),
        cwd=folder,
        env={**os.environ, "FLEET_DATABASE_URL": url},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is for the demo, which then has it drain
    )
    host = Host(process, said)
    hearing = asyncio.create_task(host._hear())
    try:
        await host._wait_started()
        yield host
    finally:
        if process.stdin is not None:
            process.stdin.close()
        await process.wait()
        await hearing
