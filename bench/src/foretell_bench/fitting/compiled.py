"""What the shipped model knows of compiled steps: times of fused kernels and the host's launches, fitted on measured steps.

The host's costs are five, and a virtual machine's times differ by a quarter from step to step: more would not be told apart.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from foretell.cost.folder import CARD, SHIPPED, file_of, seal
from foretell.cost.host import FILE, HostCosts
from foretell.cost.operator_errors import FUSED_FILE as ERRORS_FILE
from foretell.cost.operators import FUSED_FILE, OperatorModels, save_families
from foretell.hardware import device as known_device
from foretell.hardware import host as known_host
from foretell.learn.dataset import OpTable
from foretell.learn.fused import FusedFit, fit_fused, fit_kernels, table_of
from foretell_bench.measuring.compiled.aligned import kernels_of, runs_of
from foretell_bench.measuring.compiled.blind import is_blind
from foretell_bench.measuring.compiled.rows import rows

Floats = npt.NDArray[np.float64]
_DEVICE: Final = "h200"
_HOST_BOUND: Final = 0.75  # of the step with a kernel running, at most
_PULL: Final = 0.02  # of a cost towards nothing, beside the errors of some thirty parts of steps
_LIBRARY: Final = "ExternKernelSchedulerNode"
_PICKED: Final = "MultiOutput"  # one of several tensors that an op has made
_PRODUCTS: Final = ("mm", "addmm", "bias_addmm", "bmm", "baddbmm", "_int_mm")


class Counts(NamedTuple):
    """What compiled code launches, and what it was called with."""

    launched: int
    whole: int  # gradients of a library's op, of several kernels each
    given: int

    def __add__(self, other: Counts) -> Counts:  # type: ignore[override]
        return Counts(*(a + b for a, b in zip(self, other, strict=True)))


class Part(NamedTuple):
    """A forward or backward pass that the host bounds; or, of a step that the device bounds, both, which took the host no longer."""

    launched: int
    whole: int
    forward: int  # passes, in inference too
    backward: int
    given: int
    seconds: float
    is_limit: bool = False


def fit(data: Path, folder: Path, inherits: str, say: Callable[[str], None]) -> None:
    """Fit on the steps that are not blind, and write a version that inherits all else from another."""
    plain = _plain(data)
    fused = fit_fused(*_table(plain))
    parts = [part for row in plain for part in _parts(row)]
    seconds = _solve(parts)
    _report(fused, parts, seconds, say)
    _report_left_out(plain, say)
    _report_compiling(plain, say)
    before = SHIPPED / inherits
    about = {"steps": len(plain), "kernels": len(fused.rows), "launches": int(fused.rows.count.sum())}
    costs = _named(seconds, _replayed(data))
    say(f"host: {costs} of an op")
    _write_model(folder, before, fused.models, costs, {"compiled": about, "inherits": inherits})
    save_families(folder / ERRORS_FILE, fused.errors.families)
    seal(folder)


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What measured steps say, read once for many fits."""

    kernels: OpTable
    family_of: Sequence[str]  # of each step of the table
    parts: Mapping[str, Sequence[Part]]  # of each family
    replayed: float | None  # seconds

    @classmethod
    def of(cls, data: Path) -> Known:
        plain = _plain(data)
        kernels, family_of = _table(plain)
        return cls(kernels=kernels, family_of=family_of, parts=_by_family(plain), replayed=_replayed(data))

    def fit_without(self, family: str, folder: Path, model: Path) -> Path:
        """A version of a model whose compiled steps are fitted on those of all other families; its folder."""
        others = np.array([self.family_of[step] != family for step in self.kernels.step.tolist()])
        costs = _solve([part for name, parts in self.parts.items() if name != family for part in parts])
        _write_model(
            folder,
            model,
            fit_kernels(self.kernels.where(others)),
            _named(costs, self.replayed),
            {"inherits": model.name},
        )
        seal(folder)
        return folder


def _by_family(measured: Sequence[dict[str, Any]]) -> dict[str, list[Part]]:
    found: dict[str, list[Part]] = {row["family"]: [] for row in measured}
    for row in measured:
        found[row["family"]] += _parts(row)
    return found


def _plain(data: Path) -> list[dict[str, Any]]:
    return [row for row in rows(data) if not is_blind(row) and row["mode"] == "default" and row["graphs"]]


def _write_model(
    folder: Path, before: Path, models: OperatorModels, costs: dict[str, Any], about: dict[str, Any]
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    save_families(folder / FUSED_FILE, models.families)
    host = HostCosts.load(file_of(before, FILE) or before / FILE)
    _write(folder / FILE, {**asdict(host), **costs})
    _write(folder / CARD, {**json.loads((before / CARD).read_text()), "name": folder.name, **about})


def _replayed(data: Path) -> float | None:
    """What the host takes for a pass without gradients that a graph of CUDA replays, where the device does not hold it up."""
    found = [
        row["compiled"]["issue_seconds"]
        for row in rows(data)
        if not is_blind(row) and row["mode"] == "reduce-overhead" and row["compiled"]["backward_seconds"] is None
        and row["compiled"]["issue_seconds"] < _HOST_BOUND * row["compiled"]["step_seconds"]
    ]  # fmt: skip
    return float(np.median(found)) if found else None


def _named(seconds: Floats, replayed: float | None) -> dict[str, Any]:
    op = known_host(known_device(_DEVICE).host).op_seconds
    launched, whole, forward, backward, given = (seconds / op).round(4).tolist()
    entering = {"inference": forward, "forward": forward, "backward": backward}
    if replayed is not None:
        entering["replayed"] = round(replayed / op, 4)
    return {"launched": launched, "whole": whole, "entered": 0.0, "given": given, "entering": entering}


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")


def _table(measured: Sequence[dict[str, Any]]) -> tuple[OpTable, list[str]]:
    """Kernels of each step that has some, and its family."""
    known = [(row["family"], [(k.signature, k.seconds) for k in kernels_of(row)]) for row in measured]
    known = [(family, kernels) for family, kernels in known if kernels]
    return table_of([kernels for _, kernels in known], known_device(_DEVICE)), [family for family, _ in known]


def _parts(row: dict[str, Any]) -> Iterator[Part]:
    """The passes of a step, or where it has graph breaks both together."""
    compiled, runs = row["compiled"], [run.graph for run in runs_of(row)]
    bound = float(np.median(row["busy"])) < _HOST_BOUND * compiled["step_seconds"]
    passes = int(row["settings"].get("grad_accumulation", 1))
    forward, backward = (_counted([g for g in runs if g["backward"] is way]) for way in (False, True))
    if not any(backward):
        yield Part(forward.launched, 0, passes, 0, forward.given, compiled["issue_seconds"])
    elif bound and row["graph_breaks"]:
        launched, whole, given = forward + backward
        seconds = compiled["forward_seconds"] + compiled["backward_seconds"]
        yield Part(launched, whole, passes, passes, given, seconds)
    elif not bound:
        launched, whole, given = forward + backward
        seconds = compiled["forward_seconds"] + compiled["backward_seconds"]
        yield Part(launched, whole, passes, passes, given, seconds, True)
    else:
        yield Part(forward.launched, 0, passes, 0, forward.given, compiled["forward_seconds"])
        yield Part(backward.launched, backward.whole, 0, passes, backward.given, compiled["backward_seconds"])


def _counted(runs: Sequence[dict[str, Any]]) -> Counts:
    return sum(map(_counts, runs), start=Counts(0, 0, 0))


def _counts(part: dict[str, Any]) -> Counts:
    calls = [node["library"][0] for node in part["nodes"] if node["kind"] == _LIBRARY and node.get("library")]
    calls = [call for call in calls if call["kind"] != _PICKED]
    whole = sum(_is_whole(call) for call in calls) if part["backward"] else 0
    return Counts(len(part["kernels"]) + len(calls) - whole, whole, _given(part))


def _is_whole(call: dict[str, Any]) -> bool:
    name = call.get("python_kernel_name") or call.get("op_overload") or ""
    return not any(product in name.split(".") for product in _PRODUCTS)


def _given(part: dict[str, Any]) -> int:
    return len({access[0] for node in part["nodes"] for access in node["reads"] if not access[0].startswith("buf")})


def _solve(parts: Sequence[Part]) -> Floats:
    """Seconds of each cost: the least sum of errors as logarithms, which odd steps do not carry away."""
    from scipy.optimize import minimize

    (table, seconds), (most, limits) = (_table_of([p for p in parts if p.is_limit is way]) for way in (False, True))
    start = np.array([20e-6, 100e-6, 500e-6, 800e-6, 2e-6])

    def loss(factors: Floats) -> float:
        costs = np.abs(factors) * start
        over = np.log(most @ costs / limits).clip(min=0).sum()
        return float(np.abs(np.log(table @ costs / seconds)).sum() + over + _PULL * np.abs(factors).sum())

    tried = [minimize(loss, np.full(len(start), scale), method="Nelder-Mead") for scale in (0.5, 1.0, 2.0)]
    return np.asarray(np.abs(min(tried, key=lambda each: each.fun).x) * start, dtype=np.float64)


def _report_compiling(measured: Sequence[dict[str, Any]], say: Callable[[str], None]) -> None:
    """How long compiling took, as `cost/compile_time.py` has it."""
    from scipy.optimize import nnls

    counted = [[kernel for part in row["graphs"] for kernel, _ in part["kernels"]] for row in measured]
    seconds = np.array([row["compile_seconds"] for row in measured])
    table = np.array([[1.0, len(set(kernels)), len(kernels)] for kernels in counted])
    costs, _ = nnls(table / seconds[:, None], np.ones(len(seconds)))  # errors as parts of what was measured
    off = table @ costs / seconds
    once, different, kernel = costs.tolist()
    say(
        f"compiling: {once:.2f} s once, {different:.2f} s for each different kernel, {kernel:.3f} s for each kernel; mean "
        f"{np.abs(off - 1).mean():.1%}, sigma {np.log(off).std():.2f}"
    )


def _report(fused: FusedFit, parts: Sequence[Part], costs: Floats, say: Callable[[str], None]) -> None:
    rows_ = fused.rows
    whole = np.bincount(rows_.step, rows_.seconds * rows_.count)
    errors = np.abs(np.bincount(rows_.step, rows_.seconds * rows_.count * np.exp(fused.unseen)) / whole - 1)
    say(
        f"{rows_.count.sum()} launches, {len(rows_)} different kernels of {len(whole)} steps. Fused kernels of a step, its "
        f"family left out: mean {errors.mean():.1%}, median {np.median(errors):.1%}; of a kernel: median "
        f"{np.median(np.abs(fused.unseen)):.1%}"
    )
    parts = [part for part in parts if not part.is_limit]
    table, seconds = _table_of(parts)
    off = np.abs(table @ costs / seconds - 1)
    say(f"host: {len(parts)} parts of steps, fitted: mean {off.mean():.1%}, median {np.median(off):.1%}")


def _report_left_out(measured: Sequence[dict[str, Any]], say: Callable[[str], None]) -> None:
    """The host's costs on the parts of steps of a family that they were not fitted on."""
    families = _by_family(measured)
    off: list[float] = []
    for family, parts in families.items():
        measured_ones = [part for part in parts if not part.is_limit]
        if measured_ones:
            others = [part for name, known in families.items() if name != family for part in known]
            table, seconds = _table_of(measured_ones)
            off += np.abs(table @ _solve(others) / seconds - 1).tolist()
    say(f"host, a family left out: mean {np.mean(off):.1%}, median {np.median(off):.1%}")


def _table_of(parts: Sequence[Part]) -> tuple[Floats, Floats]:
    """How often each cost is there, and seconds."""
    table = np.array([part[:-1] for part in parts], dtype=np.float64).reshape(len(parts), -1)
    return table[:, :-1], table[:, -1]
