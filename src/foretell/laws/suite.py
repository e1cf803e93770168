"""The suite: laws checked over a scope, and what was found of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from foretell.cost.model import DEFAULT as DEFAULT_MODEL
from foretell.cost.model import CostModel, load_model
from foretell.errors import InputError, check_choice
from foretell.forecasting.question import Subject
from foretell.hardware import device, devices
from foretell.laws import between, plans, single
from foretell.laws.answers import Answers
from foretell.laws.law import LAWS, Compared, Law
from foretell.laws.scope import Scope
from foretell.laws.sources import step_of

__all__ = ["LAWS", "Checked", "Report", "between", "check", "check_laws", "plans", "single"]
_SHOWN: Final = 20  # cases of a law, the worst ones


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What was found of a law: how often it was checked and broken, and the worst cases."""

    law: Law
    checked: int = 0
    broken: int = 0
    worst: Sequence[Compared] = field(default=())

    def to_dict(self) -> dict[str, Any]:
        return {
            "law": self.law.name,
            "says": self.law.says,
            "over": self.law.over,
            "tolerance": self.law.tolerance.part,
            "why": self.law.tolerance.why,
            "checked": self.checked,
            "broken": self.broken,
            "worst": [{"where": c.where, "number": c.number, "limit": c.limit, "beyond": c.beyond} for c in self.worst],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All laws that were checked, and how many answers it took."""

    laws: Sequence[Checked]
    answers: int

    @property
    def broken(self) -> Sequence[Checked]:
        return [found for found in self.laws if found.broken]

    @property
    def kept(self) -> bool:
        return not self.broken

    def to_dict(self) -> dict[str, Any]:
        return {
            "kept": self.kept,
            "answers": self.answers,
            "checked": sum(found.checked for found in self.laws),
            "broken": sum(found.broken for found in self.laws),
            "laws": [found.to_dict() for found in self.laws],
        }


def check_laws(
    workload: Subject,
    on: str | Sequence[str],
    *,
    settings: Mapping[str, Any] | None = None,
    only: Sequence[str] | None = None,
    model: str | CostModel = DEFAULT_MODEL,
    cache: bool = True,
    progress: Callable[[str], None] = lambda text: None,
) -> Report:
    """Check that forecasts of a step obey physics: order of devices, precisions, batches and plans, roofline, sums, intervals.

    Args:
        workload: A Workload, a captured Graph, a Script or a SOURCE; a SOURCE is checked at the precisions and batches it takes.
        on: Devices to check, by name: one of the catalog, or of a file of yours.
        settings: Parameters of a SOURCE, like {"batch": 64}.
        only: Names of laws; all of them without.
        model: What prices operators.
        cache: Whether captured graphs are kept on disk.
        progress: Is called with a line now and then.

    Returns:
        What was found of each law; `kept` says whether none is broken.

    Raises:
        InputError: A device or a law that nobody knows.

    Examples:
        >>> foretell.check_laws("torchvision/resnet18", on="h200", only=["roofline", "repeated"]).kept
        True
    """
    for name in only or ():
        check_choice("law", name, tuple(LAWS), InputError)
    prices_by = load_model(model) if isinstance(model, str) else model
    chosen = [device(name) for name in ([on] if isinstance(on, str) else on)]
    step = step_of(workload, settings, cache=cache, progress=progress)
    scope = Scope(steps=[step], devices=chosen, others=devices())
    laws = [LAWS[name] for name in only] if only else list(LAWS.values())
    return check(scope, Answers(scope.steps, prices_by, progress=progress), laws, progress)


def check(
    scope: Scope,
    answers: Answers,
    laws: Iterable[Law] = LAWS.values(),
    progress: Callable[[str], None] = lambda text: None,
) -> Report:
    """Check laws; those of single answers last, over all that the others asked for."""
    found = []
    for step in scope.steps:
        for each in scope.devices:  # what laws of single answers are checked of, if no other law asks for more
            answers(between.usual(step, step.precisions[0], each.name))
    for law in sorted(laws, key=lambda one: one.of_one):
        progress(f"checking {law.name}")
        found.append(_checked(law, scope, answers))
    return Report(laws=found, answers=sum(1 for _ in answers.known()))


def _checked(law: Law, scope: Scope, answers: Answers) -> Checked:
    checked, broken = 0, list[Compared]()
    for compared in law.compare(scope, answers):
        checked += 1
        if law.is_broken(compared):
            broken.append(compared)
    worst = sorted(broken, key=lambda c: -c.beyond)[:_SHOWN]
    return Checked(law=law, checked=checked, broken=len(broken), worst=worst)
