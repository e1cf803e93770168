"""Names that only the GPU build of a library has, beside its build for the host: the same is done there.

Such a library launches kernels of its own, which are no part of a step that torch runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from foretell.capture.script.imports import once_imported
from foretell.capture.script.session import Session

_SETTINGS: Final = (
    "StandardGpuResources GpuResources GpuClonerOptions GpuMultipleClonerOptions GpuIndexConfig GpuIndexFlatConfig "
    "GpuIndexIVFFlatConfig GpuIndexIVFPQConfig".split()
)
# Indices on a GPU, which take its resources first and settings last, and what they are on the host.
_INDICES: Final[Mapping[str, str]] = {
    "GpuIndexFlatL2": "IndexFlatL2",
    "GpuIndexFlatIP": "IndexFlatIP",
    "GpuIndexFlat": "IndexFlat",
}
# Functions that copy an index, by where they are given it.
_COPIES: Final[Mapping[str, int]] = {
    "index_cpu_to_gpu": 2, "index_cpu_to_all_gpus": 0, "index_cpu_to_gpu_multiple_py": 1, "index_cpu_to_gpus_list": 0,
    "index_gpu_to_cpu": 0,
}  # fmt: skip


class _Settings:
    """What a GPU's part of a library is told: kept, and of no effect on the host."""

    def __init__(self, *_: Any) -> None: ...

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: None


def install(session: Session) -> None:
    once_imported("faiss", lambda faiss: add_faiss(faiss, session))


def add_faiss(faiss: Any, session: Session) -> None:
    """Indices and clusterings of faiss."""
    if hasattr(faiss, "StandardGpuResources"):
        return
    for name in _SETTINGS:
        setattr(faiss, name, type(name, (_Settings,), {}))
    for name, other in _INDICES.items():
        setattr(faiss, name, _on_host(getattr(faiss, other), name, session))
    for name, at in _COPIES.items():
        setattr(faiss, name, _copied(name, at, session))
    faiss.get_num_gpus = lambda: session.devices


def _say(session: Session, name: str) -> None:
    session.stand_in(f"faiss.{name}", "the build for the host does it, outside of the step")


def _on_host(index: Callable[..., Any], name: str, session: Session) -> Callable[..., Any]:
    def made(resources: Any, *args: Any) -> Any:
        _say(session, name)
        return index(*(a for a in args if not isinstance(a, _Settings)))

    return made


def _copied(name: str, at: int, session: Session) -> Callable[..., Any]:
    def copied(*args: Any, index: Any = None, **_: Any) -> Any:
        _say(session, name)
        return args[at] if len(args) > at else index

    return copied
