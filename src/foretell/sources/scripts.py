"""A training script as a source: run as it is, on an accelerator that is not there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from foretell.errors import SourceError, check_count
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
        path: A Python file.
        arguments: Of the script.
        processes: Ranks that a launcher would start; None: one for each device of the cluster.
        fake_data: Stand in for data sets and checkpoints that are not on this machine.
        opaque: A file that declares kernels with `foretell.opaque`.
        accelerator: What the script is told that it runs on.

    Raises:
        InputError: The path is no Python file.

    Examples:
        >>> foretell.Script(path="train.py", arguments=("--batch-size", "64")).name
        'train'
    """

    path: str
    arguments: tuple[str, ...] = ()
    processes: int | None = None
    fake_data: bool = False
    opaque: str | None = None
    accelerator: Accelerator = Accelerator()

    def __post_init__(self) -> None:
        if not str(self.path).endswith(".py"):
            raise SourceError(f"a script is a Python file, got {self.path!r}. Give a path that ends in .py.")
        object.__setattr__(self, "path", str(self.path))
        object.__setattr__(self, "arguments", tuple(map(str, self.arguments)))
        if self.processes is not None:
            check_count("processes", self.processes, SourceError)

    @property
    def name(self) -> str:
        return self.path.replace("\\", "/").rpartition("/")[2].removesuffix(".py")

    def to_dict(self) -> dict[str, Any]:
        chip = self.accelerator
        return {
            "path": self.path,
            "arguments": list(self.arguments),
            "processes": self.processes or 1,
            "fake_data": self.fake_data,
            "opaque": self.opaque,
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
        return cls(
            path=written["path"],
            arguments=tuple(written["arguments"]),
            processes=written["processes"],
            fake_data=written["fake_data"],
            opaque=written["opaque"],
            accelerator=Accelerator(**{**chip, "capability": tuple(chip["capability"])}),
        )


def script_of(source: Any) -> Any:
    """A path of a Python file, with no function named, is a script; anything else is what it is."""
    return Script(path=source) if isinstance(source, str) and source.endswith(".py") else source
