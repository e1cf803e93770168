"""How fast a data loader is: it is run for a few seconds, with nothing else to do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from time import perf_counter
from typing import Any, Final

from foretell.errors import ForetellError, InputError, WorkloadError
from foretell.units import Seconds

_WARM_UP: Final = 2  # batches: workers start, files come into the cache
_FEWEST: Final = 2  # batches that a rate is read from
_LONG_ENOUGH: Final[Seconds] = 5.0


def loader_rate(loader: Iterable[Any] | str, seconds: Seconds = _LONG_ENOUGH) -> float:
    """Samples per second that a loader delivers on this machine: an iterable of batches, or FILE.py:FUNCTION that makes one.

    Batches are tensors, or tuples, lists and mappings that hold some; the first says how many samples there are.
    """
    if isinstance(loader, str):
        return _of_source(loader, seconds)
    batches = iter(loader)
    for number in range(_WARM_UP):
        if next(batches, None) is None:
            raise InputError(_too_few(number))
    began = now = perf_counter()
    samples = count = 0
    for batch in batches:
        samples, count, now = samples + _samples(batch), count + 1, perf_counter()
        if now - began > seconds and count >= _FEWEST:
            break
    if count < _FEWEST:
        raise InputError(_too_few(_WARM_UP + count))
    return samples / max(now - began, 1e-9)


def _of_source(source: str, seconds: Seconds) -> float:
    from foretell.capture.explain import explain
    from foretell.sources.resolve import find_function  # loads torch

    try:
        return loader_rate(find_function(source, wanted="batches")(), seconds)
    except ForetellError:
        raise
    except Exception as error:  # in the user's code, whatever it may be
        raise WorkloadError(f"{source}: {explain(error)}") from error


def _too_few(batches: int) -> str:
    return (
        f"the loader gave {batches} batches, and its rate is read from {_FEWEST} or more after {_WARM_UP} to warm up. "
        "Give it more data or smaller batches, or write the rate itself: --loader 3000."
    )


def _samples(batch: Any) -> int:
    while isinstance(batch, Mapping | tuple | list) and batch:
        batch = next(iter(batch.values())) if isinstance(batch, Mapping) else batch[0]
    shape = getattr(batch, "shape", None)
    if not shape:
        raise InputError(
            f"a batch of the loader holds {type(batch).__name__} first, which does not say how many samples there are. "
            "Let batches be tensors or arrays, or tuples, lists and dicts that begin with one."
        )
    return int(shape[0])
