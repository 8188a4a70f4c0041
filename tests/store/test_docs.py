"""Every block of code in the documents runs: a process and a fresh database a page."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pages import LANGUAGES, ROOT, blocks, pages

WITH_CODE = [page for page in pages() if any(b.language in LANGUAGES for b in blocks(page))]


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_code_of_a_page_runs(page: Path, dsn: str, fleet_server: str, tmp_path: Path):
    # A page about a framework that is not installed says so: <!-- needs: fastapi, httpx -->
    for needed in re.findall(r"<!-- needs: ([\w, ]+) -->", page.read_text(encoding="utf-8")):
        for module in needed.split(", "):
            if importlib.util.find_spec(module) is None:
                pytest.skip(f"{module} is not installed")
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("FLEET_", "PYTEST_")) and name != "DATABASE_URL"
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.pages", str(page)],
        cwd=tmp_path,
        env=environment
        | {
            "PYTHONPATH": str(ROOT),
            "FLEET_DATABASE_URL": dsn,
            "FLEET_TEST_DATABASE_URL": fleet_server,
        },
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )

    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
