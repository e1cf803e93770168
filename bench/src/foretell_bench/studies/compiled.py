"""`foretell bench accuracy --split compiled`: compiled steps, captured with no GPU and forecast, beside measured ones.

Steps that the shipped model was fitted on are forecast by models that saw nothing of their family; blind ones by the model itself.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import foretell
from foretell.cost.folder import DEFAULT, SHIPPED
from foretell.errors import InputError
from foretell.graph import Graph
from foretell.graph.operators import FUSED
from foretell.sources.resolve import load_workload
from foretell_bench.errors import Errors
from foretell_bench.fitting.compiled import fit_without
from foretell_bench.measuring.compiled.blind import is_blind
from foretell_bench.measuring.compiled.oracle import compared
from foretell_bench.measuring.compiled.points import key
from foretell_bench.measuring.compiled.rows import rows
from foretell_bench.rounding import short
from foretell_bench.tables.figures import Figure

SPLIT: Final = "compiled"
_DEVICE: Final = "h200"
_CLOSE: Final = 0.03  # numbers of kernels that count as the same


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


def predict(
    data: Path,
    graphs: Path,
    *,
    blind: bool = False,
    only: bool = False,
    progress: Callable[[str], None] = lambda text: None,
) -> list[CompiledStep]:
    """Steps of the open part, or of the blind one; graphs are kept in a folder, and `only` those there are taken."""
    chosen = [row for row in rows(data) if is_blind(row) == blind]
    graphs.mkdir(parents=True, exist_ok=True)
    models: dict[str, str] = {}
    found = []
    with TemporaryDirectory() as place:
        for number, row in enumerate(chosen, 1):
            pair = [_graph(row, graphs, compiled, only) for compiled in (True, False)]
            if pair[0] is None or pair[1] is None or not any(op.signature.name == FUSED for op in pair[0].ops):
                continue
            progress(f"forecasting step {number} of {len(chosen)}")
            if not blind and row["family"] not in models:
                models[row["family"]] = _left_out(data, Path(place), row["family"])
            found.append(_step(row, pair[0], pair[1], models.get(row["family"], DEFAULT)))
    if not found:
        raise InputError(f"no compiled step of {data} has its graphs in {graphs}. Leave --kept out to capture them.")
    return found


def _graph(row: dict[str, Any], folder: Path, compiled: bool, only: bool) -> Graph | None:
    """Captured once; None where only those that are kept are wanted and it is not."""
    name = sha256(key(row).encode()).hexdigest()[:12]
    path = folder / f"{name}-{'compiled' if compiled else 'eager'}.graph"
    if not path.is_file():
        if only:
            return None
        mode = (True if row["mode"] == "default" else row["mode"]) if compiled else False
        workload = replace(load_workload(row["source"], dict(row["settings"])), compile=mode)
        foretell.capture_graph(workload).save(str(path))
    return Graph.load(str(path))


def _left_out(data: Path, place: Path, family: str) -> str:
    """A model that saw nothing of a family, in a folder beside those that it inherits from."""
    for version in SHIPPED.iterdir():
        if version.is_dir() and not (place / version.name).exists():
            (place / version.name).symlink_to(version)
    return str(fit_without(data, place / f"without-{family}", SHIPPED / DEFAULT, family))


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
    )  # fmt: skip


def figures(steps: Sequence[CompiledStep]) -> Iterator[Figure]:
    source = "blind steps" if all(step.blind for step in steps) else "open steps, their family left out"
    count = len(steps)
    for measure, pairs, bar in (
        ("device time", [s.device for s in steps], 0.08),
        ("step time", [s.step for s in steps], 0.14),
        ("peak allocated", [s.allocated for s in steps], 0.04),
    ):
        errors = Errors.of([p for _, p in pairs], [m for m, _ in pairs])
        yield Figure(source=source, measure=f"{measure}, mean error", value=errors.mean, bar=bar, rows=count)
        yield Figure(source=source, measure=f"{measure}, median error", value=errors.median, rows=count)
    shares: list[tuple[str, Sequence[float], float | None]] = [
        ("step inside the 90 % interval", [s.low <= s.step[0] <= s.high for s in steps], 0.85),
        ("speed-up over eager within 10 %", [abs(s.speed_up[1] / s.speed_up[0] - 1) <= 0.1 for s in steps], 0.8),
        ("kernels launched within 3 %", [abs(s.kernels[1] / max(s.kernels[0], 1) - 1) <= _CLOSE for s in steps], None),
        ("fused groups that are the same", [s.same for s in steps], 0.95),
    ]
    for measure, share, least in shares:
        value = sum(share) / count
        yield Figure(source=source, measure=measure, value=value, bar=least, at_least=least is not None, rows=count)


def save(steps: Sequence[CompiledStep], path: Path) -> None:
    path.write_text("[\n" + ",\n".join(json.dumps(short(asdict(s))) for s in steps) + "\n]\n")


def read(path: Path) -> list[CompiledStep]:
    try:
        return [CompiledStep(**row) for row in json.loads(path.read_text())]
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"{path} holds no compiled steps ({error}). Make some with --split compiled --save") from error
