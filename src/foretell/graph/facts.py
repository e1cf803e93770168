"""What is known of a captured step and its ops do not show: its model's size, its batch, optimizer, plan and host's work."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from foretell.graph.notes import Note
from foretell.plans import Plan, PlanTemplate
from foretell.trainers import TRAINERS

_MAX_COUNT: Final = 10**18
_HOST_TEXT: Final = re.compile(
    ",".join(rf"{name}=(\d{{1,18}})" for name in ("ops", "drawn", "moved", "copied", "pinned")) + ",waits=([01])"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostWork:
    """What a step makes the host do besides issuing ops, in the process that issues them; a loader's workers are others."""

    ops: int = 0  # on tensors in host memory
    drawn: int = 0  # random numbers
    moved: int = 0  # bytes that other ops read and write
    copied: int = 0  # bytes to the device, from memory that may be paged
    pinned: int = 0  # and from memory that may not
    waits: bool = False  # a copy that the host waits for, and so for all that the device has to do before it

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if name != "waits":
                _check_count(f"host work {name}", value)
        if not isinstance(self.waits, bool):
            raise ValueError(f"host work waits or does not, got {str(self.waits)[:100]!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFacts:
    """Facts of one step; None where they were not recorded."""

    parameters: int | None = None  # numbers of the model
    untrained: int | None = None  # and of modules of the step that are no part of what it trains
    inputs: tuple[int, ...] | None = None  # shape of the first input
    optimizer: str | None = None
    plan: PlanTemplate | None = None  # that the script or the configuration asks for
    trainer: str | None = None  # who runs it, as a configuration or its kernels say
    host: HostWork | None = None
    expert_groups: tuple[int, int] | None = None  # that a router has, and that it takes a token's experts from
    notes: tuple[Note, ...] = ()  # what was taken to be so

    def __post_init__(self) -> None:
        for name in ("parameters", "untrained"):
            if (count := getattr(self, name)) is not None:
                _check_count(name, count)
        for size in self.inputs or ():
            _check_count("a size of inputs", size)
        if self.expert_groups is not None:
            _check_groups(self.expert_groups)
        if not isinstance(self.optimizer, str | None):
            raise ValueError("the optimizer's name is no text")
        if self.trainer is not None and self.trainer not in TRAINERS:
            raise ValueError(f"no trainer {str(self.trainer)[:100]!r} is known")

    @property
    def is_script(self) -> bool:
        """The step is of a script that was run, with what it does around its step."""
        return self.plan is not None and self.plan.by == "script"

    def to_dict(self) -> dict[str, Any]:
        """The facts as a graph file and a report write them; what is not known is left out."""
        known = {
            "parameters": self.parameters,
            "untrained": self.untrained,
            "inputs": None if self.inputs is None else list(self.inputs),
            "optimizer": self.optimizer,
            "plan": self.plan and self.plan.to_dict(),
            "trainer": self.trainer,
            "host": self.host and asdict(self.host),
            "expert_groups": None if self.expert_groups is None else list(self.expert_groups),
            "notes": [note.to_dict() for note in self.notes] or None,
        }
        return {name: value for name, value in known.items() if value is not None}

    @classmethod
    def from_dict(cls, entries: Mapping[str, Any]) -> StepFacts:
        """Read what `to_dict` gave; whatever else it is raises."""
        given = dict(entries)
        for name in ("inputs", "expert_groups"):
            if name in given:
                given[name] = tuple(given[name])
        if "plan" in given:
            given["plan"] = plan = PlanTemplate.from_dict(given["plan"])
            if plan.by == "script" and plan.devices is not None:
                plan.plan_for(plan.devices)  # it ran there, so it is possible
        if "host" in given:
            given["host"] = HostWork(**given["host"])
        if "notes" in given:
            given["notes"] = tuple(map(Note.from_dict, given["notes"]))
        return cls(**given)

    # Formats 1 to 3 wrote facts as texts among the provenance, and the hashes by which stores know graphs are of these.

    def to_provenance(self) -> dict[str, str]:
        """The facts as formats 1 to 3 wrote them."""
        later = ("plan", "notes", "untrained", "trainer", "expert_groups")
        texts = {f"step.{name}": str(value) for name, value in self.to_dict().items() if name not in later}
        if self.inputs is not None:
            texts["step.inputs"] = "×".join(map(str, self.inputs))
        if self.host is not None:
            texts["step.host"] = ",".join(f"{name}={int(value)}" for name, value in asdict(self.host).items())
        if self.plan is not None:
            plan = self.plan
            is_old = plan.by == "script" and (plan.copies, plan.global_batch, plan.batch) == (1, None, 1)
            texts["plan"] = str(plan.plan_for(plan.devices)) if is_old and plan.devices else json.dumps(plan.to_dict())
            texts |= {"script": plan.source} if is_old else {}
        return texts

    @classmethod
    def from_provenance(cls, written: dict[str, str]) -> StepFacts:
        """Take the facts out of the provenance of formats 1 to 3."""
        numbers, host, plan = (
            written.pop("step.parameters", ""),
            written.pop("step.host", None),
            written.pop("plan", None),
        )
        return cls(
            parameters=int(numbers) if re.fullmatch(r"[0-9]{1,18}", numbers) else None,
            inputs=_shape_of_text(written.pop("step.inputs", None)),
            optimizer=written.pop("step.optimizer", None),
            plan=_template_of_text(plan, written.pop("script", "")),
            host=None if host is None else _host_of_text(host),
        )


def _template_of_text(text: str | None, script: str) -> PlanTemplate | None:
    if text is None:
        return None
    plan, plain = Plan.parse(text), Plan()
    values = {f.name: getattr(plan, f.name) for f in fields(Plan) if f.name != "dp"}
    settings = {name: value for name, value in values.items() if value != getattr(plain, name)}
    return PlanTemplate(source=script, by="script", settings=settings, devices=plan.devices)


def _shape_of_text(text: str | None) -> tuple[int, ...] | None:
    if text is None or not re.fullmatch(r"([0-9]{1,18}(×[0-9]{1,18})*)?", text):
        return None
    return tuple(map(int, text.split("×"))) if text else ()


def _host_of_text(text: str) -> HostWork:
    if not (found := _HOST_TEXT.fullmatch(text)):
        raise ValueError(f"step.host is not what a host does: {text[:100]!r}")
    *counts, waits = map(int, found.groups())
    return HostWork(**dict(zip((f.name for f in fields(HostWork)), counts, strict=False)), waits=bool(waits))


def _check_groups(groups: tuple[int, ...]) -> None:
    for count in groups:
        _check_count("groups of experts", count)
    if len(groups) != 2 or not 1 <= groups[1] <= groups[0]:
        raise ValueError(f"groups of experts are a number of them and one of those taken, got {str(groups)[:100]}")


def _check_count(name: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MAX_COUNT:
        raise ValueError(f"{name} must be a whole number of at least 0, got {str(value)[:100]!r}")
