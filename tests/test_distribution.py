"""A prediction as a distribution: one number says the same as its quantiles, samples, mean and probabilities."""

from __future__ import annotations

import math

import numpy as np
import pytest

from foretell.distribution import TAILS, Distribution, Empirical, LogNormal

DRAWN = np.random.default_rng(7).lognormal(sigma=0.2, size=400)
ONES: dict[str, Distribution] = {
    "symmetric": LogNormal.symmetric(2.0, 0.3),
    "leaning": LogNormal(median=2.0, below=0.1, above=0.5),
    "later": LogNormal(median=2.0, below=0.1, above=0.5).shifted(1.0),
    "drawn": Empirical(median=1.0, values=DRAWN),
    "drawn, with a margin": Empirical(median=1.0, values=DRAWN, margin=0.1, shift=0.5),
}


@pytest.mark.parametrize("name", ONES)
class TestEveryDistribution:
    def test_quantiles_grow_with_their_level(self, name: str) -> None:
        quantiles = [ONES[name].quantile(level) for level in np.linspace(0.01, 0.99, 99).tolist()]
        assert quantiles == sorted(quantiles)

    def test_what_lies_below_a_quantile_is_as_likely_as_its_level(self, name: str) -> None:
        for level in (0.05, 0.3, 0.8, 0.95):
            assert ONES[name].probability_below(ONES[name].quantile(level)) == pytest.approx(level, abs=0.01)

    def test_samples_have_its_quantiles_and_its_mean(self, name: str) -> None:
        drawn = ONES[name].sample(200_000, seed=1)
        for level in (0.05, 0.5, 0.95):
            assert float(np.quantile(drawn, level)) == pytest.approx(ONES[name].quantile(level), rel=0.02)
        assert float(drawn.mean()) == pytest.approx(ONES[name].mean, rel=0.01)
        assert np.array_equal(drawn, ONES[name].sample(200_000, seed=1)), "the same seed draws the same"

    def test_twice_as_much_has_twice_the_quantiles_and_more_is_added_to_them(self, name: str) -> None:
        for level in (0.05, 0.5, 0.95):
            plain = ONES[name].quantile(level)
            assert ONES[name].scaled(2.0).quantile(level) == pytest.approx(2 * plain)
            assert ONES[name].shifted(3.0).quantile(level) == pytest.approx(plain + 3.0)


def test_the_ends_of_an_interval_are_its_widths_exactly() -> None:
    one = LogNormal(median=3.0, below=0.2, above=0.7)
    assert [one.quantile(tail) for tail in TAILS] == [3.0 * math.exp(-0.2), 3.0 * math.exp(0.7)]
    margin = Empirical(median=1.0, values=DRAWN, margin=0.1)
    assert margin.quantile(TAILS[0]) == float(np.quantile(DRAWN, TAILS[0])) * math.exp(-0.1)


def test_an_interval_is_read_back_as_the_lognormal_of_its_width() -> None:
    one = LogNormal.from_interval(1.0, 0.5, 2.0)
    assert [one.quantile(tail) for tail in TAILS] == pytest.approx([0.5, 2.0])
    assert LogNormal.from_sigma(1.0, one.sigma).above == pytest.approx(one.above)
    sure = LogNormal.from_interval(1.0, 1.0, 1.0)
    assert (sure.mean, sure.probability_below(0.99), sure.probability_below(1.0)) == (1.0, 0.0, 1.0)


def test_a_median_outside_what_was_drawn_stays_inside_the_interval() -> None:
    one = Empirical(median=10.0, values=DRAWN)
    assert one.quantile(TAILS[0]) <= 10.0 == one.quantile(TAILS[1])
