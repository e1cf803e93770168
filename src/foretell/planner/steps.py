"""The step at every micro-batch a search asks for: two captures show how it grows, the others are continued from them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Final

from foretell.capture import capture
from foretell.errors import InputError
from foretell.graph import Graph
from foretell.graph.rescale import extend, same_path
from foretell.sources.scripts import Script
from foretell.sources.settings import texts_of
from foretell.units import whole_number
from foretell.workload import Workload

_SIZES: Final = (2, 4)  # captured: at 1 a step may take another path
_COMPILED_SIZES: Final = (32, 64)  # of a compiled step: a compiler schedules small batches in another way
_KEPT: Final = 12  # continued graphs that are kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One way of making the step: what is set of its source, and its graphs by batch."""

    settings: Mapping[str, str]
    captured: Mapping[int, Graph]  # by the batch of a micro-step
    free: bool  # other batches can be continued from these

    @property
    def graph(self) -> Graph:
        return next(iter(self.captured.values()))

    @property
    def per_batch(self) -> int:
        """Samples that one of the parameter `batch` stands for; usually 1."""
        batch, graph = next(iter(self.captured.items()))
        return (graph.samples or batch) // batch or 1


@dataclass(slots=True, kw_only=True)
class Steps:
    """Every variant of a step; graphs that are continued are made when they are asked for."""

    name: str
    variants: tuple[Variant, ...]
    _made: dict[tuple[int, int], Graph] = field(default_factory=dict)
    _digests: dict[int, str] = field(default_factory=dict)

    def graph(self, variant: int, batch: int) -> Graph:
        known = self.variants[variant].captured
        if batch in known:
            return known[batch]
        if (variant, batch) not in self._made:
            if len(self._made) >= _KEPT:
                self._made.pop(next(iter(self._made)))
            (a, first), (b, second) = known.items()
            self._made[variant, batch] = extend(first, second, sizes=(a, b), to=batch)
        return self._made[variant, batch]

    def digest(self, variant: int, batch: int) -> str:
        """Names a graph by what it was captured as."""
        if variant not in self._digests:
            parts = [f"{size}:{g.content_hash}" for size, g in self.variants[variant].captured.items()]
            self._digests[variant] = hashlib.sha256("|".join(parts).encode()).hexdigest()
        return f"{self._digests[variant]}@{batch}"

    def __getstate__(self) -> Any:
        """Without what was made on the way: whoever receives it makes what it needs."""
        return None, {"name": self.name, "variants": self.variants, "_made": {}, "_digests": dict(self._digests)}


def steps_of(
    workload: Workload | Graph | Script | str | Callable[..., Workload],
    settings: Mapping[str, Any],
    vary: Mapping[str, Sequence[Any]],
    *,
    batches: Sequence[int] | None = None,
    cache: bool = True,
    progress: Callable[[str], None] | None = None,
) -> Steps:
    """Capture what is asked about. The batch of a SOURCE, or of a function that takes `batch=`, is free unless it is set.

    A compiled step is captured at the largest of the `batches` that will be asked for.
    """
    fixed = isinstance(workload, Workload | Graph | Script) or (
        isinstance(workload, str) and workload.endswith(".graph")
    )
    if fixed or "batch" in settings:
        if vary and fixed:
            raise InputError(f"{', '.join(vary)} cannot vary: the step is made already. Give the SOURCE that makes it.")
        fixed_sizes: tuple[int | None, ...] | None = (None,)
    else:
        fixed_sizes = None
    variants = []
    for values in product(*vary.values()):
        chosen = texts_of({**settings, **dict(zip(vary, values, strict=True))})
        sizes = fixed_sizes or (_SIZES if chosen.get("compile", "false") == "false" else _compiled_sizes(batches))
        graphs = [_capture(workload, chosen, size, cache, progress) for size in sizes]
        captured = {size or _batch_of(g, chosen): g for size, g in zip(sizes, graphs, strict=True)}
        free = len(graphs) == 2 and same_path(*graphs)
        if len(graphs) == 2 and not free:
            captured = {sizes[1] or 1: graphs[1]}
        variants.append(Variant(settings=chosen, captured=captured, free=free))
    return Steps(name=variants[0].graph.name, variants=tuple(variants))


def _compiled_sizes(batches: Sequence[int] | None) -> tuple[int, ...]:
    largest = sorted(set(batches or ()))[-2:]
    return tuple(largest) if len(largest) == 2 else _COMPILED_SIZES


def _capture(
    workload: Any, settings: Mapping[str, str], batch: int | None, cache: bool, progress: Callable[[str], None] | None
) -> Graph:
    if callable(workload) and not isinstance(workload, Workload):
        if settings:
            raise InputError("settings are for a SOURCE. Give a function its parameters with functools.partial.")
        return capture(workload(batch=batch), progress=progress)
    if batch is None:
        return capture(workload, settings or None, progress=progress, cache=cache)
    return capture(workload, {**settings, "batch": batch}, progress=progress, cache=cache)


def _batch_of(graph: Graph, settings: Mapping[str, str]) -> int:
    """The batch of a step that is as it is; where it says nothing of samples, a batch counts as one."""
    given = whole_number(settings.get("batch", ""))
    return (graph.samples or 1) if given is None else given
