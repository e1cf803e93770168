"""`foretell measure`: run steps on a real device, and keep what they took."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from foretell.cli.store import DEFAULT_STORE
from foretell.cli.terminal import AsJson, Settings, console_of, note, print_drawn, print_json, progress, read_settings
from foretell.errors import ForetellError, InputError, RequirementNotMet, StoreError

if TYPE_CHECKING:
    from foretell.campaign.driver import Progress, Summary
    from foretell.campaign.executor import Executor
    from foretell.forecasting.result import Forecast
    from foretell.measure.record import Point, Record, StepRow
    from foretell.store.lines import RecordFile
    from foretell.store.store import Store
    from foretell.units import Seconds

DEFAULT_FILE: Final = Path("measurements.jsonl")  # where no store can be written
_LIMIT: Final = "10min"


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
    ] = _LIMIT,
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
        int | None, typer.Option("--retries", min=0, metavar="N", help="How often to try again after a crash.")
    ] = None,
    repeat: Annotated[int, typer.Option("--repeat", min=1, metavar="N", help="How often to measure each SOURCE.")] = 1,
    plan: Annotated[
        str | None, typer.Option("--plan", metavar="PLAN", help="Under torchrun, how it is spread: dp=4,zero=3.")
    ] = None,
    backend: Annotated[str | None, typer.Option("--backend", help="Under torchrun: nccl or gloo.")] = None,
    host: Annotated[
        bool, typer.Option("--host", help="Measure how fast this machine issues work, instead of a SOURCE.")
    ] = False,
    compare: Annotated[bool, typer.Option("--compare", help="Show the forecast of the same step beside it.")] = False,
    top: Annotated[int, typer.Option("--top", min=0, metavar="N", help="How many ops to show.")] = 12,
    as_json: AsJson = False,
) -> None:
    """Run steps on a real device and record time, ops, memory, resources."""
    from foretell.measure.record import Point
    from foretell.plan import Plan

    if host:
        _measure_host(sources or [], campaign, device, as_json)
        return
    among_ranks = int(os.environ.get("WORLD_SIZE") or 1) > 1
    _check(sources or [], campaign, ray, device, among_ranks, plan=plan, backend=backend, repeat=repeat)
    chosen = read_settings(settings or [])
    if campaign and chosen:
        raise InputError("--set belongs to a SOURCE, and a campaign's points have settings of their own. Leave it out.")
    Plan.parse(plan or "")
    length = None if seconds is None else _positive("--seconds", seconds)
    patience = _positive("--limit", limit)
    kept = _opened(store, out)
    points = [Point(source=source, settings=chosen, plan=plan or "") for source in sources or []]
    if among_ranks:
        _measure_ranks(points * repeat, kept, backend, length, patience, as_json)
    elif campaign is not None:
        _run_campaign(campaign, kept, device, ray, length, patience, retries, as_json)
    else:
        executor = _executor(_devices(device, ray), [""], ray, length)
        records, lost = _measure_sources(points, repeat, kept, executor, patience, retries)
        _show(records, compare=compare, top=top, as_json=as_json, listed=len(points) * repeat > 1)
        _say_where([r for r in records if _is_kept(r)] if not lost else [], kept, fell_back=not (store or out))
        _end(records, lost)


def _measure_host(sources: Sequence[str], campaign: Path | None, device: str, as_json: bool) -> None:
    if sources or campaign:
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
        f'in single steps). For a host of your own in a catalogue: op_time = "{found.op_seconds * 1e6:.1f} us"'
    )


def _check(
    sources: Sequence[str], campaign: Path | None, ray: str | None, device: str, among_ranks: bool,
    *, plan: str | None, backend: str | None, repeat: int,
) -> None:  # fmt: skip
    if bool(sources) == (campaign is not None):
        got = "got both" if sources else "got neither"
        raise InputError(f"measure takes one or more SOURCEs, or --campaign FILE, {got}. Give one of them.")
    if ray is not None and device != "auto":
        raise InputError("--device names a device of this machine, and --ray measures on those of a cluster. Give one.")
    if campaign is not None and repeat != 1:
        raise InputError("--repeat is for SOURCEs. In a campaign file, give the points `repeat`.")
    if among_ranks and (campaign is not None or ray is not None or device != "auto"):
        raise InputError("torchrun starts one process a device: leave out --campaign, --ray and --device here.")
    if not among_ranks and (plan or backend):
        raise InputError(
            f"{'--plan' if plan else '--backend'} is for a step of several ranks, and this is one process. Start it with "
            "torchrun --nproc-per-node N --no-python foretell measure …, or leave it out."
        )


def _positive(option: str, text: str) -> Seconds:
    from foretell.units import parse_seconds

    value = parse_seconds(text)
    if value <= 0:
        raise InputError(f"{option} {text} leaves no time. Give more than nothing, like 0.3 or 10min.")
    return value


def _opened(store: Path | None, out: Path | None) -> Store | RecordFile:
    """Where records go. A place that cannot be written to is told before anything is measured."""
    from foretell.store.lines import RecordFile
    from foretell.store.store import Store
    from foretell.store.tables import need

    if store is not None and out is not None:
        raise InputError("--store and --out are two places for the same records. Give one.")
    if out is not None and out.suffix != ".jsonl":
        raise InputError(f"--out {out} must end in .jsonl: a record file has one line of JSON a measurement.")
    named = store or (Path(text) if (text := os.environ.get("FORETELL_STORE")) else None)
    if out is None and (named is not None or not _missing()):
        need("pyarrow")
        opened = Store(named or DEFAULT_STORE, warn=note)
        with opened.writing():
            return opened
    file = RecordFile(out or DEFAULT_FILE)
    with file.claim("is it writable?"):
        return file


def _missing() -> list[str]:
    return [name for name in ("pyarrow", "duckdb") if importlib.util.find_spec(name) is None]


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


class _Asked:
    """The store as a question by name sees it: nothing was measured before, and what cannot be stored is not lost."""

    def __init__(self, kept: Store | RecordFile) -> None:
        self.kept = kept
        self.records: list[Record] = []
        self.lost = ""  # why something could not be stored, and where it is instead

    def append(self, records: Iterable[Record]) -> None:
        from foretell.campaign.driver import rescue

        arrived = list(records)
        self.records += arrived
        try:
            self.kept.append(filter(_is_kept, arrived))
        except (StoreError, OSError) as error:
            self.lost = f"{error} {rescue(arrived)}"

    def claim(self, name: str) -> AbstractContextManager[bool]:
        return contextlib.nullcontext(True)

    def done(self, device: str | None = None) -> frozenset[str]:
        return frozenset()

    def steps(self, where: str | None = None) -> Iterator[StepRow]:
        return iter(())


def _is_kept(record: Record) -> bool:
    """An error tells of a slip, not of a device."""
    return record.step.outcome != "error"


def _measure_sources(
    points: Sequence[Point],
    repeat: int,
    kept: Store | RecordFile,
    executor: Executor,
    limit: Seconds,
    retries: int | None,
) -> tuple[list[Record], str]:
    """The records in the order they were asked for, and why some could not be stored."""
    from foretell.campaign.driver import RETRIES, run
    from foretell.campaign.jobs import Campaign

    asked = _Asked(kept)
    try:
        with progress() as say:
            say("starting")
            summary = run(
                Campaign.of(points, repeat=repeat), asked, executor, limit=limit,
                retries=RETRIES if retries is None else retries, progress=lambda p: say(p.said.partition("\n")[0]),
            )  # fmt: skip
    except KeyboardInterrupt:
        note(f"Interrupted. {sum(map(_is_kept, asked.records))} of {len(points) * repeat} are in {kept.path}.")
        raise
    if summary.left:
        raise InputError(" ".join(executor.troubles.values()) or summary.left[0][1])
    order = {point.key: number for number, point in enumerate(points)}
    return sorted(asked.records, key=lambda record: order[record.step.point]), asked.lost


def _show(records: Sequence[Record], *, compare: bool, top: int, as_json: bool, listed: bool) -> None:
    from foretell.report.measured import measured, measured_dict

    forecasts = [_forecast(record) if compare else None for record in records]
    if as_json:
        answers = [measured_dict(record, forecast) for record, forecast in zip(records, forecasts, strict=True)]
        print_json(answers if listed else answers[0])
        return
    console = console_of()
    for record, forecast in zip(records, forecasts, strict=True):
        if record.step.step_seconds is not None:
            print_drawn(measured(record, top=top, forecast=forecast), console)


def _forecast(record: Record) -> Forecast | None:
    from foretell.forecasting.assemble import forecast
    from foretell.graph import Graph

    step, graph = record.step, record.graph
    if graph is None:
        return None
    if not step.device:
        note(f"--compare: {step.device_name} is not in the catalogue, so there is no forecast for it.")
        return None
    return forecast(Graph.from_bytes(graph.file, name=graph.name), on=step.device)


def _say_where(records: Sequence[Record], kept: Store | RecordFile, *, fell_back: bool) -> None:
    from foretell.store.store import Store

    if not records:
        return
    if isinstance(kept, Store):
        place = "" if kept.path == DEFAULT_STORE else f" --store {kept.path}"
        ids = ", ".join(record.step.id[:8] for record in records[:3]) + (", …" if len(records) > 3 else "")
        note(f"Stored in {kept.path} as {ids}. Look again with: foretell store show {records[0].step.id[:8]}{place}")
        return
    why = f"Without {' and '.join(_missing())} there is no store. " if fell_back and _missing() else ""
    note(f"{why}Written to {kept.path}. Take it into a store with: foretell store import {kept.path}")


_CODES: Final = {"error": InputError.exit_code}  # the other outcomes tell what the device could not do


class _NotMeasured(ForetellError):
    def __init__(self, text: str, outcomes: Iterable[str]) -> None:
        super().__init__(text)
        self.exit_code = min(_CODES.get(outcome, RequirementNotMet.exit_code) for outcome in outcomes)


def _end(records: Sequence[Record], lost: str = "") -> None:
    """Say what failed, and by the exit code how."""
    failed = [record.step for record in records if record.step.outcome != "ok"]
    if lost:
        raise StoreError(lost)
    if not failed:
        return
    texts = [_failure(step) for step in failed]
    if len(records) == 1:
        raise _NotMeasured(texts[0], [failed[0].outcome])
    for text in texts:
        note(f"error: {text}")
    raise _NotMeasured(
        f"{len(failed)} of {len(records)} measurements failed, as said above; the others are kept.",
        [step.outcome for step in failed],
    )


def _failure(step: StepRow) -> str:
    words = "" if step.outcome == "error" else f"{step.outcome.replace('-', ' ')}: "
    advice = {"out-of-memory": " Ask for a smaller batch or a lower precision.",
              "nan-loss": " Check the loss at the first step, or the precision."}.get(step.outcome, "")  # fmt: skip
    stop = "" if step.error.endswith((".", "…")) else "."
    return f"{step.source}: {words}{step.error}{stop}{advice}"


def _run_campaign(
    file: Path, kept: Store | RecordFile, device: str, ray: str | None, seconds: Seconds | None, limit: Seconds,
    retries: int | None, as_json: bool,
) -> None:  # fmt: skip
    from foretell.campaign.driver import RETRIES, run
    from foretell.campaign.jobs import Campaign

    campaign = Campaign.load(file)
    executor = _executor([] if device == "auto" else [device], campaign.devices, ray, seconds)
    try:
        with _told() as tell:
            summary = run(campaign, kept, executor, limit=limit, retries=RETRIES if retries is None else retries,
                          progress=tell)  # fmt: skip
    except KeyboardInterrupt as interrupt:
        note(str(interrupt))
        raise
    if as_json:
        print_json(_summary_dict(campaign.name, summary, kept.path))
    else:
        print(f"{campaign.name}: {summary}. Kept in {kept.path}.")
    if summary.left:
        reasons = dict.fromkeys(why for _, why in summary.left)
        raise RequirementNotMet(f"{len(summary.left)} points were not measured: {' '.join(reasons)}")


def _summary_dict(name: str, summary: Summary, path: Path) -> Mapping[str, object]:
    left = [{"point": str(job.point), "device": job.device, "why": why} for job, why in summary.left]
    return {"schema_version": 1, "campaign": name, "store": str(path), "outcomes": dict(summary.outcomes),
            "skipped": summary.skipped, "retried": summary.retried, "left": left, "seconds": summary.seconds}  # fmt: skip


@contextmanager
def _told() -> Iterator[Callable[[Progress], None]]:
    """A bar for a person; for a file, a line for everything that happens."""
    if not sys.stderr.isatty():
        yield lambda now: print(f"[{now.done}/{now.total}] {now.said}", file=sys.stderr, flush=True)
        return
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar
    from rich.table import Column
    from rich.text import Text

    from foretell.units import show_seconds

    console = console_of(stderr=True)
    last = Column(ratio=1, no_wrap=True, overflow="ellipsis")
    columns = BarColumn(bar_width=16), TextColumn("{task.description}", markup=False, table_column=last)
    failed = 0
    with Bar(*columns, console=console, expand=True) as bar:
        task = bar.add_task("starting", total=None)

        def tell(now: Progress) -> None:
            nonlocal failed
            if now.failed > failed:  # stays on the screen above the bar
                console.print(Text(now.said, style="yellow"))
                failed = now.failed
            left = f"{show_seconds(now.seconds_left)} left · " if now.seconds_left else ""
            failures = f"{now.failed} failed · " if now.failed else ""
            said = now.said.partition("\n")[0]
            words = f"{now.done}/{now.total} · {failures}{left}{said}"
            bar.update(task, completed=now.done, total=now.total, description=words)

        yield tell


def _measure_ranks(
    points: Sequence[Point], kept: Store | RecordFile, backend: str | None, seconds: Seconds | None, limit: Seconds,
    as_json: bool,
) -> None:  # fmt: skip
    """In every rank that torchrun started; rank 0 keeps and shows what all of them measured."""
    from foretell.measure.ranks.measure import SECONDS, join, measure_ranks
    from foretell.report.measured import measured_dict, measured_ranks
    from foretell.store.lines import RecordFile

    file = kept.path if isinstance(kept, RecordFile) else None
    mine: list[Record] = []
    answers = []
    with join(backend=backend) as world:
        for point in points:
            with _ended_after(limit, point):
                records = measure_ranks(point, world, seconds=seconds or SECONDS, out=file)
            mine += records
            if world.place.rank:
                continue
            if file is None:
                kept.append(records)
            answers.append([measured_dict(record) for record in records])
            if not as_json:
                print_drawn(measured_ranks(records), console_of())
    if answers:
        if as_json:
            print_json(answers if len(points) > 1 else answers[0])
        _say_where(mine, kept, fell_back=True)
        _end(mine)


@contextmanager
def _ended_after(limit: Seconds, point: Point) -> Iterator[None]:
    """torchrun ends the other ranks when one has ended; a step that hangs is ended no other way."""
    import threading

    from foretell.units import show_seconds

    def end() -> None:
        sys.stderr.write(f"error: {point}: it ran longer than {show_seconds(limit)} and was stopped. Raise --limit.\n")
        sys.stderr.flush()
        os._exit(RequirementNotMet.exit_code)

    timer = threading.Timer(limit, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
