"""A task's result, in the type that its job promises."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fleet.codec import Decoder
from fleet.errors import DefinitionError
from fleet.store.results import Sight

if TYPE_CHECKING:
    from fleet.app import Fleet
    from fleet.job import Job


class ResultDecoders:
    """One decoder a job: for what its last step returns."""

    def __init__(self, app: Fleet) -> None:
        self._app = app
        self._plain = Decoder()
        self._known: dict[str, tuple[object, Decoder]] = {}

    def decode(self, sight: Sight) -> Any:
        """Read the stored result; as plain JSON where this application has no such job."""
        if sight.result is None:
            return None
        job = self._app.jobs.get(sight.job or "")
        decoder = self._plain if job is None else self._decoder(job)
        return decoder.decode(sight.result)

    def _decoder(self, job: Job[Any, Any]) -> Decoder:
        annotation = job.steps[-1].signature.result
        known = self._known.get(job.name)
        if known is None or known[0] is not annotation:
            try:
                known = (annotation, Decoder(annotation))
            except DefinitionError:
                # What is only ever written need not be readable: its JSON is what there is.
                known = (annotation, self._plain)
            self._known[job.name] = known
        return known[1]
