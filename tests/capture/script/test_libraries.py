"""Trainers of other libraries through the same mechanism: no adapter of their own. Each runs where its library is installed."""

from __future__ import annotations

import pytest

import foretell
from tests.capture.script.conftest import Write

HUGGING_FACE = """
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
    class Texts(torch.utils.data.Dataset):
        def __len__(self):
            return 64
        def __getitem__(self, i):
            tokens = torch.full((32,), i)
            return {"input_ids": tokens, "labels": tokens}
    model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=32, n_head=2, vocab_size=100))
    how = TrainingArguments("out", per_device_train_batch_size=4, gradient_accumulation_steps=2, logging_steps=1, save_steps=1,
                            bf16=True, report_to=["tensorboard"], max_steps=9)
    Trainer(model, how, train_dataset=Texts()).train()
"""
ACCELERATE = """
    import torch
    from accelerate import Accelerator
    accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=2)
    model = torch.nn.Linear(32, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    data = torch.utils.data.TensorDataset(torch.randn(64, 32), torch.randint(0, 4, (64,)))
    model, optimizer, loader = accelerator.prepare(model, optimizer, torch.utils.data.DataLoader(data, batch_size=4))
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = torch.nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        print(accelerator.gather(loss).mean().item())
"""
LIGHTNING = """
    import lightning, torch
    class Module(lightning.LightningModule):
        def __init__(self, rate=0.1):
            super().__init__()
            self.save_hyperparameters()
            self.layer = torch.nn.Linear(32, 4)
        def training_step(self, batch, number):
            loss = torch.nn.functional.cross_entropy(self.layer(batch[0]), batch[1])
            self.log("loss", loss, prog_bar=True)
            return loss
        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=self.hparams.rate)
    data = torch.utils.data.TensorDataset(torch.randn(64, 32), torch.randint(0, 4, (64,)))
    trainer = lightning.Trainer(max_epochs=1, accelerator="gpu", precision="bf16-mixed", accumulate_grad_batches=2,
                                gradient_clip_val=1.0)
    trainer.fit(Module(), torch.utils.data.DataLoader(data, batch_size=4))
"""


@pytest.mark.parametrize(
    ("libraries", "text"),
    [
        (("transformers", "accelerate"), HUGGING_FACE),
        (("accelerate",), ACCELERATE),
        (("lightning",), LIGHTNING),
    ],
    ids=["trainer", "accelerate", "lightning"],
)
def test_a_trainer_runs_unmodified(script: Write, libraries: tuple[str, ...], text: str) -> None:
    for library in libraries:
        pytest.importorskip(library)
    graph = foretell.capture_graph(script(text))
    assert (graph.samples, graph.grad_accumulation, graph.precision.name) == (4, 2, "amp-bf16")
    assert str(graph.facts.optimizer).endswith("AdamW")
    assert any("addmm" in op.target for op in graph.ops)
