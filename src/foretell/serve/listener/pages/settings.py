"""Settings of a question as fields of a form and words of an address, under the names of the command line's options."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from html import escape
from typing import Any, Final

from foretell.cost.model import DEFAULT as DEFAULT_MODEL
from foretell.cost.model import names
from foretell.errors import InputError
from foretell.forecasting.conditions import USUAL_JITTER
from foretell.forecasting.job import USUAL_FAILURES, USUAL_PREEMPTIONS, Interruptions, JobLength, Pause
from foretell.hardware import hosts
from foretell.serve.access.keys import Caller
from foretell.serve.listener.pages.forms import Form, checked
from foretell.serve.listener.pages.frame import choose, field
from foretell.serve.requests import RequestConditions, RequestJob
from foretell.serve.service import Service
from foretell.trainers import TRAINERS
from foretell.units import parse_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A field: what it is called, what stands in it while it is empty, and a note; `listed` are values to pick from."""

    label: str
    hint: str = ""
    note: str = ""
    listed: Callable[[], Iterable[str]] = tuple


AROUND: Final[Mapping[str, Setting]] = {
    "trainer": Setting(label="Trainer", hint="as the source says", note="A name, or what it adds: 0.1", listed=lambda: TRAINERS),
    "host": Setting(label="Host", hint="usual", note="A name, or 12us for an op", listed=lambda: (host.name for host in hosts())),
    "software": Setting(label="Software", hint="today's", note="Of which time: torch-1.12, or 2022-07"),
    "loader": Setting(label="Data loader", hint="never late", note="Samples per second of a replica"),
    "jitter": Setting(label="Jitter", hint=f"{USUAL_JITTER:g}", note="Part of a rank's step"),
    "slowdown": Setting(label="Slowdown", hint="by the links", note="Of compute beside a collective"),
    "expert_skew": Setting(label="Expert skew", hint="by chance", note="Busiest rank over the average"),
}  # fmt: skip
LENGTH: Final[Mapping[str, Setting]] = {
    "job_samples": Setting(label="Samples of the job", hint="1.28e6"),
    "job_tokens": Setting(label="or tokens", hint="300e9"),
}
PAUSES: Final[Mapping[str, Setting]] = {
    "evaluate": Setting(label="Evaluates every", hint="1000:90s", note="Steps : time"),
    "checkpoint": Setting(label="Saves every", hint="500:20s", note="Steps : time"),
    "startup": Setting(label="Until the first step", hint="5min"),
    "failures": Setting(label="Failures", hint=f"{USUAL_FAILURES:g}", note="Per device and hour"),
    "preemptions": Setting(label="Spot nodes taken back", hint=f"{USUAL_PREEMPTIONS:g}", note="Per node and hour"),
    "restart": Setting(label="To go on after one", hint="10min"),
}
QUESTION: Final = (
    "plan",
    "model",
    "profile",
    *AROUND,
    *LENGTH,
    *PAUSES,
)  # of a forecast, beside the graph and the cluster


def given(form: Form, names: tuple[str, ...] = QUESTION) -> dict[str, str]:
    """What was written of them, as the rest of an address has it."""
    return {name: text for name in names if (text := form.text(name))}


def fields(settings: Mapping[str, Setting], values: Mapping[str, str]) -> str:
    """Inputs side by side, each with its note."""
    return (
        f'<div class="row">{"".join(entry(name, each, values.get(name, "")) for name, each in settings.items())}</div>'
    )


def entry(name: str, setting: Setting, value: str) -> str:
    """One input with its label."""
    options = "".join(f'<option value="{escape(each)}"></option>' for each in setting.listed())
    listed = f' list="of-{name}"' if options else ""
    known = f'<datalist id="of-{name}">{options}</datalist>' if options else ""
    control = (
        f'<input name="{name}" value="{escape(value)}" placeholder="{escape(setting.hint)}" maxlength="1000"{listed} '
        'spellcheck="false" autocapitalize="off" autocomplete="off">'
    )
    return field(setting.label, control + known, setting.note)


def model_and_profile(service: Service, caller: Caller, values: Mapping[str, str]) -> str:
    """What prices operators, and what was fitted to the team's machines."""
    profiles = {each["name"]: each["name"] for each in service.profiles.listed(caller.team)}
    models = {name: name for name in (DEFAULT_MODEL, *(n for n in names() if n != DEFAULT_MODEL))}
    note = "What was fitted to your machines." if profiles else "None yet: measured steps make them."
    return field("Model", choose("model", models, values.get("model", ""))) + field(
        "Profile", choose("profile", {"": "none"} | profiles, values.get("profile", "")), note
    )


def words_of(question: Mapping[str, Any]) -> dict[str, str]:
    """What surrounds the step and the job of a question that was kept, as fields have it."""
    found = {name: value for name, value in (question.get("conditions") or {}).items() if value is not None}
    if found.get("jitter") == USUAL_JITTER:
        del found["jitter"]
    job = question.get("job") or {}
    found |= {f"job_{name}": job[name] for name in ("samples", "tokens") if job.get(name)}
    for name, field_name in (("evaluation", "evaluate"), ("checkpoint", "checkpoint")):
        if pause := job.get(name):
            found[field_name] = f"{pause['every']}:{pause['seconds']:g}s"
    found |= {"startup": f"{job['startup']:g}s"} if job.get("startup") else {}
    if stops := job.get("interruptions"):
        found |= {
            "failures": stops["per_device_hour"],
            "preemptions": stops["per_node_hour"],
            "restart": f"{stops['restart']:g}s",
        }
    return {name: str(value) for name, value in found.items()}


def conditions(form: Form) -> RequestConditions | None:
    """What surrounds the step, where something was written."""
    found: dict[str, Any] = {name: form.number(name) for name in ("loader", "jitter", "slowdown", "expert_skew")}
    found |= {
        "trainer": _name_or_number(form.text("trainer")),
        "host": form.text("host"),
        "software": form.text("software"),
    }
    found = {name: value for name, value in found.items() if value not in (None, "")}
    made: RequestConditions | None = checked(RequestConditions, **found) if found else None
    return made


def _name_or_number(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        return text


def job(form: Form) -> RequestJob | None:
    """A whole job, where its length was written; pauses without one are an error, as on the command line."""
    samples, tokens = form.number("job_samples"), form.number("job_tokens")
    if samples is None and tokens is None:
        if written := given(form, tuple(PAUSES)):
            raise InputError(
                f"{PAUSES[next(iter(written))].label} is of a whole job. Give its length: samples or tokens of the job."
            )
        return None
    stopped = bool(given(form, ("failures", "preemptions", "restart")))
    return job_request(with_pauses(form, JobLength(samples=samples, tokens=tokens), stopped=stopped))


def with_pauses(form: Form, length: JobLength, *, stopped: bool = True) -> JobLength:
    """The job with its pauses, its start and, where it is `stopped`, what interrupts it: the usual unless written."""
    usual = length.interruptions or Interruptions()
    failures, preemptions = form.number("failures"), form.number("preemptions")
    restart = form.text("restart")
    stops = Interruptions(
        per_device_hour=usual.per_device_hour if failures is None else failures,
        per_node_hour=usual.per_node_hour if preemptions is None else preemptions,
        restart=parse_seconds(restart) if restart else usual.restart,
    )
    evaluate, checkpoint, startup = (form.text(name) for name in ("evaluate", "checkpoint", "startup"))
    return replace(
        length,
        evaluation=Pause.parse(evaluate) if evaluate else None,
        checkpoint=Pause.parse(checkpoint) if checkpoint else None,
        startup=parse_seconds(startup) if startup else length.startup,
        interruptions=stops if stopped else None,
    )


def job_request(length: JobLength) -> RequestJob:
    """As an address for programs takes it."""
    return RequestJob.model_validate(asdict(length))
