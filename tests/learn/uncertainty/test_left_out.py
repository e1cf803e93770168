"""Steps of a made-up device, predicted while their kind is left out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from foretell_bench.errors import Errors
from foretell_bench.research.coverage import coverage
from foretell_bench.tables.accuracy import noise, predict_stores
from foretell_bench.tables.newer import figures, predict_newer
from torch import nn

from foretell.capture import capture
from foretell.cost.model import load_model
from foretell.cost.roofline import price_ops
from foretell.errors import InputError, ModelError
from foretell.forecasting.uncertainty.own_device import calibration_of
from foretell.graph import Graph
from foretell.hardware import device
from foretell.learn.fit import fit
from foretell.learn.uncertainty.left_out import left_out_together
from foretell.measure.record import GraphRow, OpRow, Point, Record, StepRow
from foretell.store.store import Store
from foretell.workload import Workload

pytest.importorskip("lightgbm")
pytest.importorskip("duckdb")
H200 = device("h200")
WIDTHS = (256, 384, 512, 768, 1024, 1536)


def network(width: int, batch: int) -> Graph:
    def model() -> nn.Module:
        return nn.Sequential(
            *(nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width)) for _ in range(3))
        )

    return capture(
        Workload(
            name=f"net{width}",
            model=model,
            batch=lambda: {"x": torch.randn(batch, width)},
            loss=lambda m, b: m(b["x"]).square().mean(),
            optimizer=lambda p: torch.optim.SGD(p, lr=0.1),
        )
    )


def measured(graph: Graph, source: str, batch: int, *, slower: float = 1.0, occasion: str = "one") -> Record:
    """Every op at half the roofline's speed, 2 µs more to launch it; the host needs 10 µs an op."""
    prices = price_ops(graph, H200)
    times = [(2e-6 + 2 * p.seconds) * slower if p.work.kernel else 0.0 for p in prices]
    device_seconds, host = sum(times), 1e-5 * len(times)
    point = Point(source=source, settings={"batch": str(batch)})
    row = StepRow(
        point=point.key, kind="step", source=source, settings=point.settings_text, graph=graph.content_hash,
        step_seconds=max(device_seconds, host), device_seconds=device_seconds, host_seconds=host, repetitions=10,
        device="h200", occasion=occasion, date="2026-01-02T03:04:05Z", precision="fp32", samples=batch, outcome="ok",
        bound="host" if host > device_seconds else "device",
    )  # fmt: skip
    ops = tuple(
        OpRow(op=i, target=op.target, phase=op.phase, device_seconds=t, dispatch_seconds=None, issue_seconds=None,
              kernels=("k",) if t else (), kernel_seconds=(t,) if t else ())
        for i, (op, t) in enumerate(zip(graph.ops, times, strict=True))
    )  # fmt: skip
    return Record(step=row, ops=ops, graph=GraphRow(hash=graph.content_hash, name=graph.name, file=graph.to_bytes()))


@pytest.fixture(scope="module")
def graphs() -> dict[tuple[int, int], Graph]:
    return {(width, batch): network(width, batch) for width in WIDTHS for batch in (64, 16384)}


def made(path: Path, graphs: dict[tuple[int, int], Graph], slow: str = "") -> Path:
    Store(path).append(
        measured(graph, f"net{w}", b, slower=10.0 if slow == f"net{w}" else 1.0) for (w, b), graph in graphs.items()
    )
    return path


@pytest.mark.nightly
def test_unseen_networks_are_predicted(tmp_path: Path, graphs: dict[tuple[int, int], Graph]) -> None:
    found = predict_stores([made(tmp_path / "store", graphs)], workers=1).steps
    assert len(found) == len(graphs)
    assert Errors.of([f.device_predicted for f in found], [f.device for f in found]).median < 0.25
    assert Errors.of([f.roofline for f in found], [f.device for f in found]).median > 0.45
    for f in found:
        assert sum(predicted for predicted, _ in f.families.values()) == pytest.approx(f.device_predicted, rel=1e-6)
        assert f.curve[0][1] <= f.step_predicted * (1 + 1e-9)
        assert f.step_predicted <= f.curve[-1][1] * (1 + 1e-9)
        assert set(f.rivals) == {"sum", "formula", "linear", "trees"}  # too few steps for networks
        assert f.rivals["sum"] == pytest.approx(f.device_predicted)


@pytest.mark.nightly
def test_what_is_left_out_teaches_nothing(tmp_path: Path, graphs: dict[tuple[int, int], Graph]) -> None:
    plain = predict_stores([made(tmp_path / "plain", graphs)], workers=1).steps
    slowed = predict_stores([made(tmp_path / "slowed", graphs, slow="net512")], workers=1).steps
    first, second = ([f for f in found if f.source == "net512"] for found in (plain, slowed))
    assert [f.device_predicted for f in first] == pytest.approx([f.device_predicted for f in second])
    assert [f.step_predicted for f in first] == pytest.approx([f.step_predicted for f in second])
    assert first[0].device != second[0].device


@pytest.mark.nightly
def test_workers_predict_the_same(tmp_path: Path, graphs: dict[tuple[int, int], Graph]) -> None:
    store = made(tmp_path / "store", graphs)
    alone, together = (predict_stores([store], split="architecture", workers=workers).steps for workers in (1, 2))
    assert [f.device_predicted for f in alone] == [f.device_predicted for f in together]


def test_largest_batches_are_predicted_from_the_others(tmp_path: Path, graphs: dict[tuple[int, int], Graph]) -> None:
    found = predict_stores([made(tmp_path / "store", graphs)], split="batch", workers=1).steps
    assert {f.settings for f in found} == {'{"batch":"16384"}'}
    assert all(set(f.rivals) == {"sum", "formula", "linear", "trees"} for f in found)
    assert coverage(found) == []  # there are no other groups to make intervals from


@pytest.mark.nightly
def test_a_fitted_model_knows_its_errors(tmp_path: Path, graphs: dict[tuple[int, int], Graph]) -> None:
    fit([Store(made(tmp_path / "store", graphs))], tmp_path / "model", workers=1)
    model = load_model(str(tmp_path / "model"))
    assert calibration_of(model) is not None
    assert calibration_of(model).device > 0
    fit([Store(tmp_path / "store")], tmp_path / "model", intervals=False)
    assert calibration_of(load_model(str(tmp_path / "model"))) is None


@pytest.mark.nightly
def test_forecasts_that_were_saved_spare_a_fit_its_own(tmp_path: Path, graphs: dict[tuple[int, int], Graph]) -> None:
    store = Store(made(tmp_path / "store", graphs))
    predicted = predict_stores([store.path], workers=1)
    fit([store], tmp_path / "spared", unseen=predicted)
    fit([store], tmp_path / "own", workers=1)
    spared, own = (calibration_of(load_model(str(tmp_path / name))) for name in ("spared", "own"))
    assert spared == own
    with pytest.raises(
        ModelError, match=f"of {len(graphs) - 1} steps, {len(graphs) - 1} of them among the {len(graphs)}"
    ):
        fit([store], tmp_path / "spared", unseen=replace(predicted, steps=predicted.steps[1:]))


def test_noise_is_what_moves_between_occasions(tmp_path: Path, graphs: dict[tuple[int, int], Graph]) -> None:
    graph = graphs[256, 16384]
    records = [
        measured(graph, "net256", 1, slower=s, occasion=o) for s, o in ((1.0, "one"), (1.1, "two"), (5.0, "two"))
    ]
    Store(tmp_path).append(records[:2])
    assert noise([tmp_path])["device"] == pytest.approx(0.1 / 1.05)


def test_a_store_that_is_not_there_or_too_small_says_so(tmp_path: Path, graphs: dict[tuple[int, int], Graph]) -> None:
    with pytest.raises(InputError, match="no store"):
        predict_stores([tmp_path / "none"])
    Store(tmp_path).append([measured(graphs[256, 64], "net256", 64)])
    with pytest.raises(InputError, match="too few"):
        predict_stores([tmp_path])
    with pytest.raises(InputError, match="family, architecture"):
        predict_stores([tmp_path], split="nonsense")


def test_a_model_is_validated_against_steps_that_are_newer_than_it(
    tmp_path: Path, graphs: dict[tuple[int, int], Graph]
) -> None:
    known = {key: graph for key, graph in graphs.items() if key[0] != WIDTHS[0]}
    store = Store(made(tmp_path / "store", known))
    fit([store], tmp_path / "model", intervals=False)
    with pytest.raises(InputError, match="no step of a new architecture"):
        predict_newer(store.path, str(tmp_path / "model"))
    later = [measured(graph, f"net{w}", b, occasion="two") for (w, b), graph in graphs.items() if w in WIDTHS[:2]]
    store.append(replace(r, step=replace(r.step, date="2026-02-02T03:04:05Z")) for r in later)
    found = predict_newer(store.path, str(tmp_path / "model"))
    assert {s.source for s in found.steps} == {f"net{WIDTHS[0]}"}  # the other was known before
    assert all(s.device_predicted == pytest.approx(s.device, rel=0.3) for s in found.steps)
    assert {f.source for f in figures(found)} >= {"device time", "step time"}


def test_small_groups_are_left_out_together() -> None:
    sizes = {"cnn": 800, "vit": 60, "rnn": 20, "gan": 6, "moe": 5, "lora": 4}
    group_of = dict(enumerate(name for name, size in sizes.items() for _ in range(size)))
    assert left_out_together(group_of) == [("cnn",), ("vit",), ("rnn", "gan"), ("moe", "lora")]
