"""Runs a command that must not outlive whoever started it.

A line on stdin, or its end, is SIGTERM for the command. Its end means that the one who held the
other end is gone, however it went: what has not ended by itself is killed a little later.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Final

_PATIENCE: Final = 10.0


def main() -> None:
    """Run the command line's command."""
    child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
    threading.Thread(target=_hold, args=(child,), daemon=True).start()
    sys.exit(child.wait())


def _hold(child: subprocess.Popen[bytes]) -> None:
    for _ in sys.stdin:
        child.terminate()
    child.terminate()
    try:
        child.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        child.kill()


if __name__ == "__main__":
    main()
