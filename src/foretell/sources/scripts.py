"""A training script as a source: run as it is, on an accelerator that is not there."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder
from typing import Any

from foretell.errors import SourceError, check_count
from foretell.sources.launch import Launcher, read_launch
from foretell.units import Bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """What `torch.cuda` says of the device that a script asks about."""

    name: str = "NVIDIA H100 80GB HBM3"
    capability: tuple[int, int] = (9, 0)
    memory: Bytes = 84929413120
    units: int = 132
    per_node: int = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A training script with its arguments; its step is what runs between two updates of its optimizers.

    Args:
        path: A Python file; of a module it is found where the module is.
        arguments: Of the script.
        processes: Ranks that a launcher would start; None: one for each device of the cluster.
        fake_data: Stand in for data sets and checkpoints that are not on this machine.
        opaque: A file that declares kernels with `foretell.opaque`.
        accelerator: What the script is told that it runs on.
        module: Run as `python -m MODULE` does, from the current folder, instead of a path.
        environment: Variables that are set for it.
        launcher: Who starts it: torchrun, srun, mpirun, or python for nobody; None: torchrun on several devices.
        nodes: That its processes are on, where a launch line says so.

    Raises:
        InputError: The path is no Python file, or the module is not found.

    Examples:
        >>> foretell.Script(path="train.py", arguments=("--batch-size", "64")).name
        'train'
    """

    path: str = ""
    arguments: tuple[str, ...] = ()
    processes: int | None = None
    fake_data: bool = False
    opaque: str | None = None
    accelerator: Accelerator = Accelerator()
    module: str | None = None
    environment: Mapping[str, str] | tuple[tuple[str, str], ...] = ()
    launcher: Launcher | None = None
    nodes: int | None = None

    def __post_init__(self) -> None:
        environment = {str(name): str(value) for name, value in dict(self.environment).items()}
        object.__setattr__(self, "environment", tuple(environment.items()))
        if self.module is not None and not self.path:
            object.__setattr__(self, "path", file_of_module(self.module, environment.get("PYTHONPATH", "")))
        if str(self.path).endswith(".ipynb"):
            raise SourceError(
                f"{self.path} is a notebook. Run it as a script: jupyter nbconvert --to script {self.path}, or see "
                "%%foretell for a cell."
            )
        if not str(self.path).endswith(".py"):
            raise SourceError(f"a script is a Python file, got {self.path!r}. Give a path that ends in .py.")
        object.__setattr__(self, "path", str(self.path))
        object.__setattr__(self, "arguments", tuple(map(str, self.arguments)))
        for name, number in (("processes", self.processes), ("nodes", self.nodes)):
            if number is not None:
                check_count(name, number, SourceError)

    @classmethod
    def from_launch(cls, line: str, *, fake_data: bool = False, opaque: str | None = None) -> Script:
        """The script that a launch line starts, with its processes, arguments and variables.

        Examples:
            >>> foretell.Script.from_launch("torchrun --nproc-per-node 8 train.py --lr 1e-4").processes
            8
        """
        launch = read_launch(line)
        return cls(
            path=launch.path,
            module=launch.module,
            arguments=tuple(launch.arguments),
            environment=launch.environment,
            processes=launch.processes,
            nodes=launch.nodes,
            launcher=launch.launcher,
            fake_data=fake_data,
            opaque=opaque,
        )

    @property
    def name(self) -> str:
        if self.module is not None:
            return self.module.removesuffix(".__main__").rpartition(".")[2]
        return self.path.replace("\\", "/").rpartition("/")[2].removesuffix(".py")

    def to_dict(self) -> dict[str, Any]:
        chip = self.accelerator
        return {
            "path": self.path,
            "arguments": list(self.arguments),
            "processes": self.processes or 1,
            "fake_data": self.fake_data,
            "opaque": self.opaque,
            "module": self.module,
            "environment": dict(self.environment),
            "launcher": self.launcher,
            "nodes": self.nodes,
            "accelerator": {
                "name": chip.name,
                "capability": list(chip.capability),
                "memory": chip.memory,
                "units": chip.units,
                "per_node": chip.per_node,
            },
        }

    @classmethod
    def from_dict(cls, written: dict[str, Any]) -> Script:
        chip = written["accelerator"]
        plain = {name: value for name, value in written.items() if name not in ("arguments", "accelerator")}
        return cls(
            **plain,
            arguments=tuple(written["arguments"]),
            accelerator=Accelerator(**{**chip, "capability": tuple(chip["capability"])}),
        )


def file_of_module(module: str, search: str = "") -> str:
    """The file that `python -m` would run, found without importing anything."""
    found = None
    places: Sequence[str] | None = [os.getcwd(), *filter(None, search.split(os.pathsep)), *sys.path]
    for part in (*module.split("."), "__main__"):
        if places is None:
            break  # a plain module: it is run itself
        inner = PathFinder.find_spec(part, list(places))
        if inner is None:
            raise SourceError(
                f"no module {module!r}, which the launch line starts. Run from the folder that holds it, or install it."
                if part != "__main__"
                else f"{module!r} is a package without a __main__.py. Name the module in it that trains."
            )
        found, places = inner, inner.submodule_search_locations
    if found is None or not str(found.origin).endswith(".py"):
        raise SourceError(f"the module {module!r} is no Python file. Name one that is.")
    return os.path.relpath(str(found.origin)) if str(found.origin).startswith(os.getcwd()) else str(found.origin)


def script_of(source: Any) -> Any:
    """A path of a Python file, with no function named, is a script; anything else is what it is."""
    return Script(path=source) if isinstance(source, str) and source.endswith((".py", ".ipynb")) else source
