"""A SOURCE as a step that laws are checked over: at the precisions and batches that it takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from foretell.capture import capture
from foretell.errors import CaptureError, InputError
from foretell.forecasting.question import Subject
from foretell.graph import Graph
from foretell.graph.rescale import extend
from foretell.laws.scope import Step

_PRECISIONS: Final = ("fp32", "torch-fp32", "tf32", "bf16", "fp16", "amp-bf16", "amp-fp16")
_LARGER: Final = (1.0, 1.5, 2.0, 4.0)  # times the usual batch


def step_of(
    subject: Subject,
    settings: Mapping[str, Any] | None = None,
    *,
    cache: bool = True,
    progress: Callable[[str], None] = lambda text: None,
) -> Step:
    """The step as it is set, and as it would be at other precisions and batches where the source has settings for them."""
    fixed = dict(settings or {})

    def made(**changed: object) -> Graph:
        progress(f"capturing {subject if isinstance(subject, str) else 'the step'} {changed or ''}")
        return capture(
            subject, {**fixed, **{k: str(v) for k, v in changed.items()}} or None, progress=progress, cache=cache
        )

    own = made()
    if not isinstance(subject, str) or subject.endswith(".graph"):
        return Step(name=own.name, make=lambda precision, batch: own, precisions=(own.precision.name,), batches=(1,))
    usual = int(fixed.get("batch") or own.samples or 1)
    larger = _taken(lambda: made(batch=2 * usual)) if usual else None
    in_fp32 = _taken(lambda: made(precision="fp32"))

    def make(precision: str, batch: int) -> Graph:
        changed = {} if precision == own.precision.name else {"precision": precision}
        if batch == usual:
            return made(**changed) if changed else own
        pair = made(**changed, batch=usual), made(**changed, batch=2 * usual)
        return extend(*pair, sizes=(usual, 2 * usual), to=batch)

    others = [name for name in _PRECISIONS if name != own.precision.name] if in_fp32 is not None else []
    batches = _batches(own, larger, usual)
    return Step(name=own.name, make=make, precisions=(own.precision.name, *others), batches=batches)


def _batches(own: Graph, larger: Graph | None, usual: int) -> tuple[int, ...]:
    """Sizes that the two graphs say all of; one where the step takes another path at another batch."""
    if larger is None:
        return (usual,)
    try:
        extend(own, larger, sizes=(usual, 2 * usual), to=3 * usual)
    except CaptureError:
        return (usual,)
    return tuple(sorted({round(usual * times) for times in _LARGER}))


def _taken(make: Callable[[], Graph]) -> Graph | None:
    """None where the source has no such setting, or cannot be run so."""
    try:
        return make()
    except InputError:
        return None
