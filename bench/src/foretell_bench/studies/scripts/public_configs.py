"""Public configuration files of trainers as published, each through Foretell's command line in a process of its own.

`public_configs.toml` has them. Those drawn first were drawn by a seeded shuffle of file listings, and run once changes were made.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from foretell_bench.studies.scripts.outcomes import brief, counts
from foretell_bench.studies.scripts.public import Examination, read_results
from foretell_bench.studies.scripts.public_list import PublicScript

LIST: Final = Path(__file__).with_name("public_configs.toml")
_CLOSE: Final = 1e-4  # parameters that may differ: two positions of a table, a router
_HELPS: Final = re.compile(r"--set |Give |Write |Put |Set |Correct ")


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicConfiguration:
    """A file of a repository, and what it trains by its trainer's own documentation."""

    repository: str
    commit: str
    path: str
    trainer: str
    on: str
    drawn_first: bool
    settings: tuple[str, ...] = ()  # what a launcher's file does not say: the model, the batch
    parameters: int | None = None  # with adapters
    batch: int | None = None
    precision: str | None = None
    plan: str | None = None  # parts that the plan must have

    @property
    def script(self) -> PublicScript:
        """The same as a script, for the runner."""
        known = {"repository": self.repository, "commit": self.commit, "on": self.on, "drawn": int(self.drawn_first)}
        return PublicScript(script=self.path, **known)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, kw_only=True)
class Configurations(Examination):
    """The runner of scripts, with the command for a configuration."""

    listed: Mapping[str, PublicConfiguration]

    def command(self, script: PublicScript) -> list[str]:
        found = Examination.command(self, script)
        given = [word for text in self.listed[script.name].settings for word in ("--set", text)]
        return [word for word in found if word != "--fake-data"] + given

    def result(self, script: PublicScript) -> dict[str, Any]:
        return judged(self.listed[script.name], Examination.result(self, script))


def judged(listed: PublicConfiguration, found: dict[str, Any]) -> dict[str, Any]:
    """Against what the trainer's documentation says; a refusal is clear that names the file's matter and a way out."""
    if "exit_code" in found:
        clear = found["exit_code"] == 2 and bool(_HELPS.search(found["message"]))
        return {**found, "trainer": listed.trainer, "outcome": "clear refusal" if clear else "bad failure"}
    wrong = dict(_differences(listed, found))
    checked = any(value is not None for value in (listed.parameters, listed.batch, listed.precision, listed.plan))
    kind = "wrong" if wrong else "right" if checked else "unchecked"
    return {**found, "trainer": listed.trainer, "outcome": kind, **({"differs": wrong} if wrong else {})}


def _differences(listed: PublicConfiguration, found: Mapping[str, Any]) -> Iterator[tuple[str, list[Any]]]:
    got = found["parameters"]
    if listed.parameters is not None and (got is None or abs(got / listed.parameters - 1) > _CLOSE):
        yield "parameters", [got, listed.parameters]
    for name in ("batch", "precision"):
        if getattr(listed, name) is not None and found[name] != getattr(listed, name):
            yield name, [found[name], getattr(listed, name)]
    parts = set(str(found["plan"]).split(","))
    if listed.plan is not None and not set(listed.plan.split(",")) <= parts:
        yield "plan", [found["plan"], listed.plan]


def configurations(path: Path = LIST) -> list[PublicConfiguration]:
    """Those of the list, in its order."""
    read = tomllib.loads(path.read_text(encoding="utf-8"))["configuration"]
    return [_configuration(entry) for entry in read]


def _configuration(entry: dict[str, Any]) -> PublicConfiguration:
    given: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}
    return PublicConfiguration(**given)


def examine(checkouts: Path, out: Path, *, first: bool | None = None, python: Path | None = None) -> dict[str, Any]:
    """Run those that `out` has no result of; `first`: only those drawn first, or only the others."""
    chosen = {c.script.name: c for c in configurations() if first is None or c.drawn_first is first}
    return Configurations(checkouts=checkouts, python=python, listed=chosen).run(
        [c.script for c in chosen.values()], out
    )


def judged_anew(out: Path) -> dict[str, Any]:
    """Earlier answers against the list as it is now."""
    listed = {c.script.name: c for c in configurations()}
    found = read_results(out)
    return {
        name: judged(listed[name], {k: v for k, v in r.items() if k != "differs"})
        for name, r in found.items()
        if name in listed
    }


def show(results: Mapping[str, Mapping[str, Any]]) -> str:
    """How many came to each outcome, and what those without a right forecast say."""
    lines = []
    for title, those in (("Drawn first", True), ("The others", False)):
        own = {name: r for name, r in results.items() if bool(r["drawn"]) is those}
        lines.append(
            f"{title}: {len(own)} files; {', '.join(f'{n} {kind}' for kind, n in counts(own.values()).items())}"
        )
        messages = ((name, r.get("differs") or r.get("message")) for name, r in own.items())
        lines += [f"- {brief(name, 110)}: {brief(str(what), 400)}" for name, what in messages if what]
    return "\n".join(lines)
