"""The command as a real process, and what it said."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path


class Commands:
    def __init__(self, folder: Path, url: str | None) -> None:
        self.folder, self.url = folder, url

    def environment(self, **more: str) -> dict[str, str]:
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("FLEET_", "DATABASE_", "PG", "COLUMNS", "NO_COLOR"))
        }
        return kept | ({"FLEET_DATABASE_URL": self.url} if self.url else {}) | more

    def start(self, *args: object, **env: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "fleet", *map(str, args)],
            cwd=self.folder,
            env=self.environment(**env),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __call__(
        self, *args: object, stdin: str = "", code: int = 0, **env: str
    ) -> subprocess.CompletedProcess[str]:
        process = self.start(*args, **env)
        stdout, stderr = process.communicate(stdin, timeout=60)
        done = subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)
        assert "Traceback" not in stderr, stderr
        assert done.returncode == code, (stdout, stderr)
        return done

    def json(self, *args: object, **options: object):
        return json.loads(self(*args, "--json", **options).stdout)
