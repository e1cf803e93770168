"""Driple's fits side by side: the same curves as one at a time; and what is said beside them."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest
from foretell_bench.studies.driple.patience import ridge, thinned
from foretell_bench.studies.driple.report import curves
from foretell_bench.studies.driple.stacked import Given, fit_all
from foretell_bench.tables.sooner import needed, times_fewer

from foretell.hardware import Cluster
from foretell.methods.conformance import perceptron
from foretell.methods.driple.method import TUNED, Driple, DripleSettings, setting_of
from foretell.methods.protocol import STEP_TIME, Example, Query
from foretell.plans import Plan

SMALL = DripleSettings(groups=6, rounds=4, readings=3, epochs=6, updates=None, patience=100, batch=4)


def rows(link: str = "eth-10g", scale: float = 1.0) -> list[Example]:
    cluster = Cluster.parse(f"2x1xcpu@{link}")
    found = []
    for layers in (2, 3, 4, 5, 6):
        for batch in (8, 16):
            graph = perceptron(64, layers=layers, batch=batch)
            query = Query(
                architecture=f"mlp-{layers}", plan=Plan(dp=2), cluster=cluster, graph=graph, batch=2.0 * batch
            )
            time = scale * layers * batch * 1e-4
            found.append(Example(query=query, measured={STEP_TIME: time, "network_tx_peak": 1e6 * layers}))
    return found


def test_stacked_fits_are_those_of_one_at_a_time() -> None:
    alone = []
    for seed in (0, 1):
        curve: list[float] = []
        Driple(replace(SMALL, seed=seed)).fit(rows(), lambda e, curve=curve: curve.append(e.validated))  # type: ignore[misc]
        alone.append(curve)
    found = fit_all([Given(train=rows(), test=(), seed=seed) for seed in (0, 1)], SMALL)
    for curve, one in zip(alone, found, strict=True):
        assert one.curve[1:] == pytest.approx(curve, rel=1e-3)
        assert len(one.curve) == 1 + SMALL.epochs
        assert one.best_epoch == 1 + curve.index(min(curve))


def test_a_tailored_fit_changes_what_it_may() -> None:
    first = Driple(SMALL).fit(rows())
    known = first.fitted_[setting_of(rows()[0].query)]
    [found] = fit_all([Given(train=rows("eth-1g", 3.0), test=(), seed=0, known=known, tune=TUNED)], SMALL)
    before, after = known.network.state_dict(), found.fitted.network.state_dict()
    assert (before["update.weight_ih"] == after["update.weight_ih"]).all()
    assert (before["readout.0.weight"] != after["readout.0.weight"]).any()


def test_a_fit_that_learns_nothing_more_ends() -> None:
    [found] = fit_all([Given(train=rows(), test=(), seed=0)], replace(SMALL, rate=0.0, epochs=50, patience=3))
    assert found.ended
    assert len(found.curve) == 1 + found.best_epoch + 3


def test_a_stack_that_had_to_stop_goes_on(tmp_path: Path) -> None:
    given = [Given(train=rows(), test=(), seed=seed) for seed in (0, 1)]
    kept = tmp_path / "stack.going"
    fit_all(given, replace(SMALL, epochs=3), kept=kept)
    through, again = fit_all(given, SMALL), fit_all(given, SMALL, kept=kept)
    for one, other in zip(through, again, strict=True):
        assert other.curve == pytest.approx(one.curve, rel=1e-3)
        assert other.best_epoch == one.best_epoch


def test_fits_that_ended_are_taken_out_and_the_others_go_on(tmp_path: Path) -> None:
    given = [Given(train=rows(scale=1.0 + seed), test=(), seed=seed) for seed in range(4)]
    settings, kept = replace(SMALL, epochs=40, patience=4), tmp_path / "stack.going"
    alone = [fit_all([one], settings)[0] for one in given]
    assert len({len(one.curve) for one in alone}) > 1  # they end at different epochs
    fit_all(given, replace(settings, epochs=9), kept=kept)
    for found in (fit_all(given, settings), fit_all(given, settings, kept=kept)):
        for one, other in zip(alone, found, strict=True):
            assert other.curve == pytest.approx(one.curve, rel=0.01)


def test_how_much_sooner_counts_from_before_the_first_epoch() -> None:
    curve = [[float(i), e] for i, e in enumerate((0.5, 0.4, 0.3, 0.2, 0.1, 0.1, 0.1, 0.1, 0.1))]
    assert needed(curve, 0.1) == 2  # the first of five whose median is low enough
    assert needed(curve, 0.6) == 0
    assert needed(curve, 0.01) is None
    there = [[float(i), 0.1] for i in range(9)]
    results = {"from scratch": {"s | 0": {"curve": curve}}, "transfer, frozen": {"s | 0": {"curve": there}}}
    assert times_fewer(results, "transfer, frozen") == [2.0]


def test_a_curve_keeps_its_first_epochs_and_its_last() -> None:
    kept = thinned([1.0] * 234)
    assert [int(i) for i, _ in kept[-2:]] == [230, 233]
    assert len(kept) == 101 + 13 + 1


def test_a_ridge_learns_what_grows_with_totals() -> None:
    train, test = rows()[:-2], rows()[-2:]
    found = ridge(train, test, {STEP_TIME: max(e.measured[STEP_TIME] for e in train)})
    for values, e in zip(found, test, strict=True):
        assert values[STEP_TIME] == pytest.approx(e.measured[STEP_TIME], rel=0.5)


def test_curves_stand_beside_plainer_answers() -> None:
    fit = {
        "epochs": 2,
        "curve": [[0, 0.2], [1, 0.05], [2, 0.04]],
        "validated": {"ridge": 0.03, "median of training": 0.06},
    }
    drawn = curves({"here | 0": fit, "here | 1": fit, "there | 0": fit})
    assert drawn.count("<polyline") == 3
    assert drawn.count("stroke-dasharray") == 4  # two settings, a ridge and a middle each
    ElementTree.fromstring(drawn)
