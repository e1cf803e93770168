"""What forecasts are off by, on made-up steps whose errors we know."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

pytest.importorskip("scipy")

from foretell_bench.methods.residuals import Case, Parts, Range, Residuals, speed_of

from foretell.errors import InputError


def case(size: float = 1.0, network: str = "a", device: str = "x", cluster: str = "2x", host: float = 1e-3) -> Case:
    return Case(
        parts=Parts(size, host=host, waiting=0.1), names=(network, device, cluster), values=(math.log(size), 0.0)
    )


def forecast(one: Case) -> float:
    return one.parts.seconds


def some(**names: str) -> list[Case]:
    return [case(size, **names) for size in (1.0, 2.0, 4.0, 8.0)]


def test_where_forecasts_are_right_they_stand() -> None:
    cases = [*some(), *some(network="b"), *some(device="y")]
    made = Residuals().fit(cases, [forecast(c) for c in cases])
    for one in [case(3.0), case(100.0, network="new", device="new", cluster="new")]:
        assert made.predict([one])[0].value == pytest.approx(forecast(one), rel=0.02)


@pytest.mark.parametrize("kind", ["network", "device", "cluster"])
def test_a_network_device_or_cluster_that_is_always_off_is_learned_and_others_keep_their_forecast(kind: str) -> None:
    others = [c for name in "pqrstu" for c in some(**{kind: name})]
    slow = [case(size, **{kind: "slow"}) for size in (1.0, 4.0, 8.0)]
    made = Residuals().fit([*others, *slow], [*(forecast(c) for c in others), *(2 * forecast(c) for c in slow)])
    unseen = case(2.0, **{kind: "slow"})
    assert made.predict([unseen])[0].value == pytest.approx(2 * forecast(unseen), rel=0.15)
    unseen = case(2.0, **{kind: "unseen"})
    assert made.predict([unseen])[0].value == pytest.approx(forecast(unseen), rel=0.25)


def test_what_is_learned_of_some_sizes_is_forgotten_far_from_them() -> None:
    # Small steps are off by half, large ones are not, and the network is the same.
    sizes = [1.0 * 1.3**i for i in range(24)]
    cases = [case(size) for size in sizes]
    made = Residuals().fit(
        cases, [forecast(c) * (1.5 if size < 5 else 1.0) for c, size in zip(cases, sizes, strict=True)]
    )
    near, far = case(2.0), case(1e6, network="new", device="new", cluster="new")
    assert made.predict([near])[0].value == pytest.approx(1.5 * forecast(near), rel=0.1)
    assert made.predict([far])[0].value == pytest.approx(forecast(far), rel=0.25)
    assert _width(made.predict([far])[0]) > _width(made.predict([near])[0])


def test_two_rows_that_differ_a_little_change_little() -> None:
    made = Residuals().fit([case(1.0), case(2.0)], [forecast(case(1.0)) * 1.1, forecast(case(2.0)) / 1.1])
    for one in [case(1.5), case(20.0, network="new")]:
        assert made.predict([one])[0].value == pytest.approx(forecast(one), rel=0.08)


def test_one_row_that_all_others_contradict_is_not_believed() -> None:
    cases = [case(1.0 * 1.1**i) for i in range(30)]
    measured = [forecast(c) for c in cases]
    measured[12] *= 20
    predicted = Residuals().fit(cases, measured).predict([replace(cases[12])])[0]
    assert predicted.value == pytest.approx(forecast(cases[12]), rel=0.1)


def test_a_device_of_a_hundredth_of_a_processor_is_found_by_a_factor_and_not_network_by_network() -> None:
    """Computing and moving data are slowed down apart, and waiting for others is not slowed down at all."""

    def one(compute: float, moving: float, network: str) -> Case:
        parts = Parts(compute, moving=moving, host=1e-3, waiting=1.0)
        return Case(parts=parts, names=(network, "x", "2x"), values=(math.log(compute), math.log(moving)))

    def slow(case: Case) -> float:
        return forecast(replace(case, parts=case.parts._replace(device=150 * case.parts[0], moving=40 * case.parts[1])))

    cases = [one(c, m, f"{c} {m}") for c in (0.001, 0.01, 0.1) for m in (0.002, 0.02, 0.2)]
    made = Residuals().fit(cases, [slow(c) for c in cases])
    for unseen in (one(0.03, 0.001, "new"), one(0.001, 0.5, "newer"), one(0.5, 0.05, "newest")):
        assert made.predict([unseen])[0].value == pytest.approx(slow(unseen), rel=0.1)


def test_a_processor_waits_for_its_own_ops_and_then_for_others() -> None:
    """The host's own work, device and communication add up: a slow host is found from cases that wait long, too."""

    def one(serial: float, waiting: float, network: str) -> Case:
        parts = Parts(0.01, serial=serial, waiting=waiting)
        return Case(parts=parts, names=(network, "cpu", "2x"), values=(math.log(serial), math.log(waiting)))

    def slow(case: Case) -> float:
        return 0.01 + 5 * case.parts.serial + case.parts.waiting

    cases = [one(s, w, f"{s} {w}") for s in (0.1, 0.3, 1.0) for w in (0.01, 1.0, 10.0)]
    unseen = one(0.5, 20.0, "new")
    assert Residuals().fit(cases, [slow(c) for c in cases]).predict([unseen])[0].value == pytest.approx(
        slow(unseen), rel=0.1
    )
    found = speed_of(cases, [slow(c) for c in cases])
    assert found.host == 4.0  # the power of two that is nearest


def test_parts_have_factors() -> None:
    """A host that is three times slower matters only where the host is waited for."""
    cases = [case(size, host=host) for size in (0.1, 1.0, 10.0) for host in (0.01, 0.3, 3.0, 30.0)]

    def slow(one: Case) -> float:
        return forecast(replace(one, parts=one.parts._replace(host=3 * one.parts.host)))

    made = Residuals().fit(cases, [slow(c) for c in cases])
    unseen = case(0.5, network="new", host=20.0)
    assert made.predict([unseen])[0].value == pytest.approx(slow(unseen), rel=0.25)
    whole = Residuals(factors=False).fit(cases, [slow(c) for c in cases])
    assert whole.predict([unseen])[0].value < made.predict([unseen])[0].value


def test_more_rows_than_hyper_parameters_are_learned_on() -> None:
    cases = [case(1.0 + 0.01 * i) for i in range(450)]
    made = Residuals().fit(cases, [1.3 * forecast(c) for c in cases])
    assert made.predict([case(2.0)])[0].value == pytest.approx(1.3 * forecast(case(2.0)), rel=0.02)


def test_a_second_fit_forgets_the_first() -> None:
    cases = some()
    made = Residuals().fit(cases, [5 * forecast(c) for c in cases]).fit(cases, [forecast(c) for c in cases])
    fresh = Residuals().fit(cases, [forecast(c) for c in cases])
    assert made.predict(cases) == fresh.predict(cases)


def test_nothing_to_learn_from_is_an_error() -> None:
    with pytest.raises(InputError, match="there are none"):
        Residuals().fit([], [])


def _width(one: Range) -> float:
    assert one.low < one.value < one.high
    return math.log(one.high / one.low)
