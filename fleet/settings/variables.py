"""``FLEET_*``: which variable says which key. The rule stands in the package's docstring."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Final

from fleet.errors import ConfigError
from fleet.settings.schema import SCHEMA
from fleet.settings.sources import QUEUES, Said, Spot, queue_name, split

_PREFIX: Final = "FLEET_"
_MARKS: Final[Mapping[str, str]] = {"_": "_", "__": "-", "___": "."}
# Kubernetes sets such variables in every pod for each Service beside it, and one called
# fleet-supervisor is likely: these are not said to us.
_SERVICE_LINK: Final = re.compile(
    r"_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$"
)


def lay_variables(said: Said, env: Mapping[str, str]) -> None:
    """Take what the environment says."""
    in_file = tuple(said.queues)
    # Sorted, for the environment has no order and a queue that is new here has its place by it.
    for name in sorted(env):
        if name.upper().startswith(_PREFIX) and (spot := _spot(name, in_file)):
            said.put_text(spot, env[name], name)


def variable(spot: Spot) -> str:
    """Return the variable that says the key in this place.

    >>> variable(Spot("queues", "bulk-mail", "limit"))
    'FLEET_QUEUES_BULK__MAIL_LIMIT'
    """
    queue = (spot.queue or "").replace("-", "__").replace(".", "___")
    words = (spot.table, queue, spot.key.replace(".", "_"))
    return (_PREFIX + "_".join(word for word in words if word)).upper()


def _spot(name: str, in_file: tuple[str, ...]) -> Spot | None:
    table, _, rest = name[len(_PREFIX) :].lower().partition("_")
    if table not in SCHEMA:
        _check_table(name, table, rest)
        return None  # FLEET_APP, FLEET_DATABASE_URL, or somebody else's
    keys = {key.replace(".", "_"): key for key in SCHEMA[table]}
    queue, key = split(rest, "_", keys) if table == QUEUES else (None, rest)
    if key not in keys or queue == "":
        if _SERVICE_LINK.search(name) or name != name.upper():
            return None
        raise _unknown(name, Spot(table, queue, key), keys)
    if name != name.upper():
        # Both spellings could be set, and nobody could tell which one counts.
        raise _refused(name, f"variables are written in capitals: {name.upper()}")
    if queue is None:
        return Spot(table, None, keys[key])
    return _of_queue(name, Spot(table, queue, keys[key]), in_file)


def _of_queue(name: str, spot: Spot, in_file: tuple[str, ...]) -> Spot:
    if re.search("____", spot.queue or ""):
        raise _refused(name, "_ is _, __ is - and ___ is . in a queue's name; four are nothing")
    queue = re.sub("_+", lambda run: _MARKS[run[0]], spot.queue or "")
    queue_name(name, queue)
    if queue not in in_file:
        for other in in_file:
            if _folded(other) == _folded(queue):
                meant = variable(spot._replace(queue=other))
                raise _refused(name, f"is of a queue {queue}; for {other} of the file: {meant}")
    return spot._replace(queue=queue)


def _folded(queue: str) -> str:
    return re.sub("[-.]", "_", queue)


def _check_table(name: str, table: str, rest: str) -> None:
    near = difflib.get_close_matches(table, SCHEMA, n=1, cutoff=0.8)
    if near and rest and name == name.upper() and not _SERVICE_LINK.search(name):
        meant = f"{_PREFIX}{near[0]}_{rest}".upper()
        raise _refused(name, f"there is no such key; did you mean {meant}?")


def _unknown(name: str, spot: Spot, keys: Mapping[str, str]) -> ConfigError:
    near = difflib.get_close_matches(spot.key, keys, n=1)
    if near:
        meant = variable(spot._replace(key=near[0]))
        return _refused(name, f"there is no such key; did you mean {meant}?")
    of = "a queue" if spot.table == QUEUES else f"[{spot.table}]"
    words = ", ".join(key.upper() for key in keys)
    return _refused(name, f"there is no such key; those of {of} are {words}")


def _refused(name: str, hint: str) -> ConfigError:
    # The value stays hidden: under a name that is wrong it may be a secret.
    return ConfigError(name, "***", hint)
