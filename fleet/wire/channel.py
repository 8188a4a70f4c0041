"""Frames of orjson over a socket pair: ``[kind, body]``, four bytes of length before each.

The pair is made by the supervisor and belongs to this alone, so a child that floods its output,
prints to stdout or closes file descriptors harms nobody. A frame that cannot be read ends the
channel: what sent it is not to be trusted any more.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import Callable
from typing import Any, Final, Self, cast

import orjson

_HEADER: Final = struct.Struct("<I")
MAX_FRAME: Final = 256 * 1_048_576

_log: Final = logging.getLogger("fleet.wire")


class Channel(asyncio.Protocol):
    """One end: ``on_message(kind, body)`` is called for each frame, ``on_end()`` at the end."""

    def __init__(self, on_message: Callable[[str, Any], None], on_end: Callable[[], None]) -> None:
        self._on_message = on_message
        self._on_end = on_end
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None
        self._writable = asyncio.Event()
        self._writable.set()

    @classmethod
    async def open(
        cls,
        sock: socket.socket,
        on_message: Callable[[str, Any], None],
        on_end: Callable[[], None],
    ) -> Self:
        """Start reading from ``sock``, which the channel owns from now on."""
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        _, channel = await loop.create_unix_connection(lambda: cls(on_message, on_end), sock=sock)
        return channel

    def send(self, kind: str, body: Any = None) -> None:
        """Send a frame; nothing happens if the other end is gone."""
        if self._transport is None or self._transport.is_closing():
            return
        payload = orjson.dumps((kind, body))
        self._transport.write(_HEADER.pack(len(payload)) + payload)

    @property
    def congested(self) -> bool:
        """Whether the other end reads more slowly than we send: give it nothing more for now."""
        return not self._writable.is_set()

    async def drained(self) -> None:
        """Wait until the other end has caught up."""
        await self._writable.wait()

    def close(self) -> None:
        """Send what is buffered and end it."""
        if self._transport is not None:
            self._transport.close()

    # ── asyncio's side ──────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass of it

    def data_received(self, data: bytes) -> None:
        """Take what came and hand on each frame that is complete."""
        self._received += data
        start, end = 0, len(self._received)
        view = memoryview(self._received)
        frames = []
        try:
            while end - start >= _HEADER.size:
                (size,) = _HEADER.unpack_from(view, start)
                if size > MAX_FRAME:
                    raise ValueError(f"a frame of {size} bytes")
                if end - start - _HEADER.size < size:
                    break
                frames.append(bytes(view[start + _HEADER.size : start + _HEADER.size + size]))
                start += _HEADER.size + size
        except ValueError as error:
            view.release()
            self._abort(error)
            return
        view.release()
        del self._received[:start]
        for frame in frames:
            try:
                kind, body = orjson.loads(frame)
            except (ValueError, TypeError) as error:
                self._abort(error)
                return
            self._on_message(kind, body)

    def _abort(self, error: Exception) -> None:
        _log.error("a frame could not be read (%s): the channel is closed", type(error).__name__)
        if self._transport is not None:
            self._transport.abort()

    def pause_writing(self) -> None:
        """Note that the other end is slow."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Note that the other end has caught up."""
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell that it is over; whatever was complete has been handed on before."""
        self._writable.set()
        self._on_end()
