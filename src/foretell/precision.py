"""Precisions of a step said apart: parameters, computation, gradients, their reduction, and copies that are updated."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final, Literal, get_args

from foretell.errors import InputError, check_choice, did_you_mean

Float = Literal["fp32", "bf16", "fp16"]
DTYPES: Final = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedPrecision:
    """What is kept, computed and communicated in which precision. What is left out follows from the others.

    Args:
        parameters: As they are kept.
        compute: Forward and backward, on copies of the parameters (FSDP2's `param_dtype`); nothing is autocast.
        gradients: As they are kept and added up over micro-steps.
        reduce: As ranks add them up.
        master: Copies that the optimizer updates, as Megatron, Apex and DeepSpeed keep them.

    Raises:
        InputError: A combination that is not possible.

    Examples:
        >>> foretell.MixedPrecision.parse("compute:bf16/reduce:fp32").gradients
        'fp32'
    """

    parameters: Float = "fp32"  # as they are kept
    compute: Float | None = None  # forward and backward; else the parameters'
    gradients: Float | None = None  # as they are kept and added up over micro-steps; else the parameters'
    reduce: Float | None = None  # as ranks add them up; else as they are computed or kept
    master: Float | None = None  # copies that the optimizer updates, and its state; else there are none

    def __post_init__(self) -> None:
        for name in ("parameters", "compute", "gradients", "reduce"):
            given = getattr(self, name)
            check_choice(name, given, get_args(Float) if name == "parameters" else (None, *get_args(Float)), InputError)
        compute, gradients = self.compute or self.parameters, self.gradients or self.parameters
        casts = compute != self.parameters
        settled = {
            "compute": compute,
            "gradients": gradients,
            "reduce": self.reduce or (compute if casts else gradients),
        }
        for name, value in settled.items():
            object.__setattr__(self, name, value)
        check_choice("master", self.master, (None, "fp32"), InputError)
        if self.master is not None and self.parameters == "fp32":
            raise InputError(
                "master=fp32 keeps copies of half-precision parameters, but parameters=fp32 are their own. "
                "Set parameters=bf16, or leave master out."
            )
        if gradients not in (self.parameters, "fp32"):
            raise InputError(
                f"gradients={gradients} of parameters={self.parameters} are not possible. Allowed: {self.parameters}, fp32."
            )
        if gradients != self.parameters and self.master is None:
            raise InputError(
                f"gradients={gradients} of parameters={self.parameters} are what masters are updated with, but master is left "
                "out. Set master=fp32, or leave gradients out."
            )
        if casts and self.master is not None:
            raise InputError(
                f"master=fp32 with compute={compute} and parameters={self.parameters} is not possible: parameters that "
                "copies are computed of are the masters. Leave out master, or compute."
            )

    @property
    def casts(self) -> bool:
        """Whether copies of the parameters are computed with."""
        return self.compute != self.parameters

    @classmethod
    def parse(cls, text: str) -> MixedPrecision:
        """Read `parameters:bf16/gradients:fp32/master:fp32`."""
        known = [f.name for f in fields(cls)]
        values: dict[str, str] = {}
        for part in text.split("/"):
            name, colon, value = part.strip().partition(":")
            if name not in known or not colon or name in values:
                raise InputError(
                    f"precision {text!r}: {part!r} is not a part of it. {did_you_mean(name, known)}Write parts like "
                    f"'parameters:bf16/gradients:fp32/master:fp32'; parts: {', '.join(known)}."
                )
            values[name] = value
        return cls(**values)  # type: ignore[arg-type]

    def __str__(self) -> str:
        """The shortest text that `parse` reads back."""
        settled = {
            "compute": self.parameters,
            "gradients": self.parameters,
            "reduce": self.compute if self.casts else self.gradients,
            "master": None,
        }
        said = {name: getattr(self, name) for name, value in settled.items() if getattr(self, name) != value}
        return "/".join(f"{name}:{value}" for name, value in {"parameters": self.parameters, **said}.items())
