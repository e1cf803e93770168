"""Pretraining a small Llama with a plain loop: transformers' model in bf16, checkpointing, fused AdamW, packed tokens."""

import argparse
import math

import torch
from transformers import LlamaConfig, LlamaForCausalLM

parser = argparse.ArgumentParser()
parser.add_argument("--layers", type=int, default=16)
parser.add_argument("--hidden", type=int, default=1024)
parser.add_argument("--length", type=int, default=1024)
parser.add_argument("--batch", type=int, default=8)
parser.add_argument("--checkpointing", action="store_true")
options = parser.parse_args()


class Packed(torch.utils.data.IterableDataset):
    """Documents one after the other, cut into pieces of one length."""

    def __iter__(self):
        kept = torch.empty(0, dtype=torch.long)
        while True:
            while len(kept) <= options.length:
                kept = torch.cat([kept, torch.randint(32_000, (700,))])
            yield kept[: options.length]
            kept = kept[options.length :]


def main():
    device = "cuda"
    config = LlamaConfig(
        hidden_size=options.hidden, num_hidden_layers=options.layers, num_attention_heads=options.hidden // 64,
        num_key_value_heads=options.hidden // 256, intermediate_size=int(2.75 * options.hidden), vocab_size=32_000,
        max_position_embeddings=options.length, use_cache=False,
    )  # fmt: skip
    model = LlamaForCausalLM(config).to(device=device, dtype=torch.bfloat16)
    if options.checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}], lr=3e-4, fused=True
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5 * (1 + math.cos(math.pi * step / 10_000)))
    model.train()
    for step, tokens in enumerate(torch.utils.data.DataLoader(Packed(), batch_size=options.batch)):
        tokens = tokens.to(device)
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 20 == 0:
            print(f"{step}: loss {loss.item():.3f}, norm {norm.item():.2f}")


if __name__ == "__main__":
    main()
