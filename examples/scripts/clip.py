"""Pictures and texts brought together, in the style of CLIP: two towers, a learned temperature, fp16 with a scaled loss."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


class Tower(nn.Module):
    def __init__(self, width, layers, out):
        super().__init__()
        block = nn.TransformerEncoderLayer(
            width, width // 64, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(block, layers, norm=nn.LayerNorm(width), enable_nested_tensor=False)
        self.project = nn.Linear(width, out, bias=False)

    def forward(self, x):
        return F.normalize(self.project(self.blocks(x).mean(1)), dim=-1)


class CLIP(nn.Module):
    def __init__(self, width=512, layers=8, out=512, patch=32, size=224, words=49_408, context=64):
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.places = nn.Parameter(torch.randn((size // patch) ** 2, width) * 0.02)
        self.words = nn.Embedding(words, width)
        self.order = nn.Parameter(torch.randn(context, width) * 0.02)
        self.visual, self.textual = Tower(width, layers, out), Tower(width, layers, out)
        self.scale = nn.Parameter(torch.tensor(2.6593))

    def forward(self, pictures, texts):
        seen = self.visual(self.patches(pictures).flatten(2).transpose(1, 2) + self.places)
        read = self.textual(self.words(texts) + self.order)
        return self.scale.exp() * seen @ read.t()


class Pairs(torch.utils.data.Dataset):
    def __len__(self):
        return 1_000_000

    def __getitem__(self, i):
        return torch.zeros(3, 224, 224), torch.arange(64) + i % 1000


def main(options):
    model = CLIP(layers=options.layers).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, betas=(0.9, 0.98), eps=1e-6, weight_decay=0.2)
    scaler = torch.amp.GradScaler()
    loader = torch.utils.data.DataLoader(Pairs(), options.batch, num_workers=12, pin_memory=True, drop_last=True)
    for step, (pictures, texts) in enumerate(loader):
        pictures, texts = pictures.cuda(non_blocking=True), texts.cuda(non_blocking=True)
        with torch.autocast("cuda", dtype=torch.float16):
            logits = model(pictures, texts)
            labels = torch.arange(len(logits), device=logits.device)
            loss = (F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels)) / 2
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        with torch.no_grad():
            model.scale.clamp_(0, 4.6052)
        if step % 100 == 0:
            print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--layers", type=int, default=8)
    main(parser.parse_args())
