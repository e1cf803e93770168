"""A vision transformer trained with accelerate, as `accelerate launch` would start it."""

import argparse

import torch
from accelerate import Accelerator
from transformers import ViTConfig, ViTForImageClassification, get_cosine_schedule_with_warmup

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=32)
parser.add_argument("--layers", type=int, default=12)
parser.add_argument("--size", type=int, default=224)
parser.add_argument("--accumulation", type=int, default=1)
options = parser.parse_args()


class Pictures(torch.utils.data.Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, i):
        return {"pixel_values": torch.zeros(3, options.size, options.size), "labels": i % 1000}


accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=options.accumulation, log_with=None)
model = ViTForImageClassification(ViTConfig(num_labels=1000, num_hidden_layers=options.layers, image_size=options.size))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.05)
loader = torch.utils.data.DataLoader(Pictures(), batch_size=options.batch, shuffle=True, num_workers=8, drop_last=True)
schedule = get_cosine_schedule_with_warmup(optimizer, 100, 10_000)
model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
model.train()
for step, batch in enumerate(loader):
    with accelerator.accumulate(model):
        loss = model(**batch).loss
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    if step % 100 == 0:
        accelerator.print(f"{step}: {accelerator.gather(loss.detach()).mean().item():.4f}")
        accelerator.save_state("checkpoint")
