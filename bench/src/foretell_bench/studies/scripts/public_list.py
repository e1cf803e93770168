"""The public scripts that Foretell is examined on: where they are, how their READMEs run them, what they then train.

`public.toml` has them, with the repositories that were drawn and left out. Nobody had run or developed with drawn ones before they
were run for the record; since then they are open like the others. Parameters, batch, precision and plan are worked out by hand from
source and README, never from a forecast.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

LIST: Final = Path(__file__).with_name("public.toml")
DRAWS: Final = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicScript:
    """A script of a repository as its README runs it; either `script` with arguments or a line that launches it."""

    repository: str
    commit: str
    on: str  # devices
    drawn: int = 0  # the number of the draw; 0 where it was developed with from the beginning
    script: str = ""
    arguments: tuple[str, ...] = ()
    launch: str = ""  # a whole line of torchrun, accelerate, deepspeed, …
    folder: str = "."  # that it is run in
    path: str = ""  # what an installation of the repository would let it import, from that folder
    packages: tuple[str, ...] = ()  # that it needs besides torch and torchvision
    parameters: int | None = None  # of the modules that are updated, with what is frozen in them
    batch: int | None = None  # samples of a replica in a micro-step
    micro_steps: int | None = None
    precision: str | None = None  # as Foretell names it
    plan: str | None = None

    @property
    def checkout(self) -> str:
        """The folder of its repository among checkouts."""
        return self.repository.replace("/", "+")

    @property
    def name(self) -> str:
        """One line that tells it from the others."""
        what = self.launch or " ".join((f"{self.folder}/{self.script}".removeprefix("./"), *self.arguments))
        return f"{self.repository}: {what}"

    @property
    def checked(self) -> bool:
        """Whether something is known that a forecast can be compared with."""
        return any(value is not None for value in (self.parameters, self.batch, self.precision))


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A repository that was drawn and has no script in the list."""

    repository: str
    reason: str
    drawn: int = 0


def scripts(path: Path = LIST) -> list[PublicScript]:
    """Those of the list, in its order."""
    return [PublicScript(**_tuples(entry)) for entry in _read(path)["script"]]


def left_out(path: Path = LIST) -> list[LeftOut]:
    """Repositories that were drawn and left out, with the reason."""
    return [LeftOut(**entry) for entry in _read(path).get("left_out", [])]


def _read(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text(encoding="utf-8"))


def _tuples(entry: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}
