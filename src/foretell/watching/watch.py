"""`foretell.watch`: one line in a training loop, and its steps are kept beside their forecast."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Generic, TypeVar

from foretell.cost.model import DEFAULT as DEFAULT_MODEL
from foretell.cost.model import CostModel
from foretell.errors import InputError, check_count, check_number
from foretell.forecasting.conditions import Conditions
from foretell.forecasting.result import Forecast
from foretell.graph import Graph
from foretell.hardware import Cluster
from foretell.plans import Plan
from foretell.profile import Profile
from foretell.units import Seconds
from foretell.watching.expected import expect, expect_forecast, rank
from foretell.watching.keeping import Keeper
from foretell.watching.posting import Poster
from foretell.workload import Workload

T = TypeVar("T")
EVERY: Final = 60.0  # seconds of a window


class Watch:
    """A job being watched. Ends with the job, with `close`, or when nothing refers to it any more.

    Args:
        keeper: Who keeps what was seen; None in ranks other than 0, which do nothing.
        batches_per_step: Of `over`: how many batches make a step.

    Examples:
        >>> with foretell.watch("torchvision/resnet18", on="h200", store="jobs.jsonl") as watch:
        ...     watch.step()
    """

    def __init__(self, keeper: Keeper | None, batches_per_step: int) -> None:
        self._keeper = keeper  # None in ranks other than 0, which do nothing
        self._batches_per_step = batches_per_step
        # Also at the end of the process, after an exception too.
        self._end = weakref.finalize(self, keeper.close) if keeper else None

    def step(self) -> None:
        """After each step of the optimizer."""
        if self._keeper is not None:
            self._keeper.step()

    def pause(self) -> None:
        """Before an evaluation or a checkpoint: the time until the next step is no step's."""
        if self._keeper is not None:
            self._keeper.pause()

    def over(self, batches: Iterable[T]) -> Batches[T]:
        """The batches of an epoch, watched: a step lies between asking for one and for the next."""
        return Batches(self, batches, self._batches_per_step)

    def close(self) -> None:
        """Keep what is left and stop."""
        if self._end is not None:
            self._end()
        self._keeper = None

    def __enter__(self) -> Watch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Batches(Generic[T]):
    """What `Watch.over` gives: the batches, as often as they can be had."""

    def __init__(self, watch: Watch, batches: Iterable[T], per_step: int) -> None:
        self._watch, self._batches, self._per_step = watch, batches, per_step

    def __len__(self) -> int:
        return len(self._batches)  # type: ignore[arg-type]  # as of the batches: a TypeError where they have none

    def __iter__(self) -> Iterator[T]:
        self._watch.pause()  # what lies between two epochs is no step
        for number, batch in enumerate(self._batches, 1):
            yield batch
            if number % self._per_step == 0:
                self._watch.step()


def watch(
    workload: Workload | Graph | str | Forecast,
    on: str | Cluster | None = None,
    plan: Plan | str | None = None,
    *,
    settings: Mapping[str, Any] | None = None,
    model: str | CostModel = DEFAULT_MODEL,
    profile: Profile | str | Path | None = None,
    conditions: Conditions | None = None,
    store: str | Path | None = None,
    every: Seconds = EVERY,
    batches_per_step: int | None = None,
    server: str | None = None,
) -> Watch:
    """Watch a training loop: step time and peak memory are kept, a row a minute or so, with the forecast of the step.

    Args:
        workload: As in `forecast`, with `plan`, `settings`, `model`, `profile` and `conditions`; or a forecast.
        on: The cluster; None: the one at hand.
        store: A folder, or a record file that ends in .jsonl; None: the local store. `foretell drift` reads it.
        every: Seconds of a row.
        batches_per_step: Of `over`; None: the workload's `grad_accumulation`.
        server: The address of a service that gets the rows too, with $FORETELL_KEY.

    Returns:
        The watch; among several ranks, that of rank 0 alone does something.

    Raises:
        InputError: The question cannot be answered, or there is no service at that address.

    Examples:
        >>> watch = foretell.watch("torchvision/resnet18", on="h200", store="watched.jsonl")
        >>> for batch in watch.over([1, 2, 3]):
        ...     pass  # train on it
    """
    check_number("every", every, "seconds from 0 to a day", InputError, most=86400)
    if batches_per_step is not None:
        check_count("batches_per_step", batches_per_step, InputError)
    if rank() != 0:
        return Watch(None, 1)
    if isinstance(workload, Forecast):
        if on or plan or settings or profile or conditions:
            raise InputError("a Forecast has its cluster, plan, settings, profile and conditions. Leave them out.")
        expected = expect_forecast(workload)
    else:
        expected = expect(workload, on, plan, settings, model, profile, conditions)
    poster = None if server is None else Poster(server, expected)
    keeper = Keeper(expected, None if store is None else Path(store), every, poster)
    return Watch(keeper, batches_per_step or expected.micro_steps)
