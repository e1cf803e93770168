"""A small GPT under DeepSpeed: ZeRO, bf16 and accumulation come from its configuration."""

import argparse

import deepspeed
import torch
from transformers import GPT2Config, GPT2LMHeadModel

parser = argparse.ArgumentParser()
parser.add_argument("--layers", type=int, default=12)
parser.add_argument("--length", type=int, default=512)
parser.add_argument("--stage", type=int, default=2)
parser = deepspeed.add_config_arguments(parser)
options = parser.parse_args()
config = {
    "train_micro_batch_size_per_gpu": 8,
    "gradient_accumulation_steps": 4,
    "gradient_clipping": 1.0,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": options.stage, "overlap_comm": True},
    "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "weight_decay": 0.1}},
}


class Tokens(torch.utils.data.Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, i):
        return torch.randint(50_257, (options.length,))


deepspeed.init_distributed()
model = GPT2LMHeadModel(GPT2Config(n_layer=options.layers, n_positions=options.length, use_cache=False))
engine, optimizer, loader, _ = deepspeed.initialize(
    args=options, model=model, model_parameters=model.parameters(), training_data=Tokens(), config=config
)
for step, tokens in enumerate(loader):
    tokens = tokens.to(engine.device)
    loss = engine(input_ids=tokens, labels=tokens).loss
    engine.backward(loss)
    engine.step()
    if step % 100 == 0:
        print(f"{step}: {loss.item():.3f}")
        engine.save_checkpoint("checkpoints")
