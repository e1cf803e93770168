"""Options that verbs share, grouped as help shows them, and what they mean to a forecast."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from foretell.cli.hosts import read_host
from foretell.cli.terminal import note, progress
from foretell.errors import InputError
from foretell.units import parse_seconds

if TYPE_CHECKING:
    from foretell import Cluster, Conditions, Interruptions, JobLength, Script
    from foretell.planner.pool import Runner

WHAT: Final = "What runs, and where"
SCRIPT: Final = "A training script"
AROUND: Final = "Around the step"
JOB: Final = "A whole job"
OUTPUT: Final = "Output"
PRICES: Final = "Model and cache"


def option(panel: str, name: str, help: str, metavar: str | None = None, **limits: Any) -> Any:
    return typer.Option(name, help=help, metavar=metavar, rich_help_panel=panel, **limits)


Source = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE",
        help="A training script, run as it is: train.py. Or file.py:function, package.module:function, timm/NAME, "
        "torchvision/NAME, hf/NAME, a config.json, a trainer's configuration or a .graph "
        "file. Python sources are your own code and are executed.",
    ),
]
SourceOrLaunch = Annotated[
    str | None,
    typer.Argument(
        metavar="[SOURCE]",
        help="A training script, run as it is: train.py. Or file.py:function, package.module:function, timm/NAME, "
        "torchvision/NAME, hf/NAME, a config.json, a trainer's configuration or a .graph "
        "file. Python sources are your own code and are executed.",
    ),
]
Launch = Annotated[
    str | None,
    option(
        SCRIPT,
        "--launch",
        "The line that starts the training, in quotes: torchrun … train.py …. No SOURCE then.",
        "LINE",
    ),
]
Settings = Annotated[
    list[str] | None, option(WHAT, "--set", "Set a parameter of SOURCE, like batch=256.", "NAME=VALUE")
]
Arguments = Annotated[
    list[str] | None, typer.Argument(metavar="[-- ARGUMENTS]", help="Arguments of a training script, after --.")
]
Processes = Annotated[
    int | None,
    option(SCRIPT, "--nproc", "Processes that a launcher would start; without it, one per device.", "N", min=1),
]
FakeData = Annotated[
    bool, option(SCRIPT, "--fake-data", "Stand in for data sets and checkpoints that are not on this machine.")
]
Opaque = Annotated[
    Path | None, option(SCRIPT, "--opaque", "A Python file that declares kernels with foretell.opaque(…).", "FILE")
]
Verbose = Annotated[bool, option(SCRIPT, "--verbose", "Show what the script prints.")]
AsJson = Annotated[bool, option(OUTPUT, "--json", "Print JSON on standard output, and nothing else there.")]
Html = Annotated[Path | None, option(OUTPUT, "--html", "Write a report as one HTML file.", "FILE")]
NoCache = Annotated[bool, option(PRICES, "--no-cache", "Capture again, even if this was captured before.")]
Workers = Annotated[int | None, option(PRICES, "--workers", "Processes that work side by side; usually 2.", "N", min=1)]
Ray = Annotated[
    str | None, option(PRICES, "--ray", "Work on this Ray cluster instead; auto finds this one's.", "ADDRESS")
]
Server = Annotated[
    str | None,
    option(PRICES, "--server", "Ask this service: captured here, the graph is sent. Its key is $FORETELL_KEY.", "URL"),
]
Prices = Annotated[
    list[Path] | None,
    option(PRICES, "--prices", "What instances cost: a table of your own, or vms.csv of SkyPilot's catalog.", "FILE"),
]
Startup = Annotated[str | None, option(JOB, "--startup", "Until the first step; in plan usually 5min.", "TIME")]
Failures = Annotated[
    float | None, option(JOB, "--failures", "Interruptions per device and hour; usually 2e-5.", "RATE")
]
Preemptions = Annotated[
    float | None, option(JOB, "--preemptions", "Spot nodes taken back, per node and hour; usually 0.1.", "RATE")
]
Restart = Annotated[str | None, option(JOB, "--restart", "To go on after one; usually 10min.", "TIME")]
Model = Annotated[
    str | None,
    option(PRICES, "--model", "What prices operators: a shipped model, a fitted folder, or roofline.", "NAME"),
]
Profile = Annotated[
    str | None,
    option(PRICES, "--profile", "Fits the forecast to one machine, cluster or trainer: a .toml file.", "FILE"),
]
Loader = Annotated[
    str | None,
    option(
        AROUND, "--loader", "Samples per second of a replica's data loader, or FILE.py:FUNCTION to measure.", "RATE"
    ),
]
Jitter = Annotated[
    float | None, option(AROUND, "--jitter", "How much a rank's step varies, as a part of it; usually 0.0155.", "PART")
]
ExpertSkew = Annotated[
    float | None, option(AROUND, "--expert-skew", "Rows of the busiest expert rank over the average.", "TIMES")
]
Trainer = Annotated[
    str | None,
    option(AROUND, "--trainer", "Who runs the step, like megatron, or what it adds as a part of it, like 0.1.", "NAME"),
]
Host = Annotated[
    str | None, option(AROUND, "--host", "What feeds the devices: a name, 12us for an op, this, or usual.", "HOST")
]
Software = Annotated[
    str | None,
    option(AROUND, "--software", "Of which time: a version of torch, like torch-1.12, or a date.", "VERSION"),
]
JobSamples = Annotated[str | None, option(JOB, "--job-samples", "Also a job of N samples, like 1.28e6.", "N")]
JobTokens = Annotated[str | None, option(JOB, "--job-tokens", "Also a job of N tokens, like 300e9.", "N")]
Evaluate = Annotated[str | None, option(JOB, "--evaluate", "The job pauses to evaluate, like 1000:90s.", "STEPS:TIME")]
Checkpoint = Annotated[
    str | None, option(JOB, "--checkpoint", "The job pauses to save itself, like 500:20s.", "STEPS:TIME")
]


def read_settings(written: Sequence[str] | None) -> dict[str, str]:
    settings: dict[str, str] = {}
    for item in written or ():
        name, equals, value = (part.strip() for part in item.partition("="))
        if not equals or not name:
            raise InputError(f"--set {item!r} is not a setting. Write it like --set batch=256.")
        if name in settings:
            raise InputError(f"--set {name} is given twice. Give it once.")
        settings[name] = value
    return settings


def script_of(
    source: str, arguments: Sequence[str] | None, processes: int | None, fake_data: bool, opaque: Path | None
) -> Script | None:
    """SOURCE as a training script; None if it is none, and then it takes no arguments."""
    import foretell
    from foretell.sources.scripts import script_of

    script: Script | str = script_of(source)
    if isinstance(script, str):
        given = {"arguments after --": arguments, "--nproc": processes, "--fake-data": fake_data, "--opaque": opaque}
        if wrong := [name for name, value in given.items() if value]:
            raise InputError(f"{', '.join(wrong)} are for a training script, and {source!r} is none. Leave them out.")
        return None
    return foretell.Script(
        path=source,
        arguments=tuple(arguments or ()),
        processes=processes,
        fake_data=fake_data,
        opaque=None if opaque is None else str(opaque),
    )


def source_or_launch(
    source: str | None,
    launch: str | None,
    arguments: Sequence[str] | None,
    fake_data: bool,
    opaque: Path | None,
    processes: int | None = None,
) -> tuple[str, Script | None]:
    """SOURCE, and the script that it is or that a launch line starts, which has all that goes with SOURCE."""
    import foretell
    from foretell.sources.launch import is_launch_line

    if launch is None and source is not None and is_launch_line(source):
        launch, source = source, None
    if launch is None and source is None:
        raise InputError("SOURCE is missing. Give a script, a name or a file, or --launch 'torchrun … train.py …'.")
    if launch is None:
        assert source is not None
        return source, script_of(source, arguments, processes, fake_data, opaque)
    given = {"SOURCE": source, "--nproc": processes, "arguments after --": arguments}
    if wrong := [name for name, value in given.items() if value]:
        raise InputError(f"--launch says what runs, and in how many processes. Leave out {', '.join(wrong)}.")
    script = foretell.Script.from_launch(launch, fake_data=fake_data, opaque=None if opaque is None else str(opaque))
    return script.path, script


def on_any_number(script: Script | None) -> Script | None:
    """A script in as many processes as there are devices, whatever its launch line says."""
    return None if script is None else dataclasses.replace(script, processes=None, nodes=None)


def combinations(written: Sequence[str] | None) -> list[dict[str, str]]:
    """Of `--set` with several values each: they multiply out."""
    lists = {name: value.split(",") for name, value in read_settings(written).items()}
    return [dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values())]


def runner(ray: str | None, workers: int | None) -> Runner:
    """Where a search runs."""
    from foretell.planner.pool import Processes
    from foretell.planner.ray import RayRunner

    if ray is None:
        return Processes(2 if workers is None else workers)
    if workers is not None:
        raise InputError("--workers are processes of this machine, and --ray has those of a cluster. Give one.")
    return RayRunner(ray)


def terms(
    on: Sequence[str],
    *,
    plan: str | None = None,
    model: str | None = None,
    profile: str | None = None,
    conditions: Conditions | None = None,
    job: JobLength | None = None,
) -> dict[str, Any]:
    """What forecast, fit_batch and scale all take; a slip in a name is an error at once, not after a long capture."""
    import foretell
    from foretell.forecasting.forecast import DEFAULT_MODEL, load_model

    for cluster in on:
        foretell.Cluster.parse(cluster)
    return {
        "plan": None if plan is None else foretell.Plan.parse(plan),
        "model": load_model(model or DEFAULT_MODEL),
        "profile": None if profile is None else foretell.Profile.load(profile),
        "conditions": conditions,
        "job": job,
    }


def priced(on: Sequence[str], prices: Sequence[Path] | None) -> list[Cluster]:
    """Clusters at the prices of files, or of the catalog."""
    import foretell

    market = foretell.Market(offers=foretell.read_prices(*prices) if prices else None)
    return [foretell.Cluster.parse(text).priced(market) for text in on]


def conditions_of(
    loader: str | None = None,
    jitter: float | None = None,
    expert_skew: float | None = None,
    trainer: str | None = None,
    host: str | None = None,
    software: str | None = None,
) -> Conditions:
    from foretell.forecasting.conditions import USUAL_JITTER, Conditions

    return Conditions(
        loader=_rate(loader),
        jitter=USUAL_JITTER if jitter is None else jitter,
        expert_skew=expert_skew,
        trainer=_name_or_part(trainer),
        host=read_host(host),
        software=software,
    )


def _name_or_part(trainer: str | None) -> float | str | None:
    try:
        return None if trainer is None else float(trainer)
    except ValueError:
        return trainer


def _rate(loader: str | None) -> float | None:
    """A number, or what a loader of the user's delivers when it is run."""
    if loader is None or ":" not in loader:
        return count("--loader", loader, "3000, or FILE.py:FUNCTION that makes a loader to be measured")
    from foretell.measure.loader import loader_rate

    with progress() as report:
        report(f"running the loader of {loader}")
        rate = loader_rate(loader)
    note(f"The loader of {loader} delivers {rate:,.0f} samples/s on this machine")
    return rate


def interruptions(
    usual: Interruptions | None, failures: float | None, preemptions: float | None, restart: str | None
) -> Interruptions:
    """The usual ones with what is given instead."""
    import foretell

    usual = usual or foretell.Interruptions()
    return foretell.Interruptions(
        per_device_hour=usual.per_device_hour if failures is None else failures,
        per_node_hour=usual.per_node_hour if preemptions is None else preemptions,
        restart=usual.restart if restart is None else parse_seconds(restart),
    )


def job_of(
    samples: str | None,
    tokens: str | None,
    pauses: tuple[str | None, str | None],
    stops: tuple[str | None, float | None, float | None, str | None],
) -> JobLength | None:
    """A job of `predict`: pauses to evaluate and save; its start, failures, preemptions and restart where one is given."""
    import foretell

    (evaluate, checkpoint), (startup, *given) = pauses, stops
    if samples is None and tokens is None:
        if evaluate or checkpoint or any(each is not None for each in stops):
            raise InputError(
                "--evaluate and --checkpoint are pauses of a job, --startup and --failures of it too. Give its length: "
                "--job-samples or --job-tokens."
            )
        return None
    failures, preemptions, restart = stops[1:]
    stopped = any(each is not None for each in given)
    return foretell.JobLength(
        samples=count("--job-samples", samples),
        tokens=count("--job-tokens", tokens),
        evaluation=foretell.Pause.parse(evaluate) if evaluate else None,
        checkpoint=foretell.Pause.parse(checkpoint) if checkpoint else None,
        startup=0.0 if startup is None else parse_seconds(startup),
        interruptions=interruptions(None, failures, preemptions, restart) if stopped else None,
    )


def count(option: str, text: str | None, like: str = "1280000 or 1.28e6") -> float | None:
    if text is None:
        return None
    try:
        return float(text.replace("_", ""))
    except ValueError:
        raise InputError(f"{option} takes a number, got {text!r}. Write it like {like}.") from None
