"""Parts of the predictor taken away on a made-up device: what is worse is what we know must be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from foretell_bench.pages.accuracy import ablation_table
from foretell_bench.research import ablations
from foretell_bench.research.ablations import (
    ABOUT,
    HALF,
    NO_HOST,
    NO_NETWORK,
    NO_PHYSICS,
    PERCEPTRONS,
    QUARTER,
    WHOLE,
    ablate,
)
from foretell_bench.research.rivals import Rivals
from foretell_bench.tables.accuracy import ablation_figures, read_ablations, save_ablations

from foretell.cost.model import load_model
from foretell.errors import InputError
from foretell.graph import Graph
from foretell.hardware import device
from foretell.learn import interaction
from foretell.learn.dataset import load
from foretell.learn.fit import fit
from foretell.learn.options import FitOptions
from foretell.learn.uncertainty.left_out import leave_groups_out
from foretell.store.store import Store
from tests.learn.uncertainty.test_left_out import WIDTHS, made, network

pytest.importorskip("torch_geometric")
pytest.importorskip("duckdb")


@pytest.fixture(scope="module")
def graphs() -> dict[tuple[int, int], Graph]:
    return {(width, batch): network(width, batch) for width in WIDTHS[:5] for batch in (64, 16384)}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, graphs: dict[tuple[int, int], Graph]) -> list[ablations.Ablation]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interaction, "FEWEST", 5)
        patch.setattr(interaction, "_EPOCHS", 3)
        patch.setattr(ablations, "_LOOKS", 100)
        measured = load(Store(made(tmp_path_factory.mktemp("store"), graphs)))
        return ablate(measured, {i: s.source for i, s in enumerate(measured.steps)}, FitOptions(rounds=40))


@pytest.mark.nightly
def test_every_part_is_taken_away(found: list[ablations.Ablation]) -> None:
    assert [a.name for a in found] == list(ABOUT)
    assert {a.name for a in found} == {WHOLE, NO_NETWORK, NO_HOST, NO_PHYSICS, PERCEPTRONS, HALF, QUARTER}
    of = {a.name: a for a in found}
    assert len({a.device.count for a in found}) == 1
    # The device is the same without a host, and small steps are bound by it.
    assert of[NO_HOST].device == of[WHOLE].device
    assert of[NO_HOST].step.mean > 2 * of[NO_NETWORK].step.mean
    assert of[NO_PHYSICS].device.mean > of[NO_NETWORK].device.mean


def test_they_are_kept_and_drawn(found: list[ablations.Ablation], tmp_path: Path) -> None:
    save_ablations(found, tmp_path / "a.json")
    again = read_ablations(tmp_path / "a.json")
    assert [a["name"] for a in again] == [a.name for a in found]
    assert again[0]["device"]["mean"] == pytest.approx(found[0].device.mean, rel=1e-3)
    assert len(ablation_figures(found)) == 2 * len(found)
    drawn = ablation_table(again)
    assert all(f"| {a['name']} | {a['device']['mean']:.1%} |" in drawn for a in again)
    assert all(a["about"] in drawn for a in again)
    (tmp_path / "a.json").write_text(json.dumps([{"name": "x"}]))
    with pytest.raises(InputError, match="--ablations"):
        read_ablations(tmp_path / "a.json")


@pytest.mark.nightly
def test_networks_see_nothing_of_what_they_are_validated_against(
    tmp_path: Path, graphs: dict[tuple[int, int], Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interaction, "FEWEST", 5)
    monkeypatch.setattr(interaction, "_EPOCHS", 2)
    monkeypatch.setattr("foretell_bench.research.rivals._EPOCHS", 2)
    predicted, networks = [], []
    for name, slow in (("plain", ""), ("slowed", "net512")):
        measured = load(Store(made(tmp_path / name, graphs, slow=slow)))
        groups = {i: s.source for i, s in enumerate(measured.steps)}
        own = [f for f in leave_groups_out(measured, groups, FitOptions(rounds=20)).steps if f.source == "net512"]
        rivals = Rivals(measured, groups, FitOptions()).predict()
        predicted.append({f.settings: f for f in own})
        networks.append({f.settings: rivals[f.record]["network"] for f in own})
    plain, slowed = predicted
    assert networks[0] == pytest.approx(networks[1])
    for settings, f in plain.items():
        assert f.device_predicted == pytest.approx(slowed[settings].device_predicted)
        assert f.device != slowed[settings].device
    assert any(f.device_predicted != f.rivals["sum"] for f in plain.values())


@pytest.mark.nightly
def test_a_fit_trains_a_network(
    tmp_path: Path, graphs: dict[tuple[int, int], Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, h200, graph = Store(made(tmp_path / "store", graphs)), device("h200"), graphs[256, 64]
    assert fit([store], tmp_path / "without", intervals=False, workers=1).network == 0  # there are too few steps
    monkeypatch.setattr(interaction, "FEWEST", 5)
    monkeypatch.setattr(interaction, "_EPOCHS", 2)
    card = fit([store], tmp_path / "with", intervals=False, workers=1)
    without, with_ = (load_model(str(tmp_path / name)) for name in ("without", "with"))
    assert without.interaction is None
    assert with_.interaction is not None
    assert card.network == with_.interaction.strength
    assert with_.embedding(graph, h200).shape == (16,)
    monkeypatch.setattr(interaction, "is_installed", lambda: False)
    assert fit([store], tmp_path / "with", intervals=False, workers=1).network == 0
    assert load_model(str(tmp_path / "with")).interaction is None
