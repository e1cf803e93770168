"""`foretell plan`: which cluster, which plan, for a deadline and a budget."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from foretell.cli import options, remote
from foretell.cli.options import OUTPUT, option
from foretell.cli.terminal import answer, note, progress
from foretell.errors import InputError, RequirementNotMet
from foretell.units import parse_seconds

if TYPE_CHECKING:
    from foretell import Choice, Goal, JobLength, Script, Space

GOAL: Final = "What it must keep to"
SPACE: Final = "What may be chosen"
JOB: Final = "The job"


def plan(
    source: options.SourceOrLaunch = None,
    arguments: options.Arguments = None,
    samples: Annotated[str | None, option(JOB, "--samples", "Samples to train on, like 1.28e6.", "N")] = None,
    tokens: Annotated[str | None, option(JOB, "--tokens", "Tokens to train on, like 300e9.", "N")] = None,
    epochs: Annotated[str | None, option(JOB, "--epochs", "Times through the --dataset.", "N")] = None,
    dataset: Annotated[str | None, option(JOB, "--dataset", "Samples of an epoch.", "N")] = None,
    evaluate: options.Evaluate = None,
    checkpoint: options.Checkpoint = None,
    startup: options.Startup = None,
    failures: options.Failures = None,
    preemptions: options.Preemptions = None,
    restart: options.Restart = None,
    deadline: Annotated[str | None, option(GOAL, "--deadline", "It must be done in this time: 36h.", "TIME")] = None,
    budget: Annotated[float | None, option(GOAL, "--budget", "It may cost so many dollars.", "DOLLARS")] = None,
    confidence: Annotated[float, option(GOAL, "--confidence", "How sure that shall be, as a probability.", "P")] = 0.9,
    gpus: Annotated[
        str | None, option(SPACE, "--gpus", "Devices or instances: h100-sxm,l40s,aws:p5.48xlarge.", "NAMES")
    ] = None,
    max_devices: Annotated[int, option(SPACE, "--max-devices", "The most devices.", "N", min=1)] = 64,
    on: Annotated[str | None, option(SPACE, "--on", "This cluster and no other: 4x8xh100-sxm.", "CLUSTER")] = None,
    fixed: Annotated[str | None, option(SPACE, "--plan", "Settings that are decided: tp=8,zero=1.", "PLAN")] = None,
    global_batch: Annotated[
        int | None, option(SPACE, "--global-batch", "Samples of a step over all devices.", "N", min=1)
    ] = None,
    micro_batches: Annotated[
        str | None, option(SPACE, "--micro-batches", "Batches of a micro-step to try: 1,2,4.", "LIST")
    ] = None,
    recompute: Annotated[
        str | None,
        option(SPACE, "--recompute", "What to try: auto (as little as fits), or words like none,full,0.5.", "WORDS"),
    ] = None,
    search: Annotated[
        str | None,
        option(SPACE, "--search", "Also try: precision, compile, checkpointing, offload, instances, spot.", "WORDS"),
    ] = None,
    vary: Annotated[
        list[str] | None, option(SPACE, "--vary", "Try these values of a parameter of SOURCE.", "NAME=A,B")
    ] = None,
    price: Annotated[
        list[str] | None, option(SPACE, "--price", "Dollars per device and hour, like h100-sxm=1.9.", "NAME=DOLLARS")
    ] = None,
    term: Annotated[str, option(SPACE, "--term", "Prices to pay: on-demand, reserved or spot.", "TERM")] = "on-demand",
    region: Annotated[str | None, option(SPACE, "--region", "Prices of this region, like us-east-1.", "REGION")] = None,
    instances: Annotated[
        bool, option(SPACE, "--instances", "Try every instance that rents the --gpus, with its own network.")
    ] = False,
    prices: options.Prices = None,
    settings: options.Settings = None,
    launch: options.Launch = None,
    fake_data: options.FakeData = False,
    opaque: options.Opaque = None,
    as_json: options.AsJson = False,
    html: options.Html = None,
    to: Annotated[
        list[str] | None,
        option(OUTPUT, "--to", "Write the choice for a tool: torchrun, slurm, kubernetes, torchtitan, …", "TOOL=FILE"),
    ] = None,
    command: Annotated[
        str, option(OUTPUT, "--command", "What the ranks run, for --to: 'train.py --lr 3e-4'.", "COMMAND")
    ] = "train.py",
    force: Annotated[bool, option(OUTPUT, "--force", "Let --to write over files that are there.")] = False,
    require: Annotated[bool, option(OUTPUT, "--require", "Exit with 3 if nothing qualifies.")] = False,
    model: options.Model = None,
    profile: options.Profile = None,
    loader: options.Loader = None,
    jitter: options.Jitter = None,
    expert_skew: options.ExpertSkew = None,
    trainer: options.Trainer = None,
    host: options.Host = None,
    software: options.Software = None,
    workers: options.Workers = None,
    ray: options.Ray = None,
    measure: Annotated[
        str | None,
        option(GOAL, "--measure", "Run plans by this command; its last line is a step's seconds.", "COMMAND"),
    ] = None,
    runs: Annotated[int, option(GOAL, "--runs", "At most so many, with --measure.", "N", min=1)] = 10,
    gain: Annotated[
        float, option(GOAL, "--gain", "Run until no plan promises to be better by this part.", "PART", min=0.0, max=1.0)
    ] = 0.03,
    no_cache: options.NoCache = False,
    server: options.Server = None,
) -> None:
    """Find the cluster and the plan for a job: its time, its cost, and the odds of keeping to both."""
    import foretell
    from foretell.hardware import term_named
    from foretell.planner.command import Command
    from foretell.report.plan import plan_panel, write_plan

    files = _files_of(to or (), force)  # a search takes minutes: what cannot be written is known before
    source, script = options.source_or_launch(source, launch, arguments, fake_data, opaque)
    conditions = options.conditions_of(loader, jitter, expert_skew, trainer, host, software)
    terms = options.terms([on] if on else [], plan=None, model=model, profile=profile, conditions=conditions)
    dimensions = tuple(word.strip() for word in (search or "").split(",") if word.strip())
    around, spot = (evaluate, checkpoint, startup, failures, preemptions, restart), "spot" in (term, *dimensions)
    job = _job(samples, tokens, epochs, dataset, around, spot=spot)
    goal = foretell.Goal(
        deadline=None if deadline is None else parse_seconds(deadline), budget=budget, confidence=confidence
    )
    space = foretell.Space(
        gpus=tuple(filter(None, (gpus or "").split(","))),
        max_devices=max_devices,
        global_batch=global_batch,
        batches=_numbers("--micro-batches", micro_batches),
        **_recompute(recompute),
        vary={name: value.split(",") for name, value in options.read_settings(vary).items()},
        prices={name: options.count("--price", text) or 0.0 for name, text in options.read_settings(price).items()},
        term=term_named(term),
        region=region,
        offers=foretell.read_prices(*prices) if prices else None,
        instances=instances,
        search=dimensions,
    )
    if server is not None:
        remote.refuse({"--html": html, "--vary": vary, "--prices": prices, "--measure": measure, "--ray": ray,
                       "--search precision": "precision" in dimensions, "--search compile": "compile" in dimensions})  # fmt: skip
        question = _question(goal, space, job) | {"on": on, "plan": fixed, "model": model, "profile": profile}
        if any(each is not None for each in (loader, jitter, expert_skew, trainer, host, software)):
            question["conditions"] = dataclasses.asdict(conditions)
        step, chosen = source if script is None else _alone(script, space, on), options.read_settings(settings)
        found = remote.plan(server, step, chosen, question, as_json=as_json, cache=not no_cache)
        best = None if found["recommended"] is None else foretell.Choice.from_dict(found["recommended"])
        _hand_over(best, found["workload"], found["reason"], files, command)
        if require and best is None:
            raise RequirementNotMet(found["reason"])
        return
    with progress() as report:
        result = foretell.plan(
            options.on_any_number(script) or source,
            on,
            **(terms | {"plan": fixed, "job": job}),
            settings=options.read_settings(settings),
            goal=goal,
            space=space,
            search=foretell.Search(
                cache=not no_cache,
                runner=options.runner(ray, workers),
                measure=None if measure is None else Command(measure),
                runs=runs,
                gain=gain,
            ),
            progress=report,
        )
    answer(as_json, result.to_dict, lambda width: plan_panel(result, width))
    if html is not None:
        write_plan(result, html)
        note(f"Report written to {html}")
    _hand_over(result.recommended, result.workload, result.reason, files, command)
    if require and result.recommended is None:
        raise RequirementNotMet(result.reason)


def _alone(script: Script, space: Space, on: str | None) -> Script:
    """The script in one process, on the first device that may be chosen: its step is captured here, plans searched there."""
    from foretell import Cluster, Plan
    from foretell.forecasting.question import on_cluster

    first = space.clusters(None if on is None else Cluster.parse(on))[0].nodes[0].device.name
    whole = options.on_any_number(script)
    assert whole is not None
    return on_cluster(whole, Cluster.parse(first), Plan())


def _question(goal: Goal, space: Space, job: JobLength) -> dict[str, Any]:
    """What POST /v1/plans takes of a search."""
    asks: dict[str, Any] = dataclasses.asdict(goal) | {"job": dataclasses.asdict(job)}
    names = ("gpus", "max_devices", "global_batch", "batches", "prices", "term", "region", "instances", "search")
    asks |= {name: getattr(space, name) for name in names}
    if space.recompute != type(space)().recompute:
        asks["recompute"] = space.recompute
    return {name: list(value) if isinstance(value, tuple) else value for name, value in asks.items() if value}


def _recompute(words: str | None) -> dict[str, Any]:
    if words is None:
        return {}
    from foretell.plans import Plan

    listed = (
        [Plan.parse(f"checkpointing={word.strip()}").checkpointing for word in words.split(",")]
        if words != "auto"
        else []
    )
    return {"recompute": tuple(listed) or "auto"}


def _job(
    samples: str | None,
    tokens: str | None,
    epochs: str | None,
    dataset: str | None,
    around: tuple[Any, ...],
    *,
    spot: bool,
) -> JobLength:
    """The length of the job with what surrounds its steps."""
    from dataclasses import replace

    import foretell

    evaluate, checkpoint, startup, failures, preemptions, restart = around
    counts = {"--samples": samples, "--tokens": tokens, "--epochs": epochs, "--dataset": dataset}
    n = {name: options.count(name, text) for name, text in counts.items()}
    length = foretell.JobLength.usual(
        samples=n["--samples"], tokens=n["--tokens"], epochs=n["--epochs"], dataset=n["--dataset"], spot=spot
    )
    return replace(
        length,
        evaluation=foretell.Pause.parse(evaluate) if evaluate else None,
        checkpoint=foretell.Pause.parse(checkpoint) if checkpoint else None,
        startup=length.startup if startup is None else parse_seconds(startup),
        interruptions=options.interruptions(length.interruptions, failures, preemptions, restart),
    )


def _files_of(to: Sequence[str], force: bool) -> list[tuple[str, Path]]:
    """Each tool with the file to write for it, its usual one unless one is given."""
    from foretell.planner.handover import TOOLS, known_tool

    files = []
    for entry in to:
        tool, _, file = (part.strip() for part in entry.partition("="))
        path = Path(file or TOOLS[known_tool(tool)].file)
        if path.exists() and not force:
            raise InputError(
                f"{path} is there already, and --to {tool} would write over it. Name another file, --to {tool}=FILE, or "
                "allow it with --force."
            )
        files.append((known_tool(tool), path))
    return files


def _hand_over(best: Choice | None, name: str, reason: str, files: Sequence[tuple[str, Path]], command: str) -> None:
    """Write the recommended choice for each tool."""
    from foretell.planner.handover import hand_over

    if files and best is None:
        raise RequirementNotMet(f"there is nothing to hand over. {reason}")
    for tool, path in files:
        assert best is not None
        text = hand_over(best, tool, command=command, name=name)
        path.write_text(text, encoding="utf-8")
        note(f"Written for {tool} to {path}")


def _numbers(name: str, written: str | None) -> tuple[int, ...] | None:
    if written is None:
        return None
    try:
        return tuple(int(part) for part in written.split(","))
    except ValueError:
        raise InputError(f"{name} takes whole numbers, got {written!r}. Write it like 1,2,4.") from None
