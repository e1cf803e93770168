"""The hooks of a LightningModule before Lightning's second version, called as they were."""

from __future__ import annotations

import argparse
import importlib
import inspect
from collections.abc import Callable
from typing import Any, Final

import torch

_INDEX: Final = ("optimizer_idx", "optimizer_i", "opt_idx")  # which of several optimizers a step is for
_VERIFIES: Final = ("__verify_train_val_loop_configuration", "__verify_eval_loop_configuration")


def adapt(library: Any) -> None:
    _allow_former_hooks(importlib.import_module(f"{library.__name__}.trainer.configuration_validator"))
    module, fit = library.LightningModule, library.Trainer.fit

    def fitted(self: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        _call_as_before(model, self)
        return fit(self, model, *args, **kwargs)

    fitted.__wrapped__ = fit  # type: ignore[attr-defined]
    library.Trainer.fit = fitted
    mixin: Any = next(kind for kind in module.__mro__ if "hparams" in vars(kind))
    if mixin.hparams.fset is None:
        mixin.hparams = mixin.hparams.setter(_set_settings)
    backward = module.manual_backward

    def manual_backward(self: Any, loss: Any, *args: Any, **kwargs: Any) -> None:
        tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]  # an optimizer was given, too
        kwargs.pop("optimizer", None)
        backward(self, loss, *tensors, **kwargs)

    module.manual_backward = manual_backward
    for name, value in {"on_gpu": True, "use_ddp": False, "use_dp": False, "use_amp": False}.items():
        if not hasattr(module, name):
            setattr(module, name, value)


def _allow_former_hooks(validator: Any) -> None:
    """What ended an epoch is not called: a step is over before."""
    for name in _VERIFIES:
        if (verify := getattr(validator, name, None)) is not None:
            setattr(validator, name, _tolerant(verify))
    support = getattr(validator, "__verify_manual_optimization_support", None)
    if support is not None:
        validator.__dict__["__verify_manual_optimization_support"] = lambda trainer, model: (
            None if "foretell_optimizers" in vars(model) else support(trainer, model)
        )


def _tolerant(verify: Callable[..., None]) -> Callable[..., None]:
    def either(*args: Any) -> None:
        try:
            verify(*args)
        except NotImplementedError as error:
            if "epoch_end" not in str(error):
                raise

    return either


def _set_settings(self: Any, given: Any) -> None:
    """`self.hparams = hparams`, of any kind."""
    settings = vars(given) if isinstance(given, argparse.Namespace) else given
    plain = importlib.import_module("lightning_fabric.utilities.data").AttributeDict
    self._hparams = plain(settings) if type(settings) is dict else settings


def _names(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)


def _call_as_before(model: Any, trainer: Any) -> None:
    if not callable(getattr(model, "training_step", None)):
        return
    step, end = model.training_step, getattr(model, "training_step_end", None)
    if end is not None:
        original = step
        names = _names(original)

        def ended(*args: Any) -> Any:
            return end(original(*args))

        ended.__signature__ = inspect.signature(original)  # type: ignore[attr-defined]
        step = ended
        if not any(name in _INDEX for name in names):
            model.training_step = _taking(ended, len(names))
    if any(name in _INDEX for name in _names(step)):
        model.foretell_optimizers = True
        model.automatic_optimization = False
        model.training_step = _by_hand(model, step, trainer)
    _add_index(model, "optimizer_step", ("on_tpu", "using_native_amp", "using_lbfgs"))
    _add_index(model, "lr_scheduler_step", ())


def _taking(function: Callable[..., Any], count: int) -> Callable[..., Any]:
    """Lightning counts what a step takes."""
    return (lambda batch: function(batch)) if count == 1 else (lambda batch, batch_idx: function(batch, batch_idx))


def _by_hand(model: Any, step: Callable[..., Any], trainer: Any) -> Callable[..., Any]:
    """A step of each optimizer in turn, with the parameters of the others switched off."""
    every = trainer.accumulate_grad_batches

    def training_step(batch: Any, batch_idx: int) -> None:
        optimizers = model.optimizers()
        for index, optimizer in enumerate(optimizers if isinstance(optimizers, list) else [optimizers]):
            model.toggle_optimizer(optimizer)
            result = step(batch, batch_idx, index)
            loss = result.get("loss") if isinstance(result, dict) else result
            if loss is not None:
                model.manual_backward(loss / every if every > 1 else loss)
                if (batch_idx + 1) % every == 0:
                    if trainer.gradient_clip_val:
                        torch.nn.utils.clip_grad_norm_(model.parameters(), trainer.gradient_clip_val)
                    optimizer.step()
                    optimizer.zero_grad()
            model.untoggle_optimizer(optimizer)

    return training_step


def _add_index(model: Any, name: str, flags: tuple[str, ...]) -> None:
    """A hook that takes the number of an optimizer as its fourth or second thing, and flags after it."""
    hook: Any = getattr(model, name, None)
    names = [] if hook is None else _names(hook)
    if not any(word in _INDEX for word in names):
        return
    at = next(i for i, word in enumerate(names) if word in _INDEX)

    def called(*args: Any) -> Any:
        if name == "optimizer_step":
            args = (*args[:2], _Stepping(args[2], args[3]), *args[3:])
        more = {flag: False for flag in flags if flag in names}
        return hook(*args[:at], 0, *args[at : len(names) - 1 - len(more)], **more)

    setattr(model, name, called)


class _Stepping:
    """An optimizer whose step makes the gradients: before, there were some by the time that a hook was called."""

    def __init__(self, optimizer: Any, closure: Callable[[], Any]) -> None:
        self._optimizer, self._closure = optimizer, closure

    def step(self, closure: Callable[[], Any] | None = None, **kwargs: Any) -> Any:
        return self._optimizer.step(closure=closure or self._closure, **kwargs)

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """The closure has done so, before the gradients."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._optimizer, name)
