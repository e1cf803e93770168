"""The callbacks: through the real Trainers where they are installed, and always through the order of their hooks."""

from __future__ import annotations

import importlib.util
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch

import foretell
from foretell.sources.named.torchvision_ops import make_torchvision_importable
from foretell.store.lines import RecordFile
from foretell.watching.stopwatch import WARM_UP
from foretell.watching.watch import Watch
from tests.watching.jobs import forecast


@pytest.fixture(autouse=True)
def _torchvision() -> None:
    """Both libraries import it, and some machines have one without its operators."""
    make_torchvision_importable()


class Told(Watch):
    """Says what it was told."""

    def __init__(self) -> None:
        self.said: list[str] = []
        super().__init__(None, 1)

    def step(self) -> None:
        self.said.append("step")

    def pause(self) -> None:
        self.said.append("pause")

    def close(self) -> None:
        self.said.append("close")


class Regression(torch.nn.Module):
    """A model as a Trainer takes it: its loss comes first."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        y = self.layer(x)
        return {"loss": torch.nn.functional.mse_loss(y, labels), "logits": y}


ROWS = [{"x": torch.ones(4), "labels": torch.ones(1)} for _ in range(64)]


def test_the_hooks_of_hugging_face() -> None:
    from transformers import TrainerControl, TrainerState, TrainingArguments
    from transformers.trainer_callback import CallbackHandler

    from foretell.watching.huggingface import WatchCallback

    told = Told()
    handler: Any = CallbackHandler([WatchCallback(told)], None, None, None, None)
    arguments, state, control = TrainingArguments.__new__(TrainingArguments), TrainerState(), TrainerControl()
    for event in ("on_train_begin", "on_epoch_begin", "on_step_begin", "on_substep_end", "on_step_end"):
        assert getattr(handler, event)(arguments, state, control) is control
    handler.on_evaluate(arguments, state, control, metrics={})
    handler.on_save(arguments, state, control)
    handler.on_step_end(arguments, state, control)
    handler.on_train_end(arguments, state, control)
    assert told.said == ["pause", "pause", "step", "pause", "pause", "step", "close"]


@pytest.mark.skipif(not importlib.util.find_spec("accelerate"), reason="the Trainer needs accelerate")
def test_a_trainer_of_hugging_face(tmp_path: Path) -> None:
    from transformers import Trainer, TrainingArguments

    from foretell.watching.huggingface import WatchCallback

    watch = foretell.watch(forecast(), every=0, store=tmp_path / "kept.jsonl")
    arguments = TrainingArguments(
        output_dir=str(tmp_path), per_device_train_batch_size=2, gradient_accumulation_steps=2, num_train_epochs=2,
        eval_strategy="steps", eval_steps=8, save_steps=8, report_to=[], use_cpu=True, remove_unused_columns=False,
    )  # fmt: skip
    trainer = Trainer(
        model=Regression(), args=arguments, train_dataset=ROWS, eval_dataset=ROWS[:4], callbacks=[WatchCallback(watch)]
    )
    trainer.train()
    rows = list(RecordFile(tmp_path / "kept.jsonl").steps())
    assert trainer.state.global_step == 32
    assert rows[0].steps_before == WARM_UP
    assert 15 < sum(row.repetitions for row in rows) <= 32 - WARM_UP - 3  # of 32 steps, without those around a pause


@pytest.fixture
def lightning(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Lightning, or where it is not installed a base class to stand in for it."""
    if not importlib.util.find_spec("lightning"):
        stand_in: Any = types.ModuleType("lightning.pytorch")
        stand_in.Callback = type("Callback", (), {})
        monkeypatch.setitem(sys.modules, "lightning", types.ModuleType("lightning"))
        monkeypatch.setitem(sys.modules, "lightning.pytorch", stand_in)
    monkeypatch.delitem(sys.modules, "foretell.watching.lightning", raising=False)
    yield importlib.import_module("foretell.watching.lightning")
    sys.modules.pop("foretell.watching.lightning", None)


def test_the_hooks_of_lightning(lightning: Any) -> None:
    told = Told()
    callback = lightning.WatchCallback(told)
    trainer = types.SimpleNamespace(global_step=0)
    callback.on_train_epoch_start(trainer, None)
    for step in (0, 1, 1, 2):  # two batches a step
        trainer.global_step = step
        callback.on_train_batch_end(trainer, None, None, None, 0)
    callback.on_validation_start(trainer, None)
    callback.on_validation_end(trainer, None)
    callback.on_exception(trainer, None, KeyboardInterrupt())
    assert told.said == ["pause", "step", "step", "pause", "pause", "close"]


@pytest.mark.skipif(not importlib.util.find_spec("lightning"), reason="Lightning is not installed")
@pytest.mark.filterwarnings("ignore")  # whoever counts tests would have to load their classes
def test_a_trainer_of_lightning(tmp_path: Path, lightning: Any) -> None:
    import lightning.pytorch as real

    class Module(real.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Regression()

        def training_step(self, batch: Any, number: int) -> Any:
            return self.inner(**batch)["loss"]

        def validation_step(self, batch: Any, number: int) -> Any:
            return self.inner(**batch)["loss"]

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    watch = foretell.watch(forecast(), every=0, store=tmp_path / "kept.jsonl")
    trainer = real.Trainer(
        max_epochs=2, accumulate_grad_batches=2, accelerator="cpu", logger=False, enable_progress_bar=False,
        default_root_dir=tmp_path, val_check_interval=16, callbacks=[lightning.WatchCallback(watch)],
    )  # fmt: skip
    batches = torch.utils.data.DataLoader(ROWS, batch_size=2)  # type: ignore[arg-type]
    trainer.fit(Module(), batches, batches)
    rows = list(RecordFile(tmp_path / "kept.jsonl").steps())
    assert trainer.global_step == 32
    assert 15 < sum(row.repetitions for row in rows) <= 32 - WARM_UP - 3
