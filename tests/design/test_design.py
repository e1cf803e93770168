"""Choosing what to measure: the gains are what they are called, greedy and exchange raise them, budgets hold."""

from __future__ import annotations

import dataclasses
import itertools
import math
from pathlib import Path

import numpy as np
import pytest

from foretell.design import space as space_module
from foretell.design.design import METHODS, Design, Method, design, groups
from foretell.design.information import (
    FLOOR,
    REPEATING,
    Candidate,
    OpSet,
    Row,
    candidate,
    features,
    measuring_seconds,
    op_set_of,
    row_keys,
)
from foretell.design.space import Space, standardised
from foretell.errors import InputError
from foretell.hardware import device
from foretell.measure import instrument
from foretell.measure.record import Point
from foretell.report.design import coverage_page, design_dict, headline, why

H200 = device("h200")


def row(number: int, family: str = "mm", **changes: float) -> Row:
    """Sizes from tiny to large, by number."""
    shape = {"half": float(number % 2), "strided": 0.0, "inner": float(number % 5)}
    traffic = round(changes.get("traffic", 1e4 * 1.7**number))
    return Row(f"{family}-{number}", family, 1, changes.get("flops", traffic * 50.0), traffic, "bf16", shape)


def point(name: str, rows: list[Row], seconds: float = 1.0) -> Candidate:
    return Candidate(point=Point(source=f"zoo/{name}"), ops=OpSet(tuple(rows), len(rows)), seconds=seconds)


def pool(seed: int = 0, count: int = 12) -> list[Candidate]:
    draw = np.random.default_rng(seed)
    return [
        point(
            f"p{i}",
            [row(int(n), family) for family in ("mm", "add") for n in draw.integers(0, 18, 3)],
            float(draw.uniform(0.5, 3)),
        )
        for i in range(count)
    ]


def information(candidates: list[Candidate], chosen: list[Candidate]) -> float:
    """log det of M, written down as it is defined."""
    total = 0.0
    space = Space([c.ops for c in candidates], [], H200)
    for family, phi in enumerate(space.phi):
        own = {i for c in chosen for i in space.rows[candidates.index(c)].get(family, ())}
        rows = phi[sorted(own)]
        total += math.log(np.linalg.det(np.eye(phi.shape[1]) + rows.T @ rows))
    return total


def names(made: Design) -> list[str]:
    return [choice.candidate.point.source for choice in made.choices]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("budget", [0.1, 3.0, 8.0, 1e9])
def test_the_budget_holds(method: Method, budget: float) -> None:
    made = design(pool(), H200, budget, method=method)
    assert made.seconds <= budget
    assert len(set(names(made))) == len(made.choices)
    left = [c for c in made.candidates if c.point.source not in names(made)]
    if method == "random":
        assert all(c.seconds > budget - made.seconds for c in left)


def test_information_is_log_det() -> None:
    candidates = pool()
    made = design(candidates, H200, 8.0)
    assert made.information == pytest.approx(information(candidates, [c.candidate for c in made.choices]))
    assert made.all_information == pytest.approx(information(candidates, candidates))
    assert sum(c.gain for c in made.choices) == pytest.approx(made.information)


def test_lazy_greedy_is_greedy() -> None:
    candidates = pool(1)
    made = design(candidates, H200, 9.0, exchange=False)
    chosen: list[Candidate] = []
    budget = 9.0
    while True:
        able = [c for c in candidates if c not in chosen and c.seconds <= budget]
        before = information(candidates, chosen)
        if not able:
            break
        best = max(able, key=lambda c: (information(candidates, [*chosen, c]) - before) / c.seconds)
        chosen.append(best)
        budget -= best.seconds
    assert {c.point.source for c in chosen} == set(names(made))


@pytest.mark.parametrize("seed", range(6))
def test_exchange_only_raises_information(seed: int) -> None:
    candidates = pool(seed, 20)
    plain, exchanged = (design(candidates, H200, 7.0, exchange=e) for e in (False, True))
    assert exchanged.information >= plain.information - 1e-9
    assert exchanged.seconds <= 7.0
    assert (exchanged.swaps > 0) == (set(names(exchanged)) != set(names(plain)))


@pytest.mark.parametrize("seed", range(3))
def test_near_the_best_there_is(seed: int) -> None:
    candidates = [dataclasses.replace(c, seconds=1.0) for c in pool(seed, 10)]
    best = max(information(candidates, list(those)) for those in itertools.combinations(candidates, 4))
    assert design(candidates, H200, 4.0).information > 0.95 * best


def test_better_than_random_at_the_same_seconds() -> None:
    candidates = pool(3, 40)
    d, a = (design(candidates, H200, 12.0, method=m) for m in ("d-optimal", "a-optimal"))
    drawn = [design(candidates, H200, 12.0, method="random", seed=s).information for s in range(20)]
    assert d.information > max(drawn)
    assert a.information > np.mean(drawn)
    assert names(design(candidates, H200, 12.0, method="random", seed=4)) == names(
        design(candidates, H200, 12.0, method="random", seed=4)
    )


def test_variance_gain_is_the_trace() -> None:
    draw = np.random.default_rng(0)
    for rows in (1, 3, 30):  # both sides of Woodbury's formula
        matrix = np.eye(6) + (x := draw.normal(size=(9, 6))).T @ x
        phi, variance = draw.normal(size=(rows, 6)), np.linalg.inv(matrix).astype(np.float64)
        gain = np.trace(np.linalg.inv(matrix)) - np.trace(np.linalg.inv(matrix + phi.T @ phi))
        assert space_module._trace_gain(phi, matrix, variance) == pytest.approx(gain)
        gain = np.linalg.slogdet(matrix + phi.T @ phi)[1] - np.linalg.slogdet(matrix)[1]
        assert space_module._log_det_gain(phi, matrix, variance) == pytest.approx(gain)


def test_what_is_known_is_not_measured_again() -> None:
    own, other = point("own", [row(n) for n in range(6)]), point("other", [row(n, "add") for n in range(6)])
    known = [own.ops]
    made = design([own, other], H200, 1.0, known=known)
    assert names(made) == ["zoo/other"]
    assert design([own], H200, 9.0, known=known).choices == ()
    assert design([own, other], H200, 9.0, known=known).information == pytest.approx(made.information)


def test_a_cheap_point_that_teaches_the_same_is_taken() -> None:
    rows = [row(n) for n in range(5)]
    made = design([point("dear", rows, 4.0), point("cheap", rows, 1.0)], H200, 10.0)
    assert names(made) == ["zoo/cheap"]


def test_repeated_ops_count_once_and_long_ones_more() -> None:
    many = OpSet(tuple(dataclasses.replace(row(3), times=100) for _ in range(2)), 2)
    assert design([Candidate(point=Point(source="zoo/x"), ops=many, seconds=1.0)], H200, 1.0).choices[0].new == 1
    small, large = point("small", [row(1)]), point("large", [row(15)])
    assert names(design([small, large], H200, 1.0)) == ["zoo/large"]


def test_reasons_name_what_is_new() -> None:
    usual = [row(n) for n in range(8)]
    first = point("first", [row(3, "gelu")])
    [choice] = design([first], H200, 1.0, known=[OpSet(tuple(usual), 8)]).choices
    assert "gelu (first of its kind)" in why(choice)
    far = point("far", [row(19)])
    [choice] = design([far], H200, 1.0, known=[OpSet(tuple(usual), 8)]).choices
    assert "1 op that is new, most of all mm (more" in why(choice)


def test_wrong_questions() -> None:
    with pytest.raises(InputError, match="Did you mean 'd-optimal'"):
        design(pool(), H200, 1.0, method="d-optimum")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="more than 0 seconds"):
        design(pool(), H200, 0.0)
    assert design([], H200, 1.0).choices == ()


def test_standardised_columns() -> None:
    values = np.array([[1.0, 5.0, 0.1], [1.0, 7.0, 0.1], [1.0, 500.0, 0.1]] + [[1.0, 6.0, 0.1]] * 60)
    scaled = standardised(values)
    assert (scaled[:, 0] == 1).all()
    assert abs(scaled).max() <= 4
    assert np.allclose(scaled[:, 2], 0)


def test_features_tell_small_from_large_and_types_apart() -> None:
    tiny, small, large, larger = (features(row(0, traffic=t), H200) for t in (10, 1e6, 1e11, 1e12))
    shape = {name for name in large if "short" in name}
    assert all(large[name] == larger[name] == 0.0 for name in shape if name.startswith("memory"))
    assert all(tiny[name] >= small[name] for name in shape)
    assert row(0, traffic=10).seconds(H200) == pytest.approx(FLOOR, rel=1e-3)


def test_expected_seconds_rise_with_the_step() -> None:
    op_sets = [OpSet((row(3), dataclasses.replace(row(20), times=n)), 10.0) for n in (1, 10, 1000)]
    seconds = [measuring_seconds(ops, H200) for ops in op_sets]
    assert seconds == sorted(seconds)
    assert measuring_seconds(op_sets[0], H200, "operators") < 0.5 < seconds[0]
    assert REPEATING == instrument.SECONDS


def test_groups_add_up() -> None:
    candidates = [
        *pool(),
        Candidate(point=Point(source="foretell.design.pool.operators:norm"), ops=pool()[0].ops, seconds=1),
    ]
    made = design(candidates, H200, 6.0)
    found = groups(made)
    assert {g.name for g in found} == {"zoo", "norm"}
    assert sum(g.candidates for g in found) == len(candidates)
    assert sum(g.chosen for g in found) == len(made.choices)
    assert sum(g.gain for g in found) == pytest.approx(made.information)
    assert sum(g.seconds for g in found) == pytest.approx(made.seconds)


def test_the_page(tmp_path: Path) -> None:
    made = design([*pool(), point("<b>", [row(5, "a<b")])], H200, 6.0, known=[pool(9)[0].ops])
    page = coverage_page(made)
    assert "<b>" not in page
    assert page.count('role="img"') == 3
    assert headline(made).startswith(f"{len(made.choices)} of 13 candidates (d-optimal)")
    assert design_dict(made)["choices"][0]["opens"]


def test_op_sets_of_a_graph() -> None:
    from foretell.capture import capture

    graph = capture("foretell.design.pool.operators:linear", {"rows": "64", "precision": "tf32"})
    ops = op_set_of(graph)
    assert {"addmm", "mm"} <= {r.family for r in ops.rows}
    assert {r.key for r in ops.rows} <= set(row_keys(graph))
    assert all(r.rate == "tf32" for r in ops.rows if r.flops)
    assert (
        candidate(Point(source="foretell.design.pool.operators:linear", kind="operators"), ops, H200).group == "linear"
    )
