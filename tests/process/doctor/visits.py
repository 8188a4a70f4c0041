"""What the doctor found."""

from __future__ import annotations

import re
from urllib.parse import urlsplit, urlunsplit

from tests.pages import ROOT

SOURCES = [ROOT / "fleet" / "cli" / f"{name}.py" for name in ("checks", "rounds", "doctor")]
SLUGS = {
    slug
    for source in SOURCES
    for slug in re.findall(r'(?:Finding|ok)\(\s*"([a-z-]+)"', source.read_text())
}


def visit(fleet, *args, code=0, **env):
    """Return what it found, as {about: [(severity, says, do)]}."""
    found: dict[str, list[tuple[str, str, str]]] = {}
    for finding in fleet.json("doctor", *args, code=code, **env)["findings"]:
        told = (finding["severity"], finding["says"], finding["do"] or "")
        found.setdefault(finding["about"], []).append(told)
    return found


def one(found, about, severity):
    """Return the words of the only finding of that severity, and what to do."""
    (said,) = [told for told in found[about] if told[0] == severity]
    return f"{said[1]} → {said[2]}"


def as_role(dsn, role):
    parts = urlsplit(dsn)
    return urlunsplit(parts._replace(netloc=f"{role}@{parts.netloc.rpartition('@')[2]}"))


async def set_for_database(db, setting, value):
    name = await db.fetchval("select current_database()")
    await db.execute(f"alter database {name} set {setting} = '{value}'")
