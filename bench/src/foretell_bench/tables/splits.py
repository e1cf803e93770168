"""What is left out of a fit: some rows, configurations, architectures, a device, or the largest scale."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from foretell.methods import ernest
from foretell.methods.protocol import JOB_TIME, STEP_TIME, Example, Query

TESTED: Final = 0.25  # of the rows or groups
OWN_SECONDS: Final = 0.5  # of those of the tested workloads: what a black-box method may run of them
# What tells apart who measured a step and when, not what was run: two such rows are one point, measured twice.
_NOT_A_SETTING: Final = frozenset(("family", "record", "run", "assumed", "status", "round", "org"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Indices of examples. `own` are runs of the very workloads that are tested, for methods that need some."""

    name: str
    train: tuple[int, ...]
    test: tuple[int, ...]
    own: tuple[int, ...] = ()


def splits(examples: Sequence[Example]) -> list[Split]:
    """Those that the examples allow: one device cannot be left out of one."""
    makers = (random_rows, unseen_configurations, unseen_architectures, unseen_device, unseen_scale)
    made = [maker(examples) for maker in makers]
    return [split for split in made if split is not None and split.train and split.test]


def random_rows(examples: Sequence[Example]) -> Split | None:
    """Points that were measured more than once are left out or learned from together."""
    return _left_out("random", examples, lambda i: (examples[i].query.architecture, _configuration(examples[i].query)))


def unseen_configurations(examples: Sequence[Example]) -> Split | None:
    """No architecture was seen with these settings, batch, plan and cluster; each was seen with others."""
    split = _left_out("unseen configuration", examples, lambda i: _configuration(examples[i].query))
    if split is None:
        return None
    seen = {examples[i].query.architecture for i in split.train}
    known = tuple(i for i in split.test if examples[i].query.architecture in seen)
    return Split(name=split.name, train=split.train, test=known)


def unseen_architectures(examples: Sequence[Example]) -> Split | None:
    split = _left_out("unseen architecture", examples, lambda i: examples[i].query.architecture)
    if split is None:
        return None
    own, followed = own_runs(examples, split.test)
    test = tuple(i for i in split.test if i not in own)
    answered = tuple(i for i in test if i in followed)
    if 2 * len(answered) >= len(test):  # where a black box can answer most rows, all are tested on those
        test = answered
    return Split(name=split.name, train=split.train, test=test, own=tuple(sorted(own)))


def unseen_device(examples: Sequence[Example]) -> Split | None:
    """The device that has nearest to a quarter of the rows."""
    devices = [e.query.cluster.nodes[0].device.name for e in examples]
    if len(set(devices)) < 2:
        return None
    left_out = min(sorted(set(devices)), key=lambda name: abs(devices.count(name) / len(devices) - TESTED))
    return _parted("unseen device", examples, lambda i: devices[i] == left_out)


def unseen_scale(examples: Sequence[Example]) -> Split | None:
    """The largest numbers of devices; where there is but one, the largest batch of each architecture."""
    sizes = np.array([e.query.cluster.devices for e in examples])
    if len(set(sizes.tolist())) > 1:
        edge = max(int(np.quantile(sizes, 1 - TESTED)), int(sizes.min()) + 1)
        return _parted("unseen scale", examples, lambda i: bool(sizes[i] >= edge))
    batches: dict[str, set[float]] = defaultdict(set)
    for e in examples:
        batches[e.query.architecture].add(e.query.batch)

    def is_largest(i: int) -> bool:
        rows = batches[examples[i].query.architecture]
        return len(rows) > 1 and examples[i].query.batch == max(rows)

    return _parted("unseen scale", examples, is_largest)


def _parted(name: str, examples: Sequence[Example], tested: Callable[[int], bool]) -> Split:
    test = tuple(i for i in range(len(examples)) if tested(i))
    return Split(name=name, train=tuple(i for i in range(len(examples)) if not tested(i)), test=test)


def _left_out(name: str, examples: Sequence[Example], group: Callable[[int], Hashable]) -> Split | None:
    """A quarter of the groups, drawn by their names."""
    keys = [repr(group(i)) for i in range(len(examples))]
    drawn = sorted(set(keys), key=lambda key: hashlib.sha256(key.encode()).digest())
    if len(drawn) < 2:
        return None
    tested = set(drawn[: max(1, round(TESTED * len(drawn)))])
    return _parted(name, examples, lambda i: keys[i] in tested)


def own_runs(examples: Sequence[Example], among: Iterable[int]) -> tuple[set[int], set[int]]:
    """What Ernest would run of each workload, an A-optimal design and never all of it; and the rest of those workloads."""
    target = JOB_TIME if any(JOB_TIME in e.measured for e in examples) else STEP_TIME
    workloads: dict[Hashable, list[int]] = defaultdict(list)
    for i in among:
        workloads[ernest.workload(examples[i].query, target)].append(i)
    chosen: set[int] = set()
    rest: set[int] = set()
    for rows in workloads.values():
        if len(rows) > 1:
            table = np.array([ernest.features(examples[i].query, target) for i in rows])
            picked = ernest.a_optimal(table, [examples[i].cost for i in rows], OWN_SECONDS)
            run = {rows[i] for i in picked[: len(rows) - 1]}
            chosen |= run
            rest |= set(rows) - run
    return chosen, rest


def _configuration(query: Query) -> tuple[Hashable, ...]:
    settings = tuple(sorted((k, v) for k, v in query.settings.items() if k not in _NOT_A_SETTING))
    return str(query.cluster), str(query.plan), query.batch / query.cluster.devices, settings, query.fraction
