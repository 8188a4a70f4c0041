"""A worker dies with its supervisor, also while a step holds the interpreter.

The supervisor holds the writing end of a pipe whose reading end is the worker's. When the
supervisor is gone the kernel closes it, and because the reading end is set up to send a signal,
kills the worker: no Python needs to run for that, so a regular expression that never ends does
not keep an orphan alive. Where that cannot be had (macOS), the end of the channel does it, once
the loop runs.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys


def tie(reading_end: int) -> None:
    """Have this process killed when the other end of the pipe is closed."""
    if sys.platform != "linux":
        return
    # The whole group, if it is ours: what a step has started must not outlive us all.
    group = os.getpgrp() == os.getpid()
    fcntl.fcntl(reading_end, fcntl.F_SETOWN, -os.getpgrp() if group else os.getpid())
    fcntl.fcntl(reading_end, fcntl.F_SETSIG, signal.SIGKILL)
    flags = fcntl.fcntl(reading_end, fcntl.F_GETFL)
    fcntl.fcntl(reading_end, fcntl.F_SETFL, flags | os.O_ASYNC | os.O_NONBLOCK)
    # Closed already: no signal will come for what happened before we asked for it.
    try:
        if os.read(reading_end, 1) == b"":
            os.kill(0 if group else os.getpid(), signal.SIGKILL)
    except BlockingIOError:
        pass
