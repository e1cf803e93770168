"""`foretell bench accuracy --split compiled`: compiled steps, captured with no GPU and forecast, beside measured ones.

Steps that the shipped model was fitted on are forecast by models that saw nothing of their family; blind ones by the model itself.
"""

from __future__ import annotations

import json
import multiprocessing
import statistics
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, cast

import foretell
from foretell.cost.folder import DEFAULT, SHIPPED
from foretell.errors import ForetellError, InputError
from foretell.graph import Graph
from foretell.graph.operators import FUSED
from foretell.sources.resolve import load_workload
from foretell_bench.errors import Errors
from foretell_bench.fitting.compiled import Known
from foretell_bench.measuring.compiled.blind import is_blind
from foretell_bench.measuring.compiled.oracle import compared
from foretell_bench.measuring.compiled.points import key
from foretell_bench.measuring.compiled.rows import rows
from foretell_bench.rounding import short
from foretell_bench.tables.figures import Figure

SPLIT: Final = "compiled"
_DEVICE: Final = "h200"
_CLOSE: Final = 0.03  # numbers of kernels that count as the same
_HOST_BOUND: Final = 0.75  # of the step with a kernel running, at most
_CLEAR: Final = 0.05  # a speed-up, or a loss, that one would notice


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledStep:
    source: str
    family: str
    mode: str
    blind: bool
    kernels: tuple[int, int]  # of the compiler's own: measured, captured
    same: float  # share of the scheduled kernels that the capture has too
    device: tuple[float, float]  # seconds: measured, forecast
    step: tuple[float, float]
    low: float  # of the step's interval
    high: float
    allocated: tuple[float, float]
    speed_up: tuple[float, float]  # of the step, over the eager one
    fused: bool = True  # it could be captured compiled, or ran as it is written; else this is the eager step instead
    inference: bool = False


def capture(
    data: Path,
    graphs: Path,
    *,
    blind: bool = False,
    workers: int = 2,
    progress: Callable[[str], None] = lambda text: None,
) -> dict[str, str]:
    """Graphs of every step, compiled and eager, that the folder does not have; what could not be captured, and why."""
    graphs.mkdir(parents=True, exist_ok=True)
    chosen = [row for row in rows(data) if is_blind(row) == blind]
    wanted = [_Wanted.of(row, graphs, compiled) for row in chosen for compiled in (True, False)]
    wanted = [each for each in wanted if not each.path.is_file()]
    failed: dict[str, str] = {}
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        futures = {pool.submit(_capture, each): each for each in wanted}
        for number, future in enumerate(as_completed(futures), 1):
            if (reason := future.result()) is not None:
                failed[futures[future].path.name] = f"{futures[future].source}: {reason}"
            progress(f"captured {number} of {len(wanted)} graphs")
    return failed


def predict(
    data: Path, graphs: Path, *, blind: bool = False, progress: Callable[[str], None] = lambda text: None
) -> list[CompiledStep]:
    """Steps of the open part, or of the blind one, whose graphs are in a folder."""
    chosen = [row for row in rows(data) if is_blind(row) == blind]
    models: dict[str, str] = {}
    known = None if blind else Known.of(data)
    found = []
    with TemporaryDirectory() as place:
        for number, row in enumerate(chosen, 1):
            pair = [_Wanted.of(row, graphs, compiled).path for compiled in (True, False)]
            if not all(path.is_file() for path in pair):
                continue
            progress(f"forecasting step {number} of {len(chosen)}")
            if known is not None and row["family"] not in models:
                models[row["family"]] = _left_out(known, Path(place), row["family"])
            ours, eager = (Graph.load(str(path)) for path in pair)
            found.append(_step(row, ours, eager, models.get(row["family"], DEFAULT)))
    if not found:
        raise InputError(f"no compiled step of {data} has its graphs in {graphs}. Leave --kept out to capture them.")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """A graph that is captured once."""

    source: str
    settings: dict[str, str]
    compile: bool | str
    path: Path

    @classmethod
    def of(cls, row: dict[str, Any], folder: Path, compiled: bool) -> _Wanted:
        name = sha256(key(row).encode()).hexdigest()[:12]
        mode = (True if row["mode"] == "default" else row["mode"]) if compiled else False
        path = folder / f"{name}-{'compiled' if compiled else 'eager'}.graph"
        return cls(source=row["source"], settings=dict(row["settings"]), compile=mode, path=path)


def _capture(wanted: _Wanted) -> str | None:
    """In a process of its own; why not, where it could not be."""
    try:
        workload = replace(load_workload(wanted.source, wanted.settings), compile=cast(Any, wanted.compile))
        foretell.capture_graph(workload).save(str(wanted.path))
    except ForetellError as error:
        return str(error).partition("\n")[0][:300]
    return None


def _left_out(known: Known, place: Path, family: str) -> str:
    """A model that saw nothing of a family, in a folder beside those that it inherits from."""
    for version in SHIPPED.iterdir():
        if version.is_dir() and not (place / version.name).exists():
            (place / version.name).symlink_to(version)
    return str(known.fit_without(family, place / f"without-{family}", SHIPPED / DEFAULT))


def _step(row: dict[str, Any], compiled: Graph, eager: Graph, model: str) -> CompiledStep:
    ours, theirs = (foretell.forecast(graph, on=_DEVICE, model=model) for graph in (compiled, eager))
    counted, taken = compared(row, compiled), row["compiled"]["step_seconds"]
    seconds = ours.step_time.seconds
    return CompiledStep(
        source=row["source"], family=row["family"], mode=row["mode"], blind=is_blind(row),
        kernels=(counted.measured, counted.captured), same=counted.same,
        device=(statistics.median(row["busy"]), ours.device_time.seconds), step=(taken, seconds),
        low=ours.step_time.low or seconds, high=ours.step_time.high or seconds,
        allocated=(row["compiled_peaks"][0], ours.memory.allocated),
        speed_up=(row["eager"]["step_seconds"] / taken, theirs.step_time.seconds / seconds),
        fused=not counted.measured or any(op.signature.name == FUSED for op in compiled.ops),
        inference=not compiled.training,
    )  # fmt: skip


def figures(steps: Sequence[CompiledStep]) -> Iterator[Figure]:
    """What was captured as compiled, and how far its forecasts are off; of the others, that they are none."""
    source = "blind steps" if all(step.blind for step in steps) else "open steps, their family left out"
    compiled = [step for step in steps if step.fused]
    captured = len(compiled) / len(steps)
    yield Figure(source=source, measure="captured as compiled, not eager", value=captured, rows=len(steps))
    if not compiled:
        return
    yield from _errors(source, compiled)
    inference = [step for step in compiled if step.inference]
    waiting = [step for step in inference if step.device[0] < _HOST_BOUND * step.step[0]]
    for what, steps_of, bar in (("inference", inference, 0.12), ("inference that the host bounds", waiting, 0.2)):
        if steps_of:
            errors = Errors.of([s.step[1] for s in steps_of], [s.step[0] for s in steps_of])
            measure = f"step time of {what}, mean error"
            yield Figure(source=source, measure=measure, value=errors.mean, bar=bar, rows=len(steps_of))
    yield from _shares(source, compiled)


def _errors(source: str, steps: Sequence[CompiledStep]) -> Iterator[Figure]:
    plain = [s for s in steps if s.mode == "default"]  # a CUDA graph's pool is taken before the step that was watched
    for measure, pairs, mean, median in (
        ("device time", [s.device for s in steps], 0.08, 0.045),
        ("step time", [s.step for s in steps], 0.14, None),
        ("peak allocated, without CUDA graphs", [s.allocated for s in plain], 0.04, None),
    ):
        if not pairs:
            continue
        errors, count = Errors.of([p for _, p in pairs], [m for m, _ in pairs]), len(pairs)
        yield Figure(source=source, measure=f"{measure}, mean error", value=errors.mean, bar=mean, rows=count)
        yield Figure(source=source, measure=f"{measure}, median error", value=errors.median, bar=median, rows=count)


def _shares(source: str, steps: Sequence[CompiledStep]) -> Iterator[Figure]:
    clear = [s for s in steps if abs(s.speed_up[0] - 1) > _CLEAR]
    shares: list[tuple[str, Sequence[float], float | None]] = [
        ("step inside the 90 % interval", [s.low <= s.step[0] <= s.high for s in steps], 0.85),
        ("speed-up over eager within 10 %", [abs(s.speed_up[1] / s.speed_up[0] - 1) <= 0.1 for s in steps], 0.8),
        ("speed-ups over 5 %: their sign is right", [(s.speed_up[0] > 1) == (s.speed_up[1] > 1) for s in clear], 1.0),
        (
            "kernels launched within 3 %",
            [abs(s.kernels[1] - s.kernels[0]) <= _CLOSE * s.kernels[0] for s in steps],
            None,
        ),
        ("fused groups that are the same", [s.same for s in steps], 0.95),
    ]
    for measure, share, least in shares:
        if share:
            value = sum(share) / len(share)
            yield Figure(
                source=source, measure=measure, value=value, bar=least, at_least=least is not None, rows=len(share)
            )


def save(steps: Sequence[CompiledStep], path: Path) -> None:
    path.write_text("[\n" + ",\n".join(json.dumps(short(asdict(s))) for s in steps) + "\n]\n")


def read(path: Path) -> list[CompiledStep]:
    try:
        return [CompiledStep(**row) for row in json.loads(path.read_text())]
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"{path} holds no compiled steps ({error}). Make some with --split compiled --save") from error
