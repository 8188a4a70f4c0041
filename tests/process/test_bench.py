"""The short form of ``make bench``: it runs and measures; what it measures decides nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def test_the_benchmark_runs_and_reports_ratios(tmp_path: Path):
    report = tmp_path / "core.json"
    command = [sys.executable, "-m", "bench.core", "--smoke", "--json", str(report)]
    subprocess.run(command, check=True, timeout=110)
    rows = {row["what"]: row for row in json.loads(report.read_text())}
    assert {"enqueue, bulk", "drain, archived", "drain, three durable steps"} <= rows.keys()
    assert all(row["ours"] > 0 and row["floor"] > 0 for row in rows.values())


def test_what_limits_cost_is_measured_with_a_real_fleet(tmp_path: Path):
    report = tmp_path / "limits.json"
    command = [sys.executable, "-m", "bench.limits", "--smoke", "--json", str(report)]
    subprocess.run(command, check=True, timeout=110)
    rows = {row["what"]: row for row in json.loads(report.read_text())}
    assert rows.keys() == {"beside 1,000 under a limit", "under a limit itself"}
    assert all(row["ours"] > 0 and row["floor"] > 0 for row in rows.values())


def test_recovery_and_rest_are_measured(tmp_path: Path):
    report = tmp_path / "recovery.json"
    command = [sys.executable, "-m", "bench.recovery", "--smoke", "--json", str(report)]
    subprocess.run(command, check=True, timeout=110)
    assert any(what.startswith("SIGKILL") for what in json.loads(report.read_text()))
