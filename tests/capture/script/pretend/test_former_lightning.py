"""Scripts written for Lightning before its second version run on the one that is installed."""

from __future__ import annotations

import importlib.util

import pytest

import foretell
from tests.capture.script.conftest import Write

if importlib.util.find_spec("pytorch_lightning") is None:
    pytest.skip("Lightning is not installed", allow_module_level=True)

ONE = """
    import argparse
    import pytorch_lightning as pl, torch
    from pytorch_lightning.callbacks import EarlyStopping, ModelCheckpoint
    from pytorch_lightning.core.lightning import LightningModule
    from pytorch_lightning.loggers import TestTubeLogger
    from pytorch_lightning.utilities.distributed import rank_zero_only
    class Module(LightningModule):
        def __init__(self, hparams):
            super().__init__()
            self.hparams = hparams
            self.layer = torch.nn.Linear(32, 4)
        def training_step(self, batch, batch_nb):
            loss = torch.nn.functional.cross_entropy(self.layer(batch[0]), batch[1])
            return {"loss": loss, "log": {"train": loss}}
        def training_epoch_end(self, outputs):
            return {}
        @pl.data_loader
        def train_dataloader(self):
            data = torch.utils.data.TensorDataset(torch.randn(64, 32), torch.randint(0, 4, (64,)))
            return torch.utils.data.DataLoader(data, batch_size=4)
        def optimizer_step(self, epoch, batch_nb, optimizer, optimizer_i, second_order_closure=None, using_native_amp=False):
            optimizer.step()
            optimizer.zero_grad()
        def configure_optimizers(self):
            return [torch.optim.AdamW(self.parameters(), lr=self.hparams.rate)]
    parser = argparse.ArgumentParser()
    parser.add_argument("--rate", type=float, default=0.1)
    parser = pl.Trainer.add_argparse_args(parser)
    args = parser.parse_args(["--gpus", "1", "--precision", "16", "--max_epochs", "2", "--progress_bar_refresh_rate", "20"])
    trainer = pl.Trainer.from_argparse_args(
        args, weights_summary=None, logger=TestTubeLogger(save_dir="logs", name="x"), distributed_backend="dp",
        checkpoint_callback=ModelCheckpoint(filepath="out/{epoch}", monitor="loss", mode="auto", period=1, prefix="p"))
    trainer.fit(Module(args))
"""
TWO = """
    import pytorch_lightning as pl, torch
    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.first, self.second = torch.nn.Linear(32, 32), torch.nn.Linear(32, 1)
        def training_step(self, batch, batch_idx, optimizer_idx):
            if optimizer_idx == 0:
                return self.second(self.first(batch[0])).mean()
            return {"loss": self.second(self.first(batch[0]).detach()).mean()}
        def configure_optimizers(self):
            return [torch.optim.Adam(self.first.parameters()), torch.optim.SGD(self.second.parameters(), 0.1)], []
    data = torch.utils.data.TensorDataset(torch.randn(64, 32))
    trainer = pl.Trainer(gpus=[0], max_nb_epochs=1, gradient_clip_val=1.0)
    trainer.fit(Module(), train_dataloader=torch.utils.data.DataLoader(data, batch_size=4))
"""


def test_former_arguments_names_and_hooks_mean_what_they_became(script: Write) -> None:
    graph = foretell.capture_graph(script(ONE))
    assert (graph.samples, graph.precision.name, graph.facts.parameters) == (4, "amp-fp16", 32 * 4 + 4)
    assert str(graph.facts.optimizer).endswith("AdamW")


def test_a_step_for_each_optimizer_is_made_in_turn(script: Write) -> None:
    graph = foretell.capture_graph(script(TWO))
    assert (graph.samples, graph.facts.parameters) == (4, 32 * 33 + 33)
    assert str(graph.facts.optimizer) == "Adam, SGD"
