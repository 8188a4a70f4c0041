"""What the ready workers of this host can do: steps, their policies, definitions, schedules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from fleet.limits import NONE, Limits
from fleet.model import Claim
from fleet.policy import Policy
from fleet.retry import Retry
from fleet.store.registry import RegisteredJob

# Of a step nobody knows here any more: a deploy has taken it away under a task that we hold.
_UNKNOWN: Final[dict[str, Any]] = {"kind": "async", "timeout": 900.0, "queue": ""}


@dataclass(slots=True)
class _ToldJob:
    """A job as a worker described it: what the registry asks of one."""

    name: str
    told: dict[str, Any]

    def definition(self) -> dict[str, Any]:
        return {key: value for key, value in self.told.items() if key != "fingerprint"}

    def fingerprint(self) -> str:
        print_: str = self.told["fingerprint"]
        return print_


class Abilities:
    """Grows with what workers say; a restart with another version starts it anew."""

    def __init__(self) -> None:
        self.steps: dict[str, dict[str, Any]] = {}
        self.definitions: dict[str, dict[str, Any]] = {}
        self.schedules: list[dict[str, Any]] = []
        self._policies: dict[str, Policy] = {}

    def learn(self, told: dict[str, Any]) -> bool:
        """Take in what a worker says; True if there is anything new in it."""
        definitions = {d["name"]: d for d in told["definitions"]}
        schedules = told.get("schedules", [])
        if (told["steps"], definitions, schedules) == (
            self.steps,
            self.definitions,
            self.schedules,
        ):
            return False
        self.steps = told["steps"]
        self.definitions = definitions
        self.schedules = schedules
        self._policies.clear()
        return True

    @property
    def jobs(self) -> Mapping[str, RegisteredJob]:
        """The jobs, as the registry in the database takes them."""
        return {name: _ToldJob(name, told) for name, told in self.definitions.items()}

    @property
    def queues(self) -> dict[str, list[str]]:
        """The queues that jobs name, with the names of those jobs."""
        found: dict[str, list[str]] = {}
        for definition in self.definitions.values():
            found.setdefault(definition["queue"], []).append(definition["name"])
        return found

    def limits(self, job: str) -> Limits:
        """Return the limits of a job; none if it has none, or nobody knows it."""
        known = self.definitions.get(job)
        return Limits.from_dict(known["limits"]) if known else NONE

    def step(self, claim: Claim) -> dict[str, Any]:
        """Return what is known of a claim's step."""
        return self.steps.get(f"{claim.job}/{claim.step}", _UNKNOWN)

    def policy(self, claim: Claim) -> Policy:
        """Return the policy of a claim's step; the default one if nobody knows it."""
        name = f"{claim.job}/{claim.step}"
        if name not in self._policies:
            known = self.steps.get(name)
            self._policies[name] = (
                Policy()
                if known is None
                else Policy(
                    retry=Retry(**known["retry"]),
                    timeout=known["timeout"],
                    keep=known["keep"],
                    on_success=known["on_success"],
                    on_failure=known["on_failure"],
                )
            )
        return self._policies[name]
