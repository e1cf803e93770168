"""Translation with nn.Transformer: padded batches, masks, label smoothing, Noam's schedule, fp32 with tf32 products."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=32)
parser.add_argument("--length", type=int, default=128)
parser.add_argument("--width", type=int, default=512)
parser.add_argument("--vocabulary", type=int, default=32_000)
options = parser.parse_args()
torch.set_float32_matmul_precision("high")
device = torch.device("cuda")


class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        self.source = nn.Embedding(options.vocabulary, options.width, padding_idx=0)
        self.target = nn.Embedding(options.vocabulary, options.width, padding_idx=0)
        self.positions = nn.Parameter(torch.zeros(1, options.length, options.width))
        self.transformer = nn.Transformer(options.width, 8, 6, 6, 4 * options.width, batch_first=True)
        self.out = nn.Linear(options.width, options.vocabulary)

    def forward(self, source, target):
        mask = nn.Transformer.generate_square_subsequent_mask(target.size(1), device=target.device)
        x = self.source(source) + self.positions[:, : source.size(1)]
        y = self.target(target) + self.positions[:, : target.size(1)]
        return self.out(self.transformer(x, y, tgt_mask=mask, tgt_is_causal=True))


class Sentences(torch.utils.data.IterableDataset):
    def __iter__(self):
        while True:
            yield tuple(torch.randint(1, options.vocabulary, (options.length,)) for _ in range(2))


model = Translator().to(device)
criterion = nn.CrossEntropyLoss(ignore_index=0, label_smoothing=0.1)
optimizer = torch.optim.Adam(model.parameters(), lr=1.0, betas=(0.9, 0.98), eps=1e-9)
schedule = torch.optim.lr_scheduler.LambdaLR(
    optimizer, lambda step: options.width**-0.5 * min((step + 1) ** -0.5, (step + 1) * 4000**-1.5)
)
model.train()
for step, (source, target) in enumerate(torch.utils.data.DataLoader(Sentences(), batch_size=options.batch)):
    source, target = source.to(device), target.to(device)
    logits = model(source, target[:, :-1])
    loss = criterion(logits.reshape(-1, options.vocabulary), target[:, 1:].reshape(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    if step % 50 == 0:
        print(f"{step}: {loss.item():.3f}")
