"""A step: one function of a job, with everything about it worked out when it was registered."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import orjson

from fleet.annotations import Signature, compatible, place_of, read_signature
from fleet.codec import Decoder
from fleet.errors import DefinitionError, NotEncodable, StepMismatch
from fleet.names import check_step
from fleet.policy import Policy, Settings
from fleet.shapes import is_pydantic, is_record, type_name


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Step:
    """One function of a job: what is retried, timed out and traced."""

    name: str
    fn: Callable[..., Any]
    place: str
    signature: Signature
    decoder: Decoder
    settings: Settings
    transactional: bool
    takes_null: bool  # JSON null is a valid input
    record: type[Any] | None  # the class of its input, if an input must be an instance of it

    @property
    def is_async(self) -> bool:
        """Whether it is ``async def``; a plain ``def`` owns its process while it runs."""
        return self.signature.is_async

    @property
    def takes_input(self) -> bool:
        """Whether it is ``(ctx, input)`` rather than ``(ctx)``."""
        return self.signature.takes_input

    def decode(self, text: str | bytes) -> Any:
        """Read a stored input into the type the function takes."""
        return self.decoder.decode(text)

    def check_input(self, value: object, job: str) -> None:
        """Refuse what plainly is not this step's input, before it is written."""
        if value is None:
            if not self.takes_null:
                raise NotEncodable(
                    f"job {job!r} takes {type_name(self.signature.input)}, no input was given"
                )
        elif not self.takes_input:
            raise NotEncodable(
                f"job {job!r} takes no input: its step {self.name!r} ({self.place}) is (ctx)"
            )
        elif self.record is not None and not isinstance(value, self.record):
            raise NotEncodable(
                f"job {job!r} takes {type_name(self.signature.input)}, got {type_name(type(value))}"
            )

    def describe(self, policy: Policy) -> dict[str, Any]:
        """Return the part of a job's definition that is about this step."""
        return {
            "name": self.name,
            "kind": "async" if self.is_async else "def",
            "transactional": self.transactional,
            "input": self.signature.input_name,
            "schema": _schema_hash(self.signature) if self.takes_input else None,
            **policy.as_dict(),
        }


def make_step(
    fn: Callable[..., Any],
    *,
    local: Mapping[str, Any],
    name: str | None,
    settings: Settings,
    transactional: bool,
) -> Step:
    """Check a function and make a step of it; raise ``DefinitionError`` where it cannot be one."""
    signature = read_signature(fn, local)
    place = place_of(fn)
    if transactional and not signature.is_async:
        raise DefinitionError(
            f"{fn.__qualname__} ({place}) is a plain def and cannot be transactional: ctx.tx is an "
            f"asyncpg connection. Make it async def, or use ctx.finish(value, conn=...)."
        )
    try:
        decoder = Decoder(signature.input if signature.takes_input else Any)
    except DefinitionError as error:
        raise DefinitionError(f"{fn.__qualname__} ({place}) cannot be a step: {error}") from error
    return Step(
        name=check_step(fn.__name__ if name is None else name),
        fn=fn,
        place=place,
        signature=signature,
        decoder=decoder,
        settings=settings,
        transactional=transactional,
        takes_null=not signature.takes_input or decoder.accepts_null(),
        record=signature.input if is_record(signature.input) else None,
    )


def check_order(job: str, earlier: Step, later: Step) -> None:
    """Refuse two steps in a row of which the first returns what the second does not take."""
    given = earlier.signature.output
    if later.takes_input:
        reason = compatible(given, later.signature.input)
    elif compatible(given, None) is None:
        reason = None
    else:
        reason = "its value would be lost; take it, or return None"
    if reason:
        raise StepMismatch(
            f"job {job!r}: step {earlier.name!r} ({earlier.place}) returns {type_name(given)}, but "
            f"the next step {later.name!r} ({later.place}) takes {later.signature.input_name}: "
            f"{reason}"
        )


def _schema_hash(signature: Signature) -> str:
    """Hash what the input must look like, so that two versions of a class are told apart."""
    try:
        schema: object = msgspec.json.schema(signature.input, schema_hook=_foreign_schema)
    except Exception:
        # A hint for rolling deploys and no more: the name alone must do.
        schema = type_name(signature.input)
    text = orjson.dumps(schema, str, orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)
    return hashlib.sha256(text).hexdigest()[:16]


def _foreign_schema(cls: Any) -> dict[str, Any]:
    if is_pydantic(cls) and hasattr(cls, "model_json_schema"):
        return {"pydantic": cls.model_json_schema()}
    return {"class": type_name(cls)}
