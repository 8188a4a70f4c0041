"""``fleet doctor``: what is wrong or soon will be, and what to do about it."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Final

import click
from rich.table import Table
from rich.text import Text

from fleet.cli.checks import CHECKS, Finding, Severity, examine
from fleet.cli.common import (
    Database,
    Where,
    as_duration,
    as_json,
    connected,
    database_options,
    duration,
    explained,
    out,
    print_json,
    styled,
)
from fleet.cli.rounds import ROUNDS
from fleet.config import load, mask
from fleet.database import located
from fleet.errors import ConfigError, DatabaseError, EmbeddedError
from fleet.model import Seconds
from fleet.settings import RunSettings, run_settings

PAGE: Final = "docs/runbook.md"
SEVERITIES: Final[tuple[Severity, ...]] = ("ok", "note", "warning", "error")
_STYLES: Final = {"ok": "green", "note": "cyan", "warning": "yellow", "error": "bold red"}


@click.command()
@database_options
@click.option(
    "--patience",
    metavar="5m",
    type=as_duration,
    default="5m",
    show_default=True,
    help="How old an open transaction may be.",
)
@as_json
def doctor(where: Where, patience: Seconds, as_json: bool) -> None:
    """Look for what is wrong with the database, the hosts, the queues and the settings.

    Exits with 1 if anything is an error: tasks do not run, or cannot be enqueued.
    """
    findings = asyncio.run(_visit(where, patience))
    worst = max((SEVERITIES.index(finding.severity) for finding in findings), default=0)
    if as_json:
        told = [asdict(finding) | {"more": _more(finding)} for finding in findings]
        print_json({"worst": SEVERITIES[worst], "findings": told})
    else:
        _print(findings)
    if SEVERITIES[worst] == "error":
        raise SystemExit(1)


async def _visit(where: Where, patience: Seconds) -> list[Finding]:
    config, settings = _config(where)
    findings = [config]
    try:
        with located(where.url, file=where.file) as url:
            started = asyncio.get_running_loop().time()
            async with connected(url) as conn:
                took = asyncio.get_running_loop().time() - started
                says = f"{mask(url)}, connected in {duration(took)}"
                findings.append(Finding("connection", "ok", says))
                with explained(url):
                    everything = (*CHECKS, *ROUNDS)
                    db = Database(conn, url)
                    async for finding in examine(db, settings, patience, everything):
                        findings.append(finding)  # one by one: kept if the next question fails
    except ConfigError as error:
        if config.severity != "error":
            do = "set FLEET_DATABASE_URL, or database_url in fleet.toml"
            findings.append(Finding("connection", "error", str(error), do))
    except (DatabaseError, EmbeddedError) as error:
        do = "is it running, does it listen there, are user and password right?"
        findings.append(Finding("connection", "error", str(error), do))
    return findings


def _config(where: Where) -> tuple[Finding, RunSettings | None]:
    try:
        found = load(file=where.file)
        settings = run_settings(found.tables)
    except ConfigError as error:
        return Finding("config", "error", str(error), "correct it; fleet run refuses it too"), None
    if found.file is None:
        says = "no fleet.toml here or above: the defaults and the environment count"
        return Finding("config", "note", says), settings
    return Finding("config", "ok", str(found.file)), settings


def _more(finding: Finding) -> str | None:
    return None if finding.severity == "ok" else f"{PAGE}#{finding.about}"


def _print(findings: list[Finding]) -> None:
    rows = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    rows.add_column(no_wrap=True)
    rows.add_column(no_wrap=True)
    rows.add_column(overflow="fold")
    for finding in findings:
        style = _STYLES[finding.severity]
        told = styled(finding.says, "dim" if finding.severity == "ok" else "")
        if finding.do:
            told.append_text(styled(f"\n→ {finding.do}", "bold"))
        if more := _more(finding):
            told.append(f"\n  {more}", style="dim")
        rows.add_row(Text(finding.severity, style=style), Text(finding.about), told)
    out().print(rows)
    counted = {word: sum(f.severity == word for f in findings) for word in SEVERITIES[:0:-1]}
    said = ", ".join(f"{n} {word}{'s' if n > 1 else ''}" for word, n in counted.items() if n)
    out().print(f"\n{said or 'Nothing to say: all is well'}.")
