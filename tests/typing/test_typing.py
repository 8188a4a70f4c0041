"""Strict mypy and pyright over code as users write it."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

SAMPLES = Path(__file__).parent / "samples"
ROOT = Path(__file__).parents[2]

Errors = dict[tuple[str, int], str]


@pytest.fixture(scope="module")
def by_mypy(tmp_path_factory: pytest.TempPathFactory) -> Errors:
    # Its own cache and no project file: neither may decide what a user would see.
    cache = tmp_path_factory.mktemp("mypy")
    done = _run(
        "mypy", "--strict", "--config-file=", f"--cache-dir={cache}", "--no-error-summary",
        "--hide-error-context", "--no-pretty", "--python-version=3.11", *_samples(),
    )  # fmt: skip
    found: Errors = {}
    for row in done.splitlines():
        if match := re.match(r"(.+?):(\d+): error: (.*)", row):
            found[Path(match[1]).name, int(match[2])] = match[3]
    return found


@pytest.fixture(scope="module")
def by_pyright(tmp_path_factory: pytest.TempPathFactory) -> Errors:
    project = tmp_path_factory.mktemp("pyright") / "pyrightconfig.json"
    settings = {
        "include": _samples(),
        "extraPaths": [str(ROOT)],
        "typeCheckingMode": "strict",
        "pythonVersion": "3.11",
    }
    project.write_text(json.dumps(settings))
    done = _run("basedpyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(project))
    return {
        (Path(each["file"]).name, each["range"]["start"]["line"] + 1): each["message"]
        for each in json.loads(done)["generalDiagnostics"]
        if each["severity"] == "error"
    }


def _samples() -> list[str]:
    return [str(path) for path in sorted(SAMPLES.glob("*.py"))]


def _run(module: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        capture_output=True, text=True, cwd=ROOT, check=False, timeout=110,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stderr or done.stdout
    assert done.stdout, done.stderr
    return done.stdout


@pytest.mark.parametrize("checker", ["by_mypy", "by_pyright"])
@pytest.mark.parametrize("sample", sorted(path.name for path in SAMPLES.glob("*.py")))
def test_exactly_the_marked_lines_are_wrong(
    checker: str, sample: str, request: pytest.FixtureRequest
) -> None:
    found: Errors = request.getfixturevalue(checker)
    rows = (SAMPLES / sample).read_text().splitlines()
    marked = {number for number, row in enumerate(rows, 1) if row.endswith("# error")}
    errors = {line: message for (file, line), message in found.items() if file == sample}

    unexpected = {f"{sample}:{line}": errors[line] for line in errors.keys() - marked}
    missed = {f"{sample}:{line}": rows[line - 1] for line in marked - errors.keys()}
    assert not unexpected
    assert not missed


def test_the_samples_of_wrong_code_are_many() -> None:
    assert (SAMPLES / "wrong.py").read_text().count("# error\n") > 20
