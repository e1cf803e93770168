"""A transformer sharded with FSDP2, as torch's own tutorials do it: a mesh, a policy of mixed precision, no wrapper."""

import os

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

WIDTH, LENGTH, WORDS = 768, 512, 32_000


class Model(nn.Module):
    def __init__(self, layers=8):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 12, 4 * WIDTH, 0.0, "gelu", batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens):
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.size(1), device=tokens.device)
        x = self.words(tokens) + self.places(torch.arange(tokens.size(1), device=tokens.device))
        for block in self.blocks:
            x = block(x, src_mask=mask, is_causal=True)
        return self.head(self.norm(x))


torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
mesh = init_device_mesh("cuda", (int(os.environ.get("WORLD_SIZE", 1)),))
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
model = Model()
for block in model.blocks:
    fully_shard(block, mesh=mesh, mp_policy=policy)
fully_shard(model, mesh=mesh, mp_policy=policy)
model.cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
for step in range(1000):
    tokens = torch.randint(WORDS, (8, LENGTH), device="cuda")
    logits = model(tokens)
    loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten())
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    if step % 100 == 0 and torch.distributed.get_rank() == 0:
        print(step, loss.item())
