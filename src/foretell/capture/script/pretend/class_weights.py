"""Weights of classes that a loss is given and that were made up: one for each class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from foretell.capture.as_gpu.patches import replace
from foretell.capture.script.pretend.files.arrays import Weights
from foretell.capture.script.session import Session
from foretell.capture.script.shapes import ranked, replaced


def install(session: Session) -> None:
    """A loss takes weights of another shape without a word where nothing is computed."""
    for name in ("cross_entropy", "nll_loss"):
        replace(torch.nn.functional, name, _looking(session, getattr(torch.nn.functional, name)))


def _looking(session: Session, loss: Callable[..., Any]) -> Callable[..., Any]:
    def looked(input: Any, target: Any, weight: Any = None, *args: Any, **kwargs: Any) -> Any:
        classes = input.shape[1 if input.dim() > 1 else 0] if isinstance(input, torch.Tensor) and input.dim() else 0
        if isinstance(weight, Weights):  # of a file that is named so
            weight = input.new_ones(classes)
        elif isinstance(weight, torch.Tensor) and classes:
            _look(session, tuple(weight.shape), classes)
        return loss(input, target, weight, *args, **kwargs)

    return looked


def _look(session: Session, shape: tuple[int, ...], classes: int) -> None:
    guesses = session.guesses
    if shape == (classes,):
        return
    shown = replaced(guesses, shape[0], classes) if len(shape) == 1 else ranked(guesses, shape, 1 - len(shape))
    for what, made in shown.items():
        guesses.contradict(what, made)
