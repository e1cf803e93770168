"""Long work: what of a team's data it needs, how it is done, and what it leaves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy.orm import Session

from foretell.serve.database.tables import Job
from foretell.serve.problems import Problem, missing
from foretell.serve.requests import StrictModel

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What came out: JSON for programs, a picture for people (HTML), and a file where one was made."""

    result: str
    picture: str | None = None
    file: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """What the service has for the work: the file of the profile that was named, and the Ray cluster it was given."""

    profile: Path | None = None
    ray: str | None = None


class Gone(Exception):
    """Something of the team that the work needs is not there."""

    def __init__(self, what: str, name: str) -> None:
        super().__init__(f"its {what} is gone.")
        self.what, self.name = what, name

    def problem(self) -> Problem:
        return missing(self.what, self.name)


class JobRequest(StrictModel):
    """What every kind can do."""

    def check(self) -> None:
        """A slip in a name is an error at once, not after a long wait."""

    def material(self, session: Session, team: str) -> bytes:
        """What of the team's data the work needs; `Gone` where it is not there any more."""
        return b""

    def do(self, material: bytes, say: Say, means: Means) -> Done:
        """In a process of its own, without the database."""
        raise NotImplementedError

    def keep(self, session: Session, job: Job, done: Done) -> None:
        """What outlasts the job, in the transaction that ends it."""
