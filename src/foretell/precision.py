"""What a step keeps, computes and communicates its numbers in, and which units of a device that takes.

A precision names what is wanted; which unit runs an op follows from the device.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, get_args

from foretell.errors import InputError, check_choice, did_you_mean

if TYPE_CHECKING:
    from foretell.hardware import Device

Float = Literal["fp32", "bf16", "fp16"]
Unit = Literal["fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8"]
UNITS: Final[tuple[Unit, ...]] = get_args(Unit)
Recipe = Literal["delayed", "current", "rowwise", "blockwise", "mx"]
RECIPES: Final[tuple[Recipe, ...]] = get_args(Recipe)
PrecisionName = Literal[
    "fp32", "torch-fp32", "tf32", "bf16", "fp16", "amp-bf16", "amp-fp16", "fp8", "fp8:current", "fp8:rowwise",
    "fp8:blockwise", "fp8:mx",
]  # fmt: skip
PRECISIONS: Final[tuple[PrecisionName, ...]] = get_args(PrecisionName)
DTYPES: Final[dict[Float, str]] = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}  # as graphs write them
UNIT_OF_DTYPE: Final[dict[str, Unit]] = {
    "float64": "fp64", "float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "int8": "int8",
    "float8_e4m3fn": "fp8", "float8_e5m2": "fp8",
}  # fmt: skip
HALVES: Final[tuple[Float, ...]] = ("bf16", "fp16")
HALF_DTYPES: Final = tuple(DTYPES[half] for half in HALVES)
_CHOICES: Final = {
    "master": (None, "fp32"), "autocast": (None, *HALVES), "tf32": ("never", "convolutions", "products"),
    "fp8": (None, *RECIPES), "weights": (None, "fp8"),
}  # fmt: skip
_ITEM_BYTES: Final[dict[Float, int]] = {"fp32": 4, "bf16": 2, "fp16": 2}
_PARTS: Final = (
    "parameters", "compute", "gradients", "reduce", "master", "autocast", "tf32", "fp8", "weights", "half_blocks",
)  # fmt: skip
_BY_CUDNN: Final = ("convolution", "convolution_backward", "rnn")  # families of operators


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """What is kept, computed and communicated in which precision. What is left out follows from the others.

    Args:
        name: A named precision, or "" for the text of the parts below.
        parameters: As they are kept.
        compute: Forward and backward, on copies of the parameters (FSDP2's `param_dtype`); nothing is autocast.
        gradients: As they are kept and added up over micro-steps.
        reduce: As ranks add them up.
        master: Copies that the optimizer updates, as Megatron, Apex and DeepSpeed keep them.
        autocast: What `torch.autocast` casts products to.
        tf32: Which ops on fp32 numbers may run on tf32 units.
        fp8: How the factors of linear layers in repeated blocks are scaled to 8 bits; None: they are not. `delayed`,
            `current`, `blockwise` and `mx` are Transformer Engine's; torchao's tensorwise is `current`, and `rowwise` its own.
        weights: "fp8": those layers' weights are kept and gathered in 8 bits, without half-precision copies.
        half_blocks: How many blocks at the start and at the end stay in half precision, like "1-1".

    Raises:
        InputError: A combination that is not possible.

    Examples:
        >>> foretell.Precision.parse("compute:bf16/reduce:fp32").gradients
        'fp32'
    """

    name: str = ""  # one of PRECISIONS; else the shortest text of the parts, which `parse` reads back
    parameters: Float = "fp32"  # as they are kept
    compute: Float | None = None  # forward and backward, outside autocast; else the parameters'
    gradients: Float | None = None  # as they are kept and added up over micro-steps; else the parameters'
    reduce: Float | None = None  # as ranks add them up; else as they are computed or kept
    master: Float | None = None  # copies that the optimizer updates, and its state; else there are none
    autocast: Float | None = None  # what torch.autocast casts products to
    tf32: Literal["never", "convolutions", "products"] = "never"  # what of fp32 may run on tf32 units
    fp8: Recipe | None = None  # how linear layers of repeated blocks scale their factors to 8 bits
    weights: Literal["fp8"] | None = None  # kept and gathered in 8 bits, where those layers have them
    half_blocks: str = "0-0"  # at the start and at the end, which stay as they are

    def __post_init__(self) -> None:
        for name in _PARTS[:4]:
            given = getattr(self, name)
            check_choice(name, given, get_args(Float) if name == "parameters" else (None, *get_args(Float)), InputError)
        for name, allowed in _CHOICES.items():
            check_choice(name, getattr(self, name), allowed, InputError)
        compute, gradients = self.compute or self.parameters, self.gradients or self.parameters
        reduce = self.reduce or (compute if compute != self.parameters else gradients)
        for name, value in (("compute", compute), ("gradients", gradients), ("reduce", reduce)):
            object.__setattr__(self, name, value)
        self._check_parts()
        self._check_fp8()
        if not self.name:
            object.__setattr__(self, "name", self._parts_text())

    def _check_parts(self) -> None:
        if self.master is not None and self.parameters == "fp32":
            raise InputError(
                "master=fp32 keeps copies of half-precision parameters, but parameters=fp32 are their own. "
                "Set parameters=bf16, or leave master out."
            )
        if self.gradients not in (self.parameters, "fp32"):
            raise InputError(
                f"gradients={self.gradients} of parameters={self.parameters} are not possible. "
                f"Allowed: {self.parameters}, fp32."
            )
        if self.gradients != self.parameters and self.master is None:
            raise InputError(
                f"gradients={self.gradients} of parameters={self.parameters} are what masters are updated with, but master "
                "is left out. Set master=fp32, or leave gradients out."
            )
        if self.casts and self.master is not None:
            raise InputError(
                f"master=fp32 with compute={self.compute} and parameters={self.parameters} is not possible: parameters that "
                "copies are computed of are the masters. Leave out master, or compute."
            )

    def _check_fp8(self) -> None:
        if not re.fullmatch(r"\d{1,4}-\d{1,4}", self.half_blocks):
            raise InputError(
                f"half_blocks={self.half_blocks!r} is not possible: it takes how many blocks at the start and at the end "
                "stay in half precision, like 1-1."
            )
        if self.fp8 is None and (self.weights, self.half_blocks) != (None, "0-0"):
            raise InputError(
                "weights and half_blocks are parts of fp8, but there is no fp8. Set fp8=current, or leave them out."
            )
        if self.fp8 is not None and not self.is_half:
            raise InputError(
                f"fp8={self.fp8} scales what is computed in half precision, but this step computes in {self.products}. "
                "Set parameters=bf16, compute=bf16 or autocast=bf16."
            )

    def _parts_text(self) -> str:
        usual = {
            "compute": self.parameters, "gradients": self.parameters,
            "reduce": self.compute if self.casts else self.gradients, "master": None,
            "autocast": None, "tf32": "never", "fp8": None, "weights": None, "half_blocks": "0-0",
        }  # fmt: skip
        given = {name: getattr(self, name) for name, value in usual.items() if getattr(self, name) != value}
        return "/".join(f"{name}:{value}" for name, value in {"parameters": self.parameters, **given}.items())

    def __str__(self) -> str:
        return self.name

    @classmethod
    def parse(cls, text: str | Precision) -> Precision:
        """Read a name like `amp-bf16`, or parts like `parameters:bf16/gradients:fp32/master:fp32`."""
        return text if isinstance(text, Precision) else _parse(text)

    @property
    def is_named(self) -> bool:
        """Whether it is one of PRECISIONS; else its parts were given."""
        return self.name in PRECISIONS

    @property
    def casts(self) -> bool:
        """Whether copies of the parameters are computed with."""
        return self.compute != self.parameters

    @property
    def products(self) -> Float:
        """What matrix products multiply."""
        return self.autocast or self.compute or self.parameters

    @property
    def arithmetic(self) -> PrecisionName:
        """The named precision that most of the step computes in."""
        return next((name for name in PRECISIONS if _NAMED[name]._computes == self._computes), self.products)

    @property
    def _computes(self) -> tuple[str | None, ...]:
        return self.products, self.autocast, self.tf32, self.fp8

    @property
    def blocks_in_half(self) -> tuple[int, int]:
        """How many blocks at the start and at the end do not compute in 8 bits."""
        first, last = self.half_blocks.split("-")
        return int(first), int(last)

    @property
    def is_half(self) -> bool:
        return self.products in HALVES

    @property
    def is_autocast(self) -> bool:
        return self.autocast is not None

    @property
    def gathered(self) -> Float | None:
        """What a sharded step gathers fp32 parameters in; None: as they are kept."""
        return self.autocast or (self.compute if self.casts else None)

    @property
    def bytes_updated(self) -> int:
        """Of each number that a sharded update gathers again."""
        return 1 if self.weights else _ITEM_BYTES[self.parameters]

    @property
    def reduced(self) -> Float | None:
        """What ranks add up gradients in; None: as the parameters are kept."""
        return self.reduce if self.reduce != self.parameters else None

    @property
    def reduces_in_place(self) -> bool:
        """Whether ranks add up main gradients where they lie; else they copy gradients into buckets."""
        return self.gradients != self.parameters and self.gradients == self.reduce

    def wanted(self, family: str = "matmul") -> Unit:
        """The units that products of a family of ops ask for. Unless it is set otherwise, torch lets cuDNN alone use tf32's."""
        if self.fp8 is not None and family == "matmul":
            return "fp8"
        on_tf32 = self.tf32 == "products" or (self.tf32 == "convolutions" and family in _BY_CUDNN)
        return "tf32" if on_tf32 else self.products

    def unit(self, family: str, device: Device) -> Unit:
        """The units of a device that run the products of a family of ops."""
        return device.unit(self.wanted(family))

    def on_tf32(self, family: str, device: Device) -> bool:
        """Whether an op on fp32 numbers runs on tf32 units."""
        return self.wanted(family) == "tf32" == device.unit("tf32")


def bytes_per_number(kept: Float | None) -> int:
    return _ITEM_BYTES[kept or "fp32"]


FP32: Final = Precision(name="fp32")
_NAMED: Final[dict[str, Precision]] = {p.name: p for p in (
    FP32, Precision(name="torch-fp32", tf32="convolutions"), Precision(name="tf32", tf32="products"),
    Precision(name="bf16", parameters="bf16"), Precision(name="fp16", parameters="fp16"),
    Precision(name="amp-bf16", autocast="bf16"), Precision(name="amp-fp16", autocast="fp16"),
    Precision(name="fp8", parameters="bf16", fp8="delayed"),
    *(Precision(name=f"fp8:{recipe}", parameters="bf16", fp8=recipe) for recipe in RECIPES[1:]),
)}  # fmt: skip


def _parse(text: str) -> Precision:
    text = "fp8" if text == "fp8:delayed" else text  # what Transformer Engine does where nobody says it
    if not isinstance(text, str) or ":" not in text or text in _NAMED:
        check_choice("precision", text, PRECISIONS, InputError)
        return _NAMED[text]
    values: dict[str, str] = {}
    for part in text.split("/"):
        name, colon, value = part.strip().partition(":")
        if name not in _PARTS or not colon or name in values:
            raise InputError(
                f"precision {text!r}: {part!r} is not a part of it. {did_you_mean(name, _PARTS)}Write parts like "
                f"'parameters:bf16/gradients:fp32/master:fp32'; parts: {', '.join(_PARTS)}."
            )
        values[name] = value
    return Precision(**values)  # type: ignore[arg-type]  # each value is checked when it is made
