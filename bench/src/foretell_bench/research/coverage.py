"""How many measured steps fall inside 90 % intervals that were made from the errors on other groups or devices."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from foretell.design.blind import is_generated
from foretell.distribution import LEVEL, interval
from foretell.forecasting.uncertainty.device_classes import class_of
from foretell.forecasting.uncertainty.other_devices import OtherDevices
from foretell.forecasting.uncertainty.own_device import Calibration
from foretell.hardware import device as known_device
from foretell.learn.transfer.fit import chip
from foretell.learn.uncertainty.left_out import LeftOutStep
from foretell.learn.uncertainty.other_device_steps import OtherDeviceStep
from foretell.learn.uncertainty.other_devices import errors_by_device
from foretell.learn.uncertainty.own_device import calibrate, sigma

GENERATED = "generated"
Hit = tuple[str, bool, float]  # architecture, inside, high ÷ low


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Of intervals on groups that neither the model nor the intervals had seen."""

    what: str  # device or step
    group: str  # "" for all of named networks, GENERATED for all of the others
    architectures: int
    inside: float  # part of the architectures' steps that fell inside
    width: float  # median of high ÷ low
    p_value: float  # exact binomial, both ways, of nine in ten


def coverage(steps: Sequence[LeftOutStep]) -> list[Coverage]:
    """Each group is validated against intervals calibrated on the others; one alone has none.

    First all of them, then generated networks among them, then each group.
    """
    inside: dict[str, dict[str, list[Hit]]] = {"device": {}, "step": {}}
    names = sorted({s.group for s in steps})
    if len(names) < 2:
        return []
    for group in names:
        calibration = calibrate([s for s in steps if s.group != group])
        for what, hits in hits_of([s for s in steps if s.group == group], calibration).items():
            inside[what][group] = hits
    found = []
    for what, groups in inside.items():
        rows = [row for rows in groups.values() for row in rows]
        drawn = [row for row in rows if is_generated(row[0])]
        found.append(coverage_of(what, "", [row for row in rows if not is_generated(row[0])] or rows))
        found += [coverage_of(what, GENERATED, drawn)] if drawn else []
        found += [coverage_of(what, group, rows) for group, rows in sorted(groups.items(), key=lambda t: -len(t[1]))]
    return found


def hits_of(steps: Sequence[LeftOutStep], calibration: Calibration) -> dict[str, list[Hit]]:
    """Of device and step intervals, whether what was measured lies inside."""
    hits: dict[str, list[Hit]] = {"device": [], "step": []}
    for s in steps:
        errors = calibration.of_kind(s.trains)
        width = sigma(errors, s)
        for what, measured, predicted in (
            ("device", s.device, errors.device_time(s.device_predicted, width)),
            ("step", s.step, errors.step_time(s.curve, width)),
        ):
            low, high = interval(predicted)
            hits[what].append((s.source, low <= measured <= high, high / low))
    return hits


def coverage_of(what: str, group: str, rows: Sequence[Hit]) -> Coverage:
    from scipy.stats import binomtest

    by_source: dict[str, list[bool]] = defaultdict(list)
    for source, hit, _ in rows:
        by_source[source].append(hit)
    part = float(np.mean([np.mean(hits) for hits in by_source.values()]))
    count = len(by_source)
    return Coverage(
        what=what,
        group=group,
        architectures=count,
        inside=part,
        width=float(np.median([width for _, _, width in rows])),
        p_value=float(binomtest(round(part * count), count, LEVEL).pvalue),
    )


def coverage_on_other_devices(steps: Sequence[OtherDeviceStep]) -> list[Coverage]:
    """Every device against intervals from the errors on the others; first all of them, then each, then each class, then each
    source against intervals from the other sources."""
    groups: dict[str, list[Hit]] = defaultdict(list)
    for step, hit in hits_left_out(steps, steps, chip_of):
        groups[""].append(hit)
        groups[f"{step.device}"].append(hit)
        groups[f"class: {class_of(known_device(step.device))}"].append(hit)
    for step, hit in hits_left_out(steps, steps, source_of):
        groups[f"source left out: {step.origin}"].append(hit)
    order = sorted(groups, key=lambda name: (bool(name), name.startswith("class"), name.startswith("source"), name))
    return [coverage_of("step", name, groups[name]) for name in order]


def hits_left_out(
    judged: Sequence[OtherDeviceStep], every: Sequence[OtherDeviceStep], *units: Callable[[OtherDeviceStep], str]
) -> list[tuple[OtherDeviceStep, Hit]]:
    """Each step against intervals from those alone that share none of its units; none where there are no others."""
    known: dict[tuple[str, ...], OtherDevices] = {}
    for names in sorted({_names(step, units) for step in judged}):
        others = [step for step in every if not set(_names(step, units)) & set(names)]
        if any(not step.is_of_older_software for step in others):
            known[names] = errors_by_device(others)
    return [(s, _hit(s, known[names])) for s in judged if (names := _names(s, units)) in known]


def chip_of(step: OtherDeviceStep) -> str:
    return chip(step.device)


def source_of(step: OtherDeviceStep) -> str:
    return step.origin


def _names(step: OtherDeviceStep, units: Sequence[Callable[[OtherDeviceStep], str]]) -> tuple[str, ...]:
    return tuple(unit(step) for unit in units)


def _hit(step: OtherDeviceStep, known: OtherDevices) -> Hit:
    low, high = interval(known.step_time(step.at_speeds, known_device(step.device), step.kind))
    return f"{step.device} {step.source}", low <= step.seconds <= high, high / low
