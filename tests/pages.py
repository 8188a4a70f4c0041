"""The code in the documents, found and run for real: one process a page.

    python -m tests.pages docs/jobs.md      with FLEET_DATABASE_URL and FLEET_TEST_DATABASE_URL set

Blocks run in the order of the page. What each language means here:

    python   runs in the page's one namespace, with top-level ``await``. A block that begins with a
             comment like ``# jobs.py`` is written to that file; unless it is called ``test_…``, it
             is imported and its names join the namespace
    sql      is executed
    toml     is read by ``fleet.config``; one that begins with ``# fleet.toml`` stays as that file
    sh       the lines that call ``fleet``, ``python`` or ``pytest`` are run; one that ends in
             ``# fails`` must fail

A block after ``<!-- not run: why -->`` is left alone. Every other language is not code.
"""

from __future__ import annotations

import ast
import asyncio
import importlib
import inspect
import os
import re
import shlex
import subprocess
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg

from fleet.config import load

ROOT = Path(__file__).resolve().parent.parent
LANGUAGES = ("python", "sql", "toml", "sh")

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NOT_RUN = re.compile(r"<!-- not run: (.+?) -->\s*\Z", re.DOTALL)
_FILE = re.compile(r"# ([\w./-]+\.\w+)\n")
_RUNNABLE = ("fleet", "python", "pytest")


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block of a page."""

    page: Path
    line: int  # of its first line of text
    language: str
    text: str
    not_run: str | None

    @property
    def file(self) -> str | None:
        """The file it says it is."""
        found = _FILE.match(self.text)
        return found[1] if found else None

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def pages() -> list[Path]:
    """Return the documents that have code: the README and everything under docs/."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path) -> Iterator[Block]:
    """Yield the fenced blocks of a page in order."""
    text = page.read_text(encoding="utf-8")
    for found in _FENCE.finditer(text):
        before = text[: found.start()]
        reason = _NOT_RUN.search(before)
        line = before.count("\n") + 2
        yield Block(page, line, found[1], found[2], reason[1] if reason else None)


class Page:
    """One page being run, in the current folder."""

    def __init__(self, page: Path) -> None:
        self.module = types.ModuleType(f"page_{page.stem.replace('-', '_')}")
        # By name too, because annotations are looked up in the module of their class.
        sys.modules[self.module.__name__] = self.module
        sys.path.insert(0, str(Path.cwd()))

    def run(self, page: Path) -> None:
        """Run every block; the first that fails ends it."""
        with asyncio.Runner() as runner:
            for block in blocks(page):
                if block.language not in LANGUAGES or block.not_run:
                    continue
                say(f"-- {block}")
                getattr(self, f"_{block.language}")(block, runner)

    def _python(self, block: Block, runner: asyncio.Runner) -> None:
        if block.file is not None:
            self._keep(Path(block.file), block.text)
            return
        source = "\n" * (block.line - 1) + block.text  # so that tracebacks name the page's lines
        # dont_inherit: this module's `from __future__` lines are not the page's.
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        code = compile(source, str(block.page), "exec", flags=flags, dont_inherit=True)
        if code.co_flags & inspect.CO_COROUTINE:
            runner.run(self._awaited(code))
        else:
            exec(code, self.module.__dict__)

    def _keep(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        if path.name.startswith("test_"):
            return
        importlib.invalidate_caches()
        imported = importlib.import_module(".".join(path.with_suffix("").parts))
        names = {name: value for name, value in vars(imported).items() if name[:2] != "__"}
        self.module.__dict__.update(names)

    async def _awaited(self, code: types.CodeType) -> None:
        await eval(code, self.module.__dict__)

    def _sql(self, block: Block, runner: asyncio.Runner) -> None:
        async def execute() -> None:
            conn = await asyncpg.connect(os.environ["FLEET_DATABASE_URL"])
            try:
                await conn.execute(block.text)
            finally:
                await conn.close()

        runner.run(execute())

    def _toml(self, block: Block, _: Any) -> None:
        path = Path(block.file or "page.toml")
        path.write_text(block.text, encoding="utf-8")
        load(file=path, env={})

    def _sh(self, block: Block, _: Any) -> None:
        for line in commands(block.text):
            words = shlex.split(line, comments=True)
            if words[0] not in _RUNNABLE:
                continue
            program = [sys.executable] if words[0] == "python" else [sys.executable, "-m", words[0]]
            done = subprocess.run(
                [*program, *words[1:]], capture_output=True, text=True, timeout=60, check=False
            )
            say(f"$ {line}\n{done.stdout}{done.stderr}")
            if (done.returncode != 0) != line.endswith("# fails"):
                raise SystemExit(f"{block}: `{line}` ended with {done.returncode}")


def say(text: str) -> None:
    """Tell whoever reads a failure how far the page came."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def commands(text: str) -> Iterator[str]:
    """Yield the commands of a shell block, those over several lines in one."""
    for line in text.replace("\\\n", " ").splitlines():
        if line.strip() and not line.startswith("#"):
            yield line.strip()


if __name__ == "__main__":
    Page(Path(sys.argv[1])).run(Path(sys.argv[1]))
