"""What a comparison of methods found: one line per method, split and target, in a file that later runs add to."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from foretell.errors import InputError
from foretell.store.importers import Selection
from foretell.units import Seconds
from foretell_bench.errors import Errors
from foretell_bench.rounding import short
from foretell_bench.tables import paired

INPUTS: Final = (
    2  # of what methods are given: 2 has precision, plan and cluster for all; a run does not go on from others
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One method on one split of one source; errors are fractions of what was measured."""

    method: str
    source: str
    split: str
    target: str
    rows: int  # that were asked
    answered: int
    trained: int  # rows it was fitted on
    mean: float | None = None
    median: float | None = None
    p90: float | None = None
    rmse: float | None = None  # of fractions
    rmse_absolute: float | None = None  # in the target's own unit
    inside: float | None = None  # part of the rows within the method's own 90 % interval, where it gives one
    fit_seconds: Seconds | None = None  # of a processor; graphs that an earlier fit has read are not read again
    measuring_seconds: Seconds | None = None  # that the runs it learned from took
    milliseconds: float | None = None  # per prediction
    why: str = ""  # it did not answer, or not all
    inputs: int = INPUTS


def errors(pairs: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """Of (predicted, measured)."""
    if not pairs:
        return {"answered": 0}
    predicted, measured = np.array(pairs, dtype=np.float64).T
    found = asdict(Errors.of(predicted, measured))
    absolute = float(np.sqrt(((predicted - measured) ** 2).mean()))
    kept = {name: found[name] for name in ("mean", "median", "p90", "rmse")}
    return {"answered": len(pairs), **kept, "rmse_absolute": absolute}


def merge(path: Path, part: str, rows: Sequence[Mapping[str, Any]], key: Callable[[Mapping[str, Any]], Any]) -> None:
    """Put rows into a part of the results, in place of those with the same key."""
    whole = read(path) if path.is_file() else {}
    kept = {key(row): row for row in whole.get(part, [])} | {key(row): dict(row) for row in rows}
    whole[part] = [kept[k] for k in sorted(kept, key=str)]
    body = ",\n".join(
        f'"{name}": [\n' + ",\n".join(json.dumps(short(row)) for row in those) + "\n]" for name, those in whole.items()
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{\n" + body + "\n}\n")


def keep_lines(path: Path) -> Callable[[Sequence[Line]], None]:
    def key(row: Mapping[str, Any]) -> tuple[str, ...]:
        return tuple(str(row[name]) for name in ("source", "split", "target", "method"))

    return lambda lines: merge(path, "lines", [asdict(line) for line in lines], key)


def keep_rows(path: Path) -> Callable[[str, Selection[Any]], None]:
    """What became of the rows of a source: asked, or left out and why."""

    def keep(source: str, taken: Selection[Any]) -> None:
        row = {"source": source, "rows": taken.rows, "asked": len(taken.items), "left_out": dict(taken.left_out)}
        merge(path, "rows", [row], lambda kept: kept["source"])

    return keep


def read(path: Path) -> dict[str, list[dict[str, Any]]]:
    try:
        found: dict[str, list[dict[str, Any]]] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path} holds no results of this benchmark ({error}). Make some: foretell bench methods"
        ) from error
    return found


def study_results(folder: Path) -> dict[str, Any]:
    """Results of the methods' own benchmarks, in the folder of the table's."""
    names = ("scaledl", "predictddl", "driple", "driple-box-gpu", "variants", "planner")
    files = {name: folder / f"{name}.json" for name in names}
    found = {name: json.loads(file.read_text()) for name, file in files.items() if file.is_file()}
    folds = folder / "methods-folds.jsonl.gz"
    return found | ({"folds": paired.load(folds)} if folds.is_file() else {})
