"""What a name may look like: the one rule for queues and jobs, and the one for steps.

The database holds to the same patterns: those of queues and jobs are the domain ``fleet.name``,
so that no row can carry another; those of steps are checked by the functions that enqueue and
revive.
"""

import re
from typing import Final

from fleet.errors import InvalidName

MAX_LENGTH: Final = 63
_NAME: Final = re.compile(r"[a-z][a-z0-9_.-]{0,62}")
_STEP: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,62}")


def check_name(kind: str, name: object) -> str:
    """Return ``name`` if a queue, job or schedule may be called so; raise ``InvalidName`` if not.

    >>> check_name("queue", "billing")
    'billing'
    """
    if isinstance(name, str) and _NAME.fullmatch(name):
        return name
    raise InvalidName(
        kind, name, "1 to 63 characters: a lower-case letter, then a-z, 0-9, '_', '-' or '.'"
    )


def check_step(name: object) -> str:
    """Return ``name`` if a step may be called so; raise ``InvalidName`` if not."""
    if isinstance(name, str) and _STEP.fullmatch(name):
        return name
    raise InvalidName(
        "step", name, "1 to 63 ASCII characters: a letter or '_', then letters, digits, '_' or '-'"
    )
