"""Transfer: times of ops on a device nobody measured, from those on the device that was.

An op's time where it was measured has two parts, which hide each other in part and so add up as squares: what its arithmetic
and traffic take at the rates that device attains, and the rest, which it spends in clocks of the units it runs on. On
another device the first part follows from what that one attains (`generations`), and the second from its clocks and units: a
kernel with few blocks does not gain by more units, the shortest kernels gain by neither. Accelerators and processors have
units of another kind: there the rest grows as the first part does; so it does for attention that cuDNN writes anew for each
generation. What public measurements of a generation are off by, as a factor for each family of ops, is learned
(`learn.transfer`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from foretell.cost.attained import Attained, attained_in
from foretell.cost.beyond_trees import beyond_trees
from foretell.cost.convolution import is_channels_last
from foretell.cost.features import walked
from foretell.cost.files import check_numbers, reading
from foretell.cost.generations import at_full_rate, bound, clock_hz, kind_of, on_half_the_lanes, share_of, unit_of
from foretell.cost.operators import OperatorModels
from foretell.cost.roofline import peak_name
from foretell.graph import Layout, Signature
from foretell.graph.operators import Family, operator_of
from foretell.hardware import Device
from foretell.limits import read_json
from foretell.precision import DTYPES, HALF_DTYPES, HALVES
from foretell.units import Seconds

Floats = npt.NDArray[np.float64]
FILE: Final = "generations.json"
_START: Final[Seconds] = 2.5e-6  # of a kernel: to begin and to end, which more units do not shorten
_BEFORE_HOPPER: Final = 1.3  # clocks of an fp32 product beside its arithmetic, where no units copy tiles by themselves
_HOPPER: Final = (9, 0)
_TILE: Final = 64  # rows and columns of a product that a block makes, at least
_MATRIX: Final = 2
_PRODUCTS: Final[tuple[Family, ...]] = ("matmul", "convolution", "convolution_backward", "rnn")
_RESERVE: Final = Layout.contiguous((0,), "uint8")  # what cuDNN's batch norm hands on to its backward pass
_SMALL_ON_CPU: Final = 3.0  # times its bound: a processor has no launch and no waves that small ops would leave empty
_LIKELY: Final = 4.0  # times that a generation can be off


@dataclass(frozen=True, slots=True, kw_only=True)
class Generations:
    """What ops of a generation take over what is transferred to it, by generation and then by group of ops."""

    factors: Mapping[str, Mapping[str, float]] = field(default_factory=dict, hash=False)
    attained: Attained = field(default_factory=lambda: attained_in(None), hash=False, repr=False)

    def __post_init__(self) -> None:
        for name, groups in self.factors.items():
            check_numbers(name, list(groups.values()), least=1 / _LIKELY, most=_LIKELY)

    def factor(self, device: Device, group: str) -> float:
        return self.factors.get(generation(device), {}).get(group, 1.0)

    @classmethod
    def load(cls, path: Path) -> Generations:
        with reading(path, "factors of generations"):
            return cls(factors=read_json(path))


def generation(device: Device) -> str:
    """Chips of like units: a compute capability, or the name of an architecture without its number."""
    capability = device.compute_capability
    return device.architecture.split()[0] if capability is None else f"{capability[0]}.{capability[1]}"


def group_of(signature: Signature, device: Device, *, tf32: bool) -> str:
    """Ops that a generation is off by the same factor for: norms and reductions each by their own."""
    family = operator_of(signature.name).family
    if family == "matmul":
        return f"matmul {'fp32' if unit_of(signature, device, tf32=tf32) == 'fp32' else 'half'}"
    if family in ("copy", "foreach", "fused"):
        return "elementwise"
    return signature.name if family in ("norm", "reduction") else family


def transferred(
    signatures: Sequence[Signature],
    own: Device,
    operators: OperatorModels,
    device: Device,
    generations: Generations,
    *,
    tf32: bool,
) -> tuple[Floats, list[Family]]:
    """Seconds of ops on another device than their model's own, and their families."""
    signatures = [_of_a_library(s, device) for s in signatures]
    computed = [_as_computed(s, device) for s in signatures]
    attained = generations.attained
    alone = operators.alone(computed, own, tf32=tf32)
    measured = np.array(
        [beyond_trees(s, a.seconds, own, device, attained) for s, a in zip(computed, alone, strict=True)]
    )
    ours = np.array([bound(s, own, attained, tf32=tf32) for s in computed])
    theirs = _bounds(computed, signatures, np.minimum(measured / ours, 1.0), own, device, attained, tf32=tf32)
    rest = np.sqrt(np.maximum(measured**2 - ours**2, 0.0))
    if device.kind == "gpu":
        start = np.minimum(rest, _START)
        rest = start * (clock_hz(own, attained) / clock_hz(device, attained)) + (rest - start) * [
            there / here if _keeps_its_share(s) else _clocks(s, own, device, attained, tf32=tf32)
            for s, there, here in zip(signatures, theirs, ours, strict=True)
        ]
    else:
        rest = rest * theirs / ours
        if device.kind == "cpu":
            rest = np.minimum(rest, _SMALL_ON_CPU * theirs)
    seconds = np.sqrt(theirs**2 + rest**2)
    if device.name != own.name:  # what a generation is off by is that of its other boards
        factors = [generations.factor(device, group_of(s, device, tf32=tf32)) for s in signatures]
        at_peak = [
            min(alone, at_full_rate(s, device, attained, tf32=tf32))
            for s, alone in zip(signatures, seconds, strict=True)
        ]
        # What single ops gained in the middle brings none past the peak.
        seconds = np.maximum(seconds * factors, at_peak)
    if tf32:  # units that may be used are used where they are faster
        seconds = np.minimum(seconds, transferred(signatures, own, operators, device, generations, tf32=False)[0])
    if (
        device.kind != "gpu"
    ):  # parts of a peak are all that is known of those, and no kernel need be taken that is worse
        for other in (partial(_widened, device=device), _in_tiles):
            if (instead := [other(s) for s in signatures]) != list(signatures):
                more, _ = transferred(instead, own, operators, device, generations, tf32=tf32)
                seconds = np.minimum(seconds, more)
    return seconds, [a.family for a in alone]


def _bounds(
    computed: Sequence[Signature],
    signatures: Sequence[Signature],
    nearer: Floats,
    own: Device,
    device: Device,
    attained: Attained,
    *,
    tf32: bool,
) -> Floats:
    """What ops take at the rates a device attains: where their kind attains as much as on our own, as near to it as there."""
    found = []
    for here, there, part in zip(computed, signatures, nearer.tolist(), strict=True):
        shares = {share_of(here, each, attained, tf32=tf32) for each in (own, device)}
        seconds = bound(there, device, attained, tf32=tf32) * (part if len(shares) == 1 else 1.0)
        found.append(min(seconds, on_half_the_lanes(there, device, attained, tf32=tf32)))
    return np.array(found)


def _keeps_its_share(signature: Signature) -> bool:
    """Whether a kernel attains the same share of the peak on every generation that has it.

    cuDNN's attention does: by its own tables (NVIDIA/cudnn-frontend, benchmark/sdpa_benchmark_training, heads of 128 and of
    192 and 128, 2,048 to 32,768 tokens) GB200 is 2.2 to 2.7 times as fast as H200 in either pass, and its peak 2.5 times.
    """
    operator = operator_of(signature.name)
    return operator.is_attention and operator.kind == "cudnn"


@lru_cache(maxsize=1 << 12)
def _as_computed(signature: Signature, device: Device) -> Signature:
    """Numbers of 16 bits are of another type where there are no units for theirs: products of fp32, or on Gaudi all of bf16.

    Convolutions in groups run on no such units anywhere; where it is not torch that runs those of bf16, as it does on NVIDIA
    boards, a maker's library runs them as those of fp16.
    """
    kept = {x.dtype for x in (*signature.inputs, *signature.outputs)}
    wanted = next((half for half in HALVES if DTYPES[half] in kept), None)
    if wanted is None:
        return signature
    unit = device.unit(wanted)
    if signature.argument("groups", 1) != 1:
        return signature if device.vendor == "NVIDIA" else _of_type(signature, DTYPES["fp16"])
    dtype = next((DTYPES[each] for each in DTYPES if each == unit), None)
    multiplies = operator_of(signature.name).family in _PRODUCTS
    if unit == wanted or dtype is None or not (multiplies or unit in HALVES):
        return signature
    return _of_type(signature, dtype)


def _of_a_library(signature: Signature, device: Device) -> Signature:
    """A batch norm of images as a library runs it, which cuDNN does for fp16: torch's kernels for bf16 are for boards alone."""
    backward = {"aten.native_batch_norm": False, "aten.native_batch_norm_backward": True}.get(signature.name)
    if backward is None or device.kind == "gpu" or len(signature.inputs[0].shape) <= _MATRIX:
        return signature
    if backward:
        more = (*signature.inputs, _RESERVE)
        return replace(signature, target="aten.cudnn_batch_norm_backward.default", inputs=more)
    return replace(signature, target="aten.cudnn_batch_norm.default", outputs=(*signature.outputs, _RESERVE))


def _of_type(signature: Signature, dtype: str) -> Signature:
    """With numbers of a type for its halves."""
    inputs, outputs = (tuple(_in_type(x, dtype) for x in side) for side in (signature.inputs, signature.outputs))
    return replace(signature, inputs=inputs, outputs=outputs)


def _widened(signature: Signature, device: Device) -> Signature:
    """In fp32, where there are units for 16 bits, which need not be slower: numbers can be widened as they are read.

    What part of its peak a small op attains falls as the peak rises, so the H200's part in 16 bits is too little for a device
    whose units of 16 bits are fewer times as fast as its fp32 ones.
    """
    wanted = peak_name(signature, tf32=False)
    fast = wanted in HALVES and device.unit(wanted) in HALVES
    return _of_type(signature, DTYPES["fp32"]) if fast else signature


def _in_tiles(signature: Signature) -> Signature:
    """A product whose last tiles are filled up with rows and columns that nobody needs; as it is, where its numbers lie apart."""
    sides = (signature.inputs, signature.outputs)
    dense = all(_filled(x) is not None for side in sides for x in side)
    if operator_of(signature.name).family != "matmul" or not dense:
        return signature
    inputs, outputs = (tuple(_filled(x) or x for x in side) for side in sides)
    return replace(signature, inputs=inputs, outputs=outputs)


def _filled(x: Layout) -> Layout | None:
    """A matrix of whole tiles, in the order in which it lies; None: it has gaps."""
    shape = (*x.shape[:-2], *(math.ceil(size / _TILE) * _TILE for size in x.shape[-2:]))
    if x.is_contiguous:
        return Layout.contiguous(shape, x.dtype)
    if len(shape) == _MATRIX and x.strides == (1, x.shape[0]):
        return Layout(shape, (1, shape[0]), x.dtype)
    return None


def _in_type(x: Layout, dtype: str) -> Layout:
    return replace(x, dtype=dtype) if x.dtype in HALF_DTYPES else x


def _clocks(signature: Signature, own: Device, device: Device, attained: Attained, *, tf32: bool) -> float:
    """How many times longer the clocks of a kernel take there, which runs on as many units as it has blocks for."""
    if walked(signature, own):
        return 1.0  # a thread waits for memory again and again, here as there
    blocks = max(_blocks(signature), 1.0)  # of a product of nothing, too
    there = min(blocks, device.compute_units) * clock_hz(device, attained)
    slower = min(blocks, own.compute_units) * clock_hz(own, attained) / there
    unit = unit_of(signature, device, tf32=tf32)
    early = device.compute_capability is None or device.compute_capability < _HOPPER
    return slower * (_BEFORE_HOPPER if early and kind_of(signature, unit) == "matmul fp32" else 1.0)


def _blocks(signature: Signature) -> float:
    """Tiles of a product, and channels for kernels that have a block for each; others have many."""
    operator = operator_of(signature.name)
    if operator.family == "matmul" and signature.outputs and len(signature.outputs[0].shape) > 1:
        *batch, rows, columns = signature.outputs[0].shape
        return math.prod(batch) * math.ceil(rows / _TILE) * math.ceil(columns / _TILE)
    backward = operator.family.endswith("_backward")
    x = signature.inputs[1 if backward and len(signature.inputs) > 1 else 0] if signature.inputs else None
    if x is None or len(x.shape) < 3 or is_channels_last(x):
        return math.inf
    by_channel = operator.kind == "batch" and operator.family in ("norm", "norm_backward")
    depthwise = operator.family == "convolution_backward" and signature.argument("groups", 1) == x.shape[1] > 1
    return x.shape[1] if by_channel or depthwise else math.inf
