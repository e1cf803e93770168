"""What is said of a kernel that is not known: which it is, and how to declare it."""

from __future__ import annotations

from typing import Any, Final

from foretell.errors import WorkloadError

_HOW: Final = (
    "foretell.opaque({path!r}, outputs=lambda …: torch.empty(…), flops=…) declares what it costs and what it returns: see "
    "docs/guide/scripts.md, or give such a file with --opaque"
)


class UnknownKernel(WorkloadError):
    """A kernel was to return something that nobody here can tell the shape of."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"the script runs {path}, a kernel that needs a GPU and is not one that Foretell knows. {_HOW.format(path=path)}."
        )
        self.path = path


class Unknown:
    """Something of a package of kernels; whoever uses it is told what to do."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(self)(f"{self.path}.{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise UnknownKernel(self.path)

    def __mro_entries__(self, bases: Any) -> tuple[type, ...]:
        return (_unknown_base(self),)  # a class of the script's derives from it: the error comes when it is made


def _unknown_base(unknown: Unknown) -> type:
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        unknown()

    return type(unknown.path.rpartition(".")[2], (), {"__init__": init})
