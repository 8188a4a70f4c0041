"""The wheel as users get it: built, installed into an empty venv, run outside the checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

import fleet
from fleet.store import migrations
from fleet.testing.plugin import scratch_database

SOURCE = Path(fleet.__file__ or "").parent.parent
NEEDED = ("pyproject.toml", "README.md", "LICENSE", "fleet", "supervisor", "migrations")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build it from a copy, as a release is built from a checkout."""
    copy = tmp_path_factory.mktemp("source")
    for name in NEEDED:
        if (SOURCE / name).is_dir():
            ignore = shutil.ignore_patterns("__pycache__")
            shutil.copytree(SOURCE / name, copy / name, ignore=ignore)
        else:
            shutil.copy(SOURCE / name, copy / name)
    out = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, copy],
        check=True,
        capture_output=True,
    )
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install it into an empty venv; the dependencies are those of this one, by path."""
    home = tmp_path_factory.mktemp("venv")
    venv.create(home, with_pip=False)
    python = home / "bin" / "python"
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "--python", python, "install", "-q"),
            *("--no-deps", "--no-index", "--disable-pip-version-check", wheel),
        ],
        check=True,
        capture_output=True,
    )
    (packages,) = home.glob("lib/python*/site-packages")
    # A path in a .pth file is only put on sys.path: the editable install's own .pth is not read.
    (packages / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return home


def run(installed: Path, folder: Path, *args: object, **env: str) -> str:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("FLEET_", "DATABASE_", "PYTHON", "VIRTUAL_ENV"))
    }
    done = subprocess.run(
        [str(arg) for arg in args],
        cwd=folder,
        env=kept | {"PATH": f"{installed / 'bin'}:{kept['PATH']}"} | env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_everything_that_is_needed_is_in_the_wheel(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())

    assert {"fleet/py.typed", "supervisor/__init__.py", "fleet/demo/shop.py"} <= names
    files = {f"fleet/migrations/{migration.filename}" for migration in migrations.read()}
    assert files <= names
    assert not [name for name in names if name.startswith(("tests/", "migrations/", "bench/"))]
    (entry,) = [name for name in names if name.endswith("entry_points.txt")]
    with zipfile.ZipFile(wheel) as archive:
        assert "fleet = fleet.cli:main" in archive.read(entry).decode()


def test_the_installed_command_says_its_version(installed, tmp_path):
    assert run(installed, tmp_path, "fleet", "--version").startswith("fleet 0.")


def test_nothing_of_the_checkout_is_used(installed, tmp_path):
    said = run(
        *(installed, tmp_path, installed / "bin" / "python", "-c"),
        "import fleet, supervisor; from fleet.store import migrations;"
        "print(fleet.__file__, supervisor.__file__, migrations.folder())",
    )

    assert all(Path(place).is_relative_to(installed) for place in said.split())
    assert str(SOURCE) not in said


def test_the_installed_command_migrates_from_inside_the_wheel_and_enqueues(
    installed, tmp_path, server
):
    with scratch_database(server.dsn, "template0") as url:
        said = run(installed, tmp_path, "fleet", "migrate", FLEET_DATABASE_URL=url)
        assert f"at version {migrations.LATEST} now" in said
        said = run(
            *(installed, tmp_path, "fleet", "enqueue", "job", "1", "--queue", "q"),
            FLEET_DATABASE_URL=url,
        )
        assert "Task 1" in said
        assert "fleet migrate" not in run(
            installed, tmp_path, "fleet", "status", FLEET_DATABASE_URL=url
        )
