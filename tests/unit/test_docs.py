"""What the documents point at is there: links, anchors, commands, options, make targets."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from fleet import errors
from fleet.cli import main
from tests.pages import LANGUAGES, ROOT, blocks, commands, pages

PAGES = [*pages(), ROOT / "CHANGELOG.md"]
_LINK = re.compile(r"\]\(([^)\s]+)\)|(?:src|href)=\"([^\"]+)\"")
_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`([^`\n]+)`")
# The most blocks that may stay unrun in all pages together: each says why.
MOST_NOT_RUN = 4


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def prose(page: Path) -> str:
    return _FENCED.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives to a page's headings."""
    found = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in found)
    return {heading.replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_relative_link_leads_somewhere(page: Path):
    for found in _LINK.finditer(prose(page)):
        target = found[1] or found[2]
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), f"{name_of(page)} links to {target}"
        assert linked.is_relative_to(ROOT)
        if anchor:
            assert anchor in anchors(linked), f"{name_of(page)} links to {target}"


def test_every_page_can_be_reached_from_the_index():
    index = ROOT / "docs" / "index.md"
    linked = {
        (index.parent / m[1].partition("#")[0]).resolve() for m in _LINK.finditer(prose(index))
    }
    for page in (ROOT / "docs").rglob("*.md"):
        assert page == index or page in linked, f"docs/index.md does not link to {name_of(page)}"


def named_commands(page: Path) -> list[str]:
    found = [code for code in _INLINE.findall(prose(page)) if code.startswith("fleet ")]
    for block in blocks(page):
        if block.language == "sh":
            found += [line for line in commands(block.text) if line.startswith("fleet ")]
    return found


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_command_and_option_exists(page: Path):
    for line in named_commands(page):
        command: click.Command = main
        with click.Context(main) as context:
            words = line.split("#")[0].split()[1:]
            for word in words:
                if word.startswith("-"):
                    option = word.partition("=")[0]
                    known = {o for p in command.get_params(context) for o in p.opts}
                    assert option in known, f"{name_of(page)}: `{line}` has no {option}"
                elif word.isupper():
                    break  # `fleet COMMAND --help`: a placeholder
                elif isinstance(command, click.Group):
                    for name in word.split("|"):  # `fleet task list|show`
                        inner = command.get_command(context, name)
                        assert inner is not None, f"{name_of(page)}: no command `{line}`"
                    command = inner


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_make_target_exists(page: Path):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"(?:`|^)make ([a-z-]+)", text, re.MULTILINE):
        assert target in targets, f"{name_of(page)}: make {target}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_nothing_of_one_machine_is_in_a_document(page: Path):
    text = page.read_text(encoding="utf-8")
    assert not re.search(r"/work/|/root/|/home/|pypi\.org|localhost:\d+/simple", text)


def test_blocks_that_are_not_run_are_few_and_say_why():
    left = [block for page in pages() for block in blocks(page) if block.not_run]
    assert all(block.language in LANGUAGES for block in left)
    assert len(left) <= MOST_NOT_RUN, [str(block) for block in left]


def test_every_error_is_on_the_page_of_errors():
    page = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    for name in errors.__all__:
        assert f"`{name}`" in page or name == "FleetError", f"docs/errors.md has no `{name}`"
        assert re.search(rf"\b{name}\b", page)
