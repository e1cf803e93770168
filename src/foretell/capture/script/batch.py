"""How many samples and tokens a recorded step is of: what its loader gave, or what its losses were computed from."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from foretell.capture.script.consumed import Consumed, Source
from foretell.graph import Caveat

_CLOSE: Final = 0.6  # of the votes that the best has: the second may be the batch as well
_SQUARES: Final = 2  # inputs of one square shape that vote: more are what each layer makes anew, as a graph's diagonal
_OF_THE_LOSS: Final = 2.0  # votes of a loss that is an average over as many samples


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One micro-step's batch, and how it was found."""

    samples: int | None
    tokens: int | None
    inputs: tuple[int, ...] | None  # shape of the first input
    found: str  # such as "64 samples from the data loader"
    doubt: str = ""  # why it may be another

    def divided(self, replicas: int) -> Batch:
        """What one of so many devices has of it."""
        if replicas < 2 or self.samples is None or self.samples < replicas:
            return self
        each = -(-self.samples // replicas)
        inputs = self.inputs
        if inputs and inputs[0] == self.samples:
            inputs = (each, *inputs[1:])
        tokens = None if self.tokens is None else self.tokens * each // self.samples
        return replace(self, samples=each, tokens=tokens, inputs=inputs, found=f"{self.found}, over {replicas} devices")

    def caveats(self) -> Iterator[Caveat]:
        if self.doubt:
            yield Caveat("batch-assumed", f"The batch is taken to be {self.samples}: {self.found}. {self.doubt}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """What one turn of a data loader gave."""

    loader: int  # one number for each
    samples: int | None  # None: the data set makes batches itself


def batch_of(consumed: Consumed, fetches: Sequence[Fetch]) -> Batch:
    """What a data loader gave, if that is what the losses were computed from; else what their inputs have in common."""
    given = [samples for samples in _of_loaders(fetches) if _fits(samples, consumed)]
    if given:
        others = ", ".join(str(n) for n in given[1:])
        return _batch(
            consumed,
            given[0],
            f"{given[0]} samples from the data loader{_views(consumed, given[0])}",
            f"Its step also takes {others} from another loader." if others else "",
        )
    return _by_shapes(consumed)


def _of_loaders(fetches: Sequence[Fetch]) -> Iterator[int]:
    """Samples of one turn of each loader, the first one's first."""
    turns: dict[int, list[int]] = {}
    for fetch in fetches:
        if fetch.samples:
            turns.setdefault(fetch.loader, []).append(fetch.samples)
    for counts in turns.values():
        yield Counter(counts).most_common(1)[0][0]


def _fits(samples: int, consumed: Consumed) -> bool:
    """Whether inputs have so many rows, or a multiple: several views of a sample, frames of a clip."""
    sources = consumed.sources
    if samples == 1:
        return any(s.samples == 1 or _is_picture(s, sources) for s in sources) or 1 in consumed.batches
    alike = Counter(len(s.shape) for s in sources if len(s.shape) > 2)
    return (
        any(samples in s.shape or s.samples % samples == 0 for s in sources)
        or any(end % samples == 0 for end in consumed.ends if end)
        or samples in consumed.batches
        or any(count >= samples for count in alike.values())  # a list of pictures
    )


def _is_picture(source: Source, sources: Sequence[Source]) -> bool:
    """Of three sides, the first its colours; a data set may give whole batches, of which others have as many rows as long."""
    if len(source.shape) != 3 or source.shape[0] not in (1, 3) or source.is_integer:
        return False
    ends = (source.shape[0], source.shape[-1])
    return not any(len(s.shape) == 2 and s.shape == ends for s in sources)


def _by_shapes(consumed: Consumed) -> Batch:
    arrived = [s for s in consumed.sources if s.kind != "resident"]
    resident = [s for s in consumed.sources if s.kind == "resident" and len(s.shape) > 1]
    if not any(len(s.shape) > 1 for s in arrived) and resident:
        rows = {s.samples for s in arrived}
        arrived = [s for s in resident if s.samples in rows]  # chosen before, or it sees all that lies there
    measured = [s for s in resident if not s.is_integer]
    if measured and all(_are_edges(s, consumed) for s in arrived):
        arrived, resident = [], measured  # edges of a graph, which choose among its nodes
    sources = arrived or resident or list(consumed.sources)
    if not sources:
        return _batch(consumed, None, "no input of the losses is known")
    lies = (
        [] if any(s.kind != "resident" for s in consumed.sources) else consumed.sources
    )  # a text, which a step looks at
    if (turned := _time_first((*sources, *lies), consumed)) is not None:
        return _batch(consumed, turned, f"its sequences are {turned} side by side, time first")
    votes = _votes(sources, consumed)
    best, second = [*sorted(votes, key=lambda n: -votes[n]), None][:2]
    assert best is not None
    if best == 1 and (calls := _calls(sources, consumed)):
        return _batch(consumed, calls, f"its loss is of {calls} calls, of one sample each")
    doubt = ""
    if not arrived:
        doubt = "All of it lies on the device before the step: a whole data set or graph, perhaps."
    elif second is not None and votes[second] >= _CLOSE * votes[best]:
        doubt = f"It may be {second}, which other inputs have."
    elif others := _of_layers(best, consumed):
        doubt = f"Recurrent layers or attention have {', '.join(map(str, others))}."
    return _batch(consumed, best, "the leading size of what its losses are computed from", doubt)


def _are_edges(source: Source, consumed: Consumed) -> bool:
    """Chosen whole numbers, or a number for each edge of a graph: drawn to drop some, or its weight; no loss has so many rows."""
    if source.is_integer and source.kind == "chosen":
        return True
    return len(source.shape) == 1 and source.kind == "arrived" and source.samples not in consumed.ends


def _votes(sources: Sequence[Source], consumed: Consumed) -> Mapping[int, float]:
    votes: dict[int, float] = {}
    measured = any(len(s.shape) > 1 and not s.is_integer for s in sources)
    squares = Counter[tuple[int, ...]]()
    for source in sources:
        squares[source.shape] += len(source.shape) == 2 and len({*source.shape}) == 1
        if squares[source.shape] > _SQUARES:
            continue
        edges = measured and source.is_integer and len(source.shape) == 2 and source.samples == 2  # of a graph
        weight = 0.25 if edges else 1.0 if len(source.shape) > 1 else 0.5
        samples = _samples_of(source, consumed)
        votes[samples] = votes.get(samples, 0.0) + weight
    exact = [samples for samples in votes if samples in consumed.ends]
    parts = [n for n in votes if n > 1 and votes[n] >= 0.5 and any(end and end % n == 0 for end in consumed.ends)]
    for samples in exact or parts:
        votes[samples] += _OF_THE_LOSS
    return votes


def _of_layers(samples: int, consumed: Consumed) -> list[int]:
    """Batches of layers that say which side is theirs, where none of them is made of that many samples."""
    others = [n for n in consumed.batches if n != samples]
    agree = samples in consumed.batches or any(n % samples == 0 and samples > 1 for n in others)
    return [] if agree else sorted(others)


def _samples_of(source: Source, consumed: Consumed) -> int:
    """Of a state that recurrent layers begin with, (layers, batch, numbers), the second side, as the layers have it."""
    is_state = len(source.shape) == 3 and not source.is_integer and source.shape[1] in consumed.batches
    of_batch = is_state and source.shape[0] not in (*consumed.batches, *consumed.lengths)
    return source.shape[1] if of_batch else source.samples


def _time_first(sources: Sequence[Source], consumed: Consumed) -> int | None:
    """The batch of inputs of (time, batch, …), as layers see them that say which side is which, or as a text is cut."""
    for _, batch in consumed.moved_on:
        return batch
    for source in sources:
        if len(source.shape) < 2:
            continue
        time, batch = source.shape[:2]
        if time in consumed.batches or batch not in consumed.batches:
            continue
        if time in consumed.lengths or time - 1 in consumed.lengths:
            return batch
    return None


def _calls(sources: Sequence[Source], consumed: Consumed) -> int | None:
    """How many samples went through the model one by one before one loss, as an episode's states do."""
    counts = Counter(source.shape for source in sources)
    return next((n for n in counts.values() if n > 1 and n in consumed.ends), None)


def _batch(consumed: Consumed, samples: int | None, found: str, doubt: str = "") -> Batch:
    shown = sorted(
        consumed.sources,
        key=lambda s: (
            not _is_of(s, samples), len(s.shape) < 2, samples not in s.shape, samples != s.samples, s.kind == "resident"
        ),
    )  # fmt: skip
    return Batch(
        samples=samples, tokens=_tokens(consumed), inputs=shown[0].shape if shown else None, found=found, doubt=doubt
    )


def _is_of(source: Source, samples: int | None) -> bool:
    """It has a row for each sample, or a few: views of it, frames."""
    return samples in source.shape or (samples is not None and source.samples % samples == 0)


def _views(consumed: Consumed, samples: int) -> str:
    """How many rows the largest of the inputs has for each sample, where it is more than one."""
    rows = [s.samples // samples for s in consumed.sources if len(s.shape) > 2 and s.samples % samples == 0]
    views = max(rows, default=1)
    alone = all(samples not in s.shape for s in consumed.sources if len(s.shape) > 2)
    return f", {views} views of each" if samples > 1 and views > 1 and alone else ""


def _tokens(consumed: Consumed) -> int | None:
    """Of the first sequence; none where numbers other than whole ones come at the same times, as states do."""
    for shape in consumed.sequences:
        arrived = [s for s in consumed.sources if s.kind != "resident"]  # not what the step before has left
        measured = any(s.shape[:2] == shape and len(s.shape) > 2 and not s.is_integer for s in arrived)
        if not measured:
            return math.prod(shape)
    return None
