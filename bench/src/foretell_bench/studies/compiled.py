"""`foretell bench accuracy --split compiled`: compiled steps, captured with no GPU and forecast, beside measured ones.

Steps that the shipped model was fitted on are forecast by models that saw nothing of their family; blind ones by the model itself.
"""

from __future__ import annotations

import multiprocessing
import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
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
from foretell_bench.fitting.compiled import Known
from foretell_bench.measuring.compiled.blind import is_blind
from foretell_bench.measuring.compiled.oracle import compared
from foretell_bench.measuring.compiled.points import LATER, key
from foretell_bench.measuring.compiled.rows import rows
from foretell_bench.tables.compiled import CompiledStep

SPLIT: Final = "compiled"
_DEVICE: Final = "h200"


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
    data: Path,
    graphs: Path,
    *,
    blind: bool = False,
    workers: int = 2,
    progress: Callable[[str], None] = lambda text: None,
) -> list[CompiledStep]:
    """Steps of the open part, or of the blind one, whose graphs are in a folder; families side by side."""
    families: dict[str, list[_Pair]] = {}
    for number, row in enumerate(rows(data)):
        ours, eager = (_Wanted.of(row, graphs, compiled).path for compiled in (True, False))
        if is_blind(row) == blind and ours.is_file() and eager.is_file():
            families.setdefault(row["family"], []).append(_Pair(number=number, row=row, compiled=ours, eager=eager))
    if not families:
        raise InputError(f"no compiled step of {data} has its graphs in {graphs}. Leave --kept out to capture them.")
    known = None if blind else Known.of(data)
    found: list[tuple[int, CompiledStep]] = []
    # A fork has what was read already.
    with ProcessPoolExecutor(workers, multiprocessing.get_context("fork"), _keep, (known,)) as pool:
        futures = [pool.submit(_of_family, family, pairs) for family, pairs in families.items()]
        for number, future in enumerate(as_completed(futures), 1):
            found += future.result()
            progress(f"forecast family {number} of {len(futures)}")
    return [step for _, step in sorted(found, key=lambda each: each[0])]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    """A measured step, and its graphs."""

    number: int
    row: dict[str, Any]
    compiled: Path
    eager: Path


_KNOWN: list[Known | None] = []  # of this process


def _keep(known: Known | None) -> None:
    _KNOWN[:] = [known]


def _of_family(family: str, pairs: Sequence[_Pair]) -> list[tuple[int, CompiledStep]]:
    with TemporaryDirectory() as place:
        known = _KNOWN[0]
        model = DEFAULT if known is None else _left_out(known, Path(place), family)
        return [
            (pair.number, _step(pair.row, Graph.load(str(pair.compiled)), Graph.load(str(pair.eager)), model))
            for pair in pairs
        ]


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
        inference=not compiled.training, later=row.get("part") == LATER,
    )  # fmt: skip
