"""Every block of code in the documents runs: a process and a fresh database a page."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pages import LANGUAGES, ROOT, blocks, pages

WITH_CODE = [page for page in pages() if any(b.language in LANGUAGES for b in blocks(page))]


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_code_of_a_page_runs(page: Path, dsn: str, fleet_server: str, tmp_path: Path):
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
