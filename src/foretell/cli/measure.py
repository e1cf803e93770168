"""`foretell measure`: run steps on a real device, and keep what was measured."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foretell.cli.campaign import run_campaign
from foretell.cli.options import AsJson, Settings, read_settings
from foretell.cli.ranks import measure_among_ranks, measure_collectives_among_ranks
from foretell.cli.records import end, is_kept, note_where
from foretell.cli.terminal import note, print_drawn, print_json, progress
from foretell.errors import InputError, StoreError
from foretell.store.place import RecordPlace, opened

if TYPE_CHECKING:
    from foretell.campaign.executor import Executor
    from foretell.forecasting.result import Forecast
    from foretell.measure.record import Point, Record, StepRow
    from foretell.units import Seconds


def measure(
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SOURCE]…", help="What to measure, as `foretell predict` takes it. Your own code is executed."
        ),
    ] = None,
    settings: Settings = None,
    device: Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:N.")] = "auto",
    seconds: Annotated[
        str | None, typer.Option("--seconds", metavar="TIME", help="How long to repeat a step: 0.3 by default.")
    ] = None,
    limit: Annotated[
        str, typer.Option("--limit", metavar="TIME", help="Stop a measurement that takes longer.")
    ] = "10min",
    store: Annotated[
        Path | None, typer.Option("--store", metavar="FOLDER", help="The store to keep it in ($FORETELL_STORE).")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE.jsonl", help="Keep it in a record file, not in a store.")
    ] = None,
    campaign: Annotated[
        Path | None, typer.Option("--campaign", metavar="FILE", help="Measure the points of a file, and go on later.")
    ] = None,
    ray: Annotated[
        str | None, typer.Option("--ray", metavar="ADDRESS", help="Measure on a Ray cluster; auto finds this one's.")
    ] = None,
    retries: Annotated[
        int, typer.Option("--retries", min=0, metavar="N", help="How often to try again after a crash.")
    ] = 2,
    repeat: Annotated[int, typer.Option("--repeat", min=1, metavar="N", help="How often to measure each SOURCE.")] = 1,
    plan: Annotated[
        str | None, typer.Option("--plan", metavar="PLAN", help="Under torchrun, how ranks share it: dp=4,zero=3.")
    ] = None,
    backend: Annotated[str | None, typer.Option("--backend", help="Under torchrun: nccl or gloo.")] = None,
    host: Annotated[
        bool, typer.Option("--host", help="Measure how fast this machine issues work, instead of a SOURCE.")
    ] = False,
    collectives: Annotated[
        bool, typer.Option("--collectives", help="Under torchrun: time all-reduce and others, instead of a SOURCE.")
    ] = False,
    compare: Annotated[bool, typer.Option("--compare", help="Show the forecast of the same step beside it.")] = False,
    top: Annotated[int, typer.Option("--top", min=0, metavar="N", help="How many ops to show.")] = 12,
    as_json: AsJson = False,
) -> None:
    """Run steps on a real device and record time, ops, memory, resources."""
    from foretell.measure.record import Point
    from foretell.plans import Plan

    if host:
        _measure_host(bool(sources or campaign), device, as_json)
        return
    among_ranks = int(os.environ.get("WORLD_SIZE") or 1) > 1
    if collectives:
        _check_collectives(bool(sources or campaign or plan), among_ranks)
    else:
        _check_choice(bool(sources), campaign is not None)
    chosen = read_settings(settings or [])
    if campaign is not None and (chosen or repeat != 1):
        _refuse("--set" if chosen else "--repeat", "is for SOURCEs, and a campaign's points have their own")
    if ray is not None and device != "auto":
        raise InputError("--device names a device of this machine, and --ray measures on those of a cluster. Give one.")
    if among_ranks and (campaign is not None or ray is not None or device != "auto"):
        raise InputError("torchrun starts one process per device: leave out --campaign, --ray and --device here.")
    if not among_ranks and (plan or backend):
        _refuse(
            "--plan" if plan else "--backend", "is for a step of several ranks under torchrun, and this is one process"
        )
    Plan.parse(plan or "")
    length = None if seconds is None else _positive("--seconds", seconds)
    patience = _positive("--limit", limit)
    kept = opened(store, out, note)
    if collectives:
        measure_collectives_among_ranks(kept, backend=backend, seconds=length, limit=patience, as_json=as_json)
        return
    points = [Point(source=source, settings=chosen, plan=plan or "") for source in sources or []]
    if among_ranks:
        measure_among_ranks(points * repeat, kept, backend=backend, seconds=length, limit=patience, as_json=as_json)
        return
    if campaign is not None:
        from foretell.campaign.jobs import Campaign

        jobs = Campaign.load(campaign)
        executor = _executor([] if device == "auto" else [device], jobs.devices, ray, length)
        run_campaign(jobs, kept, executor, limit=patience, retries=retries, as_json=as_json)
        return
    executor = _executor(_devices(device, ray), [""], ray, length)
    records, not_stored = _measure_sources(points, repeat, kept, executor, patience, retries)
    _show(records, compare=compare, top=top, as_json=as_json, listed=len(points) * repeat > 1)
    note_where([r for r in records if is_kept(r)] if not not_stored else [], kept, fell_back=not (store or out))
    end(records, not_stored)


def _measure_host(with_others: bool, device: str, as_json: bool) -> None:
    if with_others:
        raise InputError("--host runs a probe of its own: leave out SOURCE and --campaign.")
    from foretell.measure.host_speed import host_speed
    from foretell.units import show_seconds

    with progress() as say:
        say("issuing many small ops")
        found = host_speed(device)
    if as_json:
        print_json(asdict(found))
        return
    note(
        f"This host issues an op in {show_seconds(found.op_seconds)} ({show_seconds(found.low)} to {show_seconds(found.high)} "
        f'in single steps). For a host of your own in a catalog: op_time = "{found.op_seconds * 1e6:.1f} us"'
    )


def _check_choice(sources: bool, campaign: bool) -> None:
    if sources == campaign:
        got = "both" if sources else "neither"
        raise InputError(f"measure takes one or more SOURCEs, or --campaign FILE, got {got}. Give one of them.")


def _check_collectives(with_others: bool, among_ranks: bool) -> None:
    if with_others or not among_ranks:
        wrong = "SOURCE, --campaign and --plan have no part in it" if with_others else "this is one process"
        raise InputError(
            f"--collectives times communication among the ranks that torchrun started, and {wrong}. "
            "Start it as docs/guide/hosts.md shows: torchrun --nproc-per-node 8 --no-python foretell measure --collectives"
        )


def _refuse(option: str, why: str) -> None:
    raise InputError(f"{option} {why}. Leave it out.")


def _positive(option: str, text: str) -> Seconds:
    from foretell.units import parse_seconds

    value = parse_seconds(text)
    if value <= 0:
        raise InputError(f"{option} {text} leaves no time. Give more than nothing, like 0.3 or 10min.")
    return value


def _devices(device: str, ray: str | None) -> list[str]:
    """One device of this machine: a measurement that was asked for by name runs alone."""
    from foretell.campaign.worker import accelerators

    if ray is not None:
        return []
    return [device] if device != "auto" else [*accelerators(), "cpu"][:1]


def _executor(devices: Sequence[str], wanted: Iterable[str], ray: str | None, seconds: Seconds | None) -> Executor:
    if ray is not None:
        from foretell.campaign.ray import RayExecutor

        return RayExecutor(ray, wanted=wanted, seconds=seconds)
    from foretell.campaign.executor import LocalExecutor

    return LocalExecutor(devices, wanted=wanted, seconds=seconds)


class _AnsweredStore:
    """The store as a question by name sees it: nothing was measured before, and what cannot be stored is not lost."""

    def __init__(self, kept: RecordPlace) -> None:
        self.kept = kept
        self.records: list[Record] = []
        self.not_stored = ""  # why something could not be stored, and where it is instead

    def append(self, records: Iterable[Record]) -> None:
        from foretell.campaign.driver import rescue

        arrived = list(records)
        self.records += arrived
        try:
            self.kept.append(filter(is_kept, arrived))
        except (StoreError, OSError) as error:
            self.not_stored = f"{error} {rescue(arrived)}"

    def claim(self, name: str) -> AbstractContextManager[bool]:
        return contextlib.nullcontext(True)

    def done(self, device: str | None = None) -> frozenset[str]:
        return frozenset()

    def steps(self, where: str | None = None) -> Iterator[StepRow]:
        return iter(())


def _measure_sources(
    points: Sequence[Point], repeat: int, kept: RecordPlace, executor: Executor, limit: Seconds, retries: int
) -> tuple[list[Record], str]:
    """The records in the order they were asked for, and why some could not be stored."""
    from foretell.campaign.driver import run
    from foretell.campaign.jobs import Campaign

    answered, campaign = _AnsweredStore(kept), Campaign.of(points, repeat=repeat)
    try:
        with progress() as say:
            say("starting")
            summary = run(
                campaign,
                answered,
                executor,
                limit=limit,
                retries=retries,
                progress=lambda now: say(now.event.partition("\n")[0]),
            )
    except KeyboardInterrupt:
        note(f"Interrupted. {sum(map(is_kept, answered.records))} of {len(points) * repeat} are in {kept.path}.")
        raise
    if summary.left:
        raise InputError(" ".join(executor.troubles.values()) or summary.left[0][1])
    order = {point.key: number for number, point in enumerate(points)}
    return sorted(answered.records, key=lambda record: order[record.step.point]), answered.not_stored


def _show(records: Sequence[Record], *, compare: bool, top: int, as_json: bool, listed: bool) -> None:
    from foretell.report.measured import measured, measured_dict

    forecasts = [_forecast(record) if compare else None for record in records]
    if as_json:
        answers = [measured_dict(record, forecast) for record, forecast in zip(records, forecasts, strict=True)]
        print_json(answers if listed else answers[0])
        return
    for record, forecast in zip(records, forecasts, strict=True):
        if record.step.step_seconds is not None:
            print_drawn(measured(record, top=top, forecast=forecast))


def _forecast(record: Record) -> Forecast | None:
    from foretell.forecasting.forecast import forecast
    from foretell.graph import Graph
    from foretell.plans import Plan

    step, graph = record.step, record.graph
    if graph is None:
        return None
    if not step.device:
        note(f"--compare: {step.device_name} is not in the catalog, so there is no forecast for it.")
        return None
    return forecast(Graph.from_bytes(graph.file, name=graph.name), step.device, Plan())
