"""How the supervisor and its workers log: text for a person, a line of JSON for a machine.

What a record carries beside its message (``extra=``, and what ``ctx.log`` adds) is kept: as fields
of the JSON, behind the message in a text. Inputs are never logged by Fleet, and an address that
slipped into a message loses its password here.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import time
from typing import Any, Final, Literal, TypeAlias

import orjson

Format: TypeAlias = Literal["text", "json"]

FORMAT: Final = "FLEET_LOG_FORMAT"
LEVEL: Final = "FLEET_LOG_LEVEL"

_OWN: Final = frozenset(vars(logging.makeLogRecord({}))) | {
    *("message", "asctime", "taskName", "text"),
}
_PASSWORD: Final = re.compile(r"(\w://[^\s:/@]*):[^\s/]*@")


class TextFormatter(logging.Formatter):
    """A line as a person reads it."""

    def format(self, record: logging.LogRecord) -> str:
        """Return time, level, logger, message and what else the record carries."""
        if text := getattr(record, "text", None):  # the same for a person, on several lines
            return without_passwords(str(text))
        at = time.strftime("%H:%M:%S", time.localtime(record.created))
        head = f"{at}.{int(record.msecs):03d} {record.levelname:<7} {record.name}"
        more = "".join(f" {key}={value}" for key, value in _extra(record).items())
        text = f"{head}: {record.getMessage()}{more}"
        if record.exc_info:
            text += f"\n{self.formatException(record.exc_info)}"
        return without_passwords(text)


class JsonFormatter(logging.Formatter):
    """A line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the same as one object on one line."""
        fields: dict[str, Any] = {
            "at": f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}"
            f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "pid": record.process,
            "message": record.getMessage(),
        }
        fields |= {key: value for key, value in _extra(record).items() if key not in fields}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        options = orjson.OPT_NON_STR_KEYS
        return without_passwords(orjson.dumps(fields, default=str, option=options).decode())


def configure(form: Format, level: str) -> None:
    """Log to stderr in this form; what is not Fleet's own from WARNING on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    logging.getLogger().handlers = [handler]
    logging.getLogger("fleet").setLevel(level.upper())
    # Workers have no other way to know.
    os.environ[FORMAT], os.environ[LEVEL] = form, level


def inherit() -> None:
    """Log in a worker as its supervisor does, unless the application has set up logging itself."""
    form, level = os.environ.get(FORMAT), os.environ.get(LEVEL)
    if form in ("text", "json") and level and not logging.getLogger().handlers:
        configure("json" if form == "json" else "text", level)


def without_passwords(text: str) -> str:
    """Return a text in which no address has a password.

    >>> without_passwords("cannot reach postgresql://me:secret@host/db")
    'cannot reach postgresql://me:***@host/db'
    """
    return _PASSWORD.sub(r"\1:***@", text) if "://" in text else text


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    return {key: value for key, value in vars(record).items() if key not in _OWN}
