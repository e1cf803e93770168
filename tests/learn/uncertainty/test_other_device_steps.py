"""Published steps predicted while their chip is left out: by several processes, and from where a run was stopped."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretell.cost.model import load_model
from foretell.cost.transfer import Generations
from foretell.graph import Graph, Layout, Op, Signature, Storage, Tensor
from foretell.learn.transfer.published_steps import PublishedStep
from foretell.learn.uncertainty import other_device_steps
from foretell.learn.uncertainty.other_device_steps import LEARNED, LeftOutModels, predict_published


def graph_of(step: PublishedStep) -> Graph | None:
    if step.source == "gone":
        return None
    size = int(step.settings["batch"])
    x = Layout((size, 4096), (4096, 1), "float32")
    op = Op(Signature("aten.relu.default", (x,), (x,)), "forward", "", (0,), (1,))
    storages = (Storage(x.nbytes, "input", -1, 1), Storage(x.nbytes, "activation", 0, 1))
    return Graph(name="relu", ops=(op,), tensors=(Tensor(x, 0), Tensor(x, 1)), storages=storages, training=False)


def published(source: str = "net", batch: int = 4096, device: str = "rtx-3090") -> PublishedStep:
    settings = {"batch": f"{batch}", "precision": "fp32", "optimizer": "none"}
    return PublishedStep(origin="made up", device=device, source=source, settings=settings, seconds=1e-3, torch="1.12")


STEPS = [published(batch=1024), published("gone"), published(batch=8192), published(device="t4")]


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> LeftOutModels:
    monkeypatch.setattr(other_device_steps, "graph_of", graph_of)
    return LeftOutModels.of(load_model(), {"t4": Generations()}, Generations())


def test_processes_predict_what_one_does(models: LeftOutModels) -> None:
    alone, together = (predict_published(STEPS, models, workers=workers) for workers in (1, 2))
    assert together == alone
    assert [step.device for step in alone] == ["rtx-3090", "rtx-3090", "t4"]
    assert all(step.torch == "1.12" and step.predicted[LEARNED] > 0 for step in alone)


def test_a_run_that_was_stopped_goes_on_from_what_it_kept(
    models: LeftOutModels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "kept.jsonl"
    first = predict_published(STEPS[:2], models, keep=kept)
    kept.write_text(kept.read_text() + '{"name": "cut o')
    captured: list[str] = []

    def counting(step: PublishedStep) -> Graph | None:
        captured.append(step.source + step.settings["batch"] + step.device)
        return graph_of(step)

    monkeypatch.setattr(other_device_steps, "graph_of", counting)
    found = predict_published(STEPS, models, keep=kept)
    assert captured == ["net8192rtx-3090", "net4096t4"]
    assert found[0].predicted == first[0].predicted
    assert len(found) == 3
