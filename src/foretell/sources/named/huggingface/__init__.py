"""Hugging Face: architectures built from configuration, never downloaded, with the loss of their task.

`architectures.toml` is the shipped table: a name, the model class, and where the configuration differs from the
library's default. The library's own registries say which task a model class is for, so a user's `config.json`
goes the same way.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Sequence
from functools import cache, partial
from importlib import resources

from foretell.errors import SourceError
from foretell.sources.named.torchvision_ops import make_torchvision_importable
from foretell.workload import Workload

make_torchvision_importable()
from foretell.sources.named.huggingface.architecture import Architecture  # noqa: E402
from foretell.sources.named.huggingface.registries import task_of_class  # noqa: E402
from foretell.sources.named.huggingface.tasks import TASKS  # noqa: E402


def names() -> Sequence[str]:
    return tuple(architectures())


def workload_function(name: str) -> Callable[..., Workload]:
    return function_for(architectures()[name])


@cache
def architectures() -> dict[str, Architecture]:
    text = resources.files(__name__).joinpath("architectures.toml").read_text(encoding="utf-8")
    return {name: Architecture(name=name, **entry) for name, entry in tomllib.loads(text).items()}


def function_for(architecture: Architecture) -> Callable[..., Workload]:
    task = architecture.task or task_of_class(architecture.model)
    if task is None:
        raise SourceError(
            f"{architecture.name}: no training task is known for {architecture.model}. "
            f"Name another class under 'architectures', of: {', '.join(TASKS)}; or write the step as file.py:function."
        )
    return partial(TASKS[task], architecture, **architecture.defaults)
