"""An MLP mixer trained with Lightning's Trainer."""

import argparse

import torch
from torch import nn

try:
    import lightning.pytorch as pl
except ImportError:
    import pytorch_lightning as pl

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=32)
parser.add_argument("--layers", type=int, default=8)
parser.add_argument("--accumulation", type=int, default=1)


class Mix(nn.Module):
    def __init__(self, width, tokens):
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.tokens = nn.Sequential(nn.Linear(tokens, 4 * tokens), nn.GELU(), nn.Linear(4 * tokens, tokens))
        self.channels = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.tokens(self.norms[0](x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norms[1](x))


class Mixer(pl.LightningModule):
    def __init__(self, layers=8, width=512, classes=1000):
        super().__init__()
        self.save_hyperparameters()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.blocks = nn.Sequential(*[Mix(width, 196) for _ in range(layers)])
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        return self.head(self.blocks(self.patches(x).flatten(2).transpose(1, 2)).mean(1))

    def training_step(self, batch, index):
        x, y = batch
        loss = nn.functional.cross_entropy(self(x), y)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {
                "scheduler": torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, 1000),
                "interval": "step",
            },
        }


class Pictures(torch.utils.data.Dataset):
    def __len__(self):
        return 50_000

    def __getitem__(self, i):
        return torch.zeros(3, 224, 224), i % 1000


if __name__ == "__main__":
    options = parser.parse_args()
    trainer = pl.Trainer(
        max_epochs=1,
        precision="bf16-mixed",
        gradient_clip_val=1.0,
        accumulate_grad_batches=options.accumulation,
        devices="auto",
        enable_model_summary=False,
    )
    loader = torch.utils.data.DataLoader(Pictures(), batch_size=options.batch, shuffle=True, num_workers=8)
    trainer.fit(Mixer(options.layers), loader)
