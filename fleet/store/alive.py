"""Have the kernel see to it that the other end of a connection is still there.

A connection whose packets are dropped looks alive for ever. The kernel finds that out in five
seconds, unless somebody in between (a pooler, a proxy) answers for the other end.
"""

from __future__ import annotations

import os
import socket
from typing import Any, Final

# Two seconds of silence, then three questions; and what was sent is confirmed within five.
_KEEPALIVE: Final = {
    "TCP_KEEPIDLE": 2,
    "TCP_KEEPALIVE": 2,  # macOS's word for it
    "TCP_KEEPINTVL": 1,
    "TCP_KEEPCNT": 3,
    "TCP_USER_TIMEOUT": 5_000,
}


def keep_alive(conn: Any) -> None:
    """Watch over a connection of asyncpg's, a pool's too."""
    its = conn._transport.get_extra_info("socket")  # there is no other way to it
    if its.family not in (socket.AF_INET, socket.AF_INET6):
        return
    with socket.socket(fileno=os.dup(its.fileno())) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE.items():
            if hasattr(socket, name):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
