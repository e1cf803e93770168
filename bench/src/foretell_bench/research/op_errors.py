"""Errors on the ops of devices that were left out, by the models that saw nothing of them and by plainer ways."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from foretell.cost.features import describe
from foretell.cost.operators import OperatorModels
from foretell.cost.roofline import peak_name, work_of
from foretell.cost.transfer import Generations, transferred
from foretell.graph import Signature
from foretell.hardware import Device
from foretell.learn.transfer.fit import chip
from foretell.learn.transfer.published_ops import PublicOps
from foretell.learn.uncertainty.other_device_steps import LEARNED, PHYSICS, ROOFLINE
from foretell_bench.errors import Errors

Floats = npt.NDArray[np.float64]
LINEAR = "linear"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpErrors:
    """Of one family's ops on a device that was left out, as each way of predicting has them."""

    device: str
    family: str
    dtype: str
    errors: Mapping[str, Errors]  # way → its errors


def errors_left_out(
    public: Mapping[str, PublicOps], learned: Mapping[str, Generations], own: Device, operators: OperatorModels
) -> list[OpErrors]:
    """By what `without_each` learned, each chip left out; `operators` are of our own device."""
    found: list[OpErrors] = []
    for name, ops in public.items():
        linear = _Linear([those for other, those in public.items() if chip(other) != chip(name)])
        physics, families = transferred(ops.signatures, own, operators, ops.device, Generations(), tf32=False)
        predicted = {
            LEARNED: transferred(ops.signatures, own, operators, ops.device, learned[chip(name)], tf32=False)[0],
            PHYSICS: physics,
            LINEAR: linear.seconds(ops),
            ROOFLINE: np.array([describe(s, ops.device, tf32=False).roofline for s in ops.signatures]),
        }
        found += _errors(ops, families, predicted)
    return found


def _errors(ops: PublicOps, families: Sequence[str], predicted: Mapping[str, Floats]) -> list[OpErrors]:
    kinds = np.array([f"{family}|{_dtype(s)}" for family, s in zip(families, ops.signatures, strict=True)])
    found = []
    for kind in sorted(set(kinds)):
        rows = kinds == kind
        family, dtype = kind.split("|")
        errors = {way: Errors.of(seconds[rows], ops.seconds[rows]) for way, seconds in predicted.items()}
        found.append(OpErrors(device=ops.device.name, family=family, dtype=dtype, errors=errors))
    return found


def _dtype(signature: Signature) -> str:
    return "fp32" if signature.inputs[0].dtype == "float32" else "half"


class _Linear:
    """For each operator a time per call, per time at the device's peak and per time at its bandwidth."""

    def __init__(self, others: Sequence[PublicOps]) -> None:
        names = np.array([s.name for ops in others for s in ops.signatures])
        table, seconds = np.concatenate([_amounts(o) for o in others]), np.concatenate([o.seconds for o in others])
        self._costs = {
            name: _least(table[names == name], seconds[names == name]) for name in sorted(set(names.tolist()))
        }
        self._usual = np.median(np.array(list(self._costs.values())), axis=0)

    def seconds(self, ops: PublicOps) -> Floats:
        costs = np.array([self._costs.get(s.name, self._usual) for s in ops.signatures])
        return np.asarray(np.maximum((_amounts(ops) * costs).sum(axis=1), 1e-7), dtype=np.float64)


def _amounts(ops: PublicOps) -> Floats:
    works = [work_of(s) for s in ops.signatures]
    peaks = [ops.device.peak(peak_name(s, tf32=False)) for s in ops.signatures]
    columns = [(1e-6, w.flops / peak, w.traffic / ops.device.bandwidth) for w, peak in zip(works, peaks, strict=True)]
    return np.array(columns, dtype=np.float64)


def _least(table: Floats, measured: Floats) -> Floats:
    from scipy.optimize import nnls

    found, _ = nnls(table / measured[:, None], np.ones(len(measured)))
    return np.asarray(found, dtype=np.float64)


def mean_errors(errors: Sequence[OpErrors]) -> dict[tuple[str, str], dict[str, float]]:
    """(family, type) → way → mean error, each device counted once."""
    of: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for e in errors:
        for way, those in e.errors.items():
            of[e.family, e.dtype][way].append(those.mean)
    return {key: {way: float(np.mean(means)) for way, means in ways.items()} for key, ways in of.items()}
