"""Arguments that functions of libraries took when a script was written: by the name that they have now, or left out."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final

from torch.utils.data import Sampler

from foretell.capture.script.imports import once_imported
from foretell.capture.script.keywords import LEFT_OUT
from foretell.capture.script.session import Session

# Of a module's function or class, by its former name: what an argument is called now, or None where it changed no step.
_ARGUMENTS: Final[Mapping[str, Mapping[str, Mapping[str, str | None]]]] = {
    "torchvision.utils": {
        "make_grid": {"range": "value_range"},
        "save_image": {"range": "value_range"},
    },
    "torchvision.transforms.transforms": {
        "RandomRotation": {"resample": "interpolation"},
        "RandomAffine": {"resample": "interpolation", "fillcolor": "fill"},
    },
    "torchvision.transforms.functional": {
        "rotate": {"resample": "interpolation"},
        "affine": {"resample": "interpolation", "fillcolor": "fill"},
    },
    "timm.scheduler.cosine_lr": {"CosineLRScheduler": {"t_mul": "cycle_mul", "decay_rate": "cycle_decay"}},
    "timm.scheduler.tanh_lr": {"TanhLRScheduler": {"t_mul": "cycle_mul", "decay_rate": "cycle_decay"}},
    "timm.layers.attention": {"Attention": {"qk_scale": None, "drop": "proj_drop"}},
    "timm.models.vision_transformer": {"Block": {"qk_scale": None, "drop": "proj_drop"}},
    "accelerate.accelerator": {
        "Accelerator": {
            "logging_dir": "project_dir",
            "dispatch_batches": None,
            "even_batches": None,
            "use_seedable_sampler": None,
        },
    },
    "matplotlib": {"use": {"warn": None}},
    "matplotlib.pyplot": {"hist": {"normed": "density"}},
    "pandas": {"read_csv": {"error_bad_lines": None, "warn_bad_lines": None, "squeeze": None}},
}

_OF_TIMM: Final = ("pretrained_cfg", "pretrained_cfg_overlay", "cache_dir")


def install(session: Session) -> None:
    _samplers()
    once_imported("timm.models._factory", _registered)
    for name, functions in _ARGUMENTS.items():
        once_imported(name, functools.partial(_adapt, functions))
    for module, function, keyword in session.guesses.known.get(LEFT_OUT, []):
        once_imported(module, functools.partial(_adapt, {function: {keyword: None}}))
        session.stand_in(f"keyword {keyword} of {module}.{function}", "left out: it is not taken any more")


def _samplers() -> None:
    """A sampler handed the data on to its base, which did nothing with it."""
    if "__init__" not in vars(Sampler):
        Sampler.__init__ = lambda self, data_source=None: None  # type: ignore[method-assign,misc]


def _adapt(functions: Mapping[str, Mapping[str, str | None]], module: Any) -> None:
    for name, changes in functions.items():
        there = getattr(module, name, None)
        if isinstance(there, type):
            there.__init__ = _taking(there.__init__, changes)  # type: ignore[misc]
        elif there is not None:
            setattr(module, name, _taking(there, changes))


def _taking(function: Callable[..., Any], changes: Mapping[str, str | None]) -> Callable[..., Any]:
    """The function, which takes arguments by their former names as well."""
    known = inspect.signature(function).parameters
    former = {name: now for name, now in changes.items() if name not in known}

    @functools.wraps(function)
    def taken(*args: Any, **given: Any) -> Any:
        for name in former.keys() & given.keys():
            value, now = given.pop(name), former[name]
            if now is not None:
                given.setdefault(now, value)
        return function(*args, **given)

    return taken


def _registered(factory: Any) -> None:
    """A model that a script registers was given its own settings alone."""
    find = factory.model_entrypoint

    def entry(*args: Any, **how: Any) -> Any:
        made = find(*args, **how)
        if str(made.__module__).startswith("timm."):
            return made
        known = inspect.signature(made).parameters

        def model(**given: Any) -> Any:
            return made(**{k: v for k, v in given.items() if k in known or not (k in _OF_TIMM and v is None)})

        return model

    factory.model_entrypoint = entry
