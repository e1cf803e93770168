"""A recipe says what a named architecture computes; the settings of the step around it are the same for all."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, ParamSpec

import torch

from foretell.precision import Precision, PrecisionName
from foretell.sources.named.optimizers import optimizer_named
from foretell.workload import Attention, Workload

P = ParamSpec("P")
MakeTensors = Callable[[], dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """An architecture with its task: what to train on, and what to run when nothing is trained."""

    name: str
    model: Callable[[], torch.nn.Module]
    inputs: MakeTensors
    targets: MakeTensors = dict  # beside the inputs, in training
    loss: Callable[[Any, Any], Any]
    forward: Callable[[Any, Any], Any]
    conditions: MakeTensors = dict  # beside the inputs, in inference
    samples: int | None = None
    tokens: int | None = None


def takes_step_settings(recipe: Callable[P, Recipe]) -> Callable[..., Workload]:
    """Make a function from recipe settings to Workload that also takes the settings of the step."""

    def with_step(
        *args: Any,
        precision: PrecisionName | Precision = "fp32",
        optimizer: str = "adamw",
        grad_accumulation: int = 1,
        clip_grad_norm: float | None = None,
        compile: bool = False,
        channels_last: bool = False,
        attention: Attention | None = None,
        kernels: str = "torch",
        **settings: Any,
    ) -> Workload:
        made = recipe(*args, **settings)
        make_optimizer = optimizer_named(optimizer)
        further, run = (made.conditions, made.forward) if make_optimizer is None else (made.targets, made.loss)
        return Workload(
            name=made.name,
            model=made.model,
            batch=lambda: made.inputs() | further(),
            loss=run,
            optimizer=make_optimizer,
            precision=precision,
            grad_accumulation=grad_accumulation,
            clip_grad_norm=clip_grad_norm,
            channels_last=channels_last,
            compile=compile,
            attention=attention,
            kernels=kernels,
            samples=made.samples,
            tokens=made.tokens,
        )

    own = parameters_of(recipe)
    step = [p for p in parameters_of(with_step) if p.kind is p.KEYWORD_ONLY]
    if not any(p.name == "image_size" for p in own):  # channels-last is a layout of images
        step = [p for p in step if p.name != "channels_last"]
    function = wraps(recipe)(with_step)
    function.__signature__ = inspect.Signature([*own, *step], return_annotation=Workload)  # type: ignore[attr-defined]
    return function


def parameters_of(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """A function's parameters with annotations as types, not text."""
    return list(inspect.signature(function, eval_str=True).parameters.values())
