"""Ten jobs, each as a script that is run as it is and as a Workload written by hand: their steps, op for op.

A script makes its batch on the device, so that the op that draws it is all that may be more than the Workload has.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch

import foretell
from foretell.sources.named.torchvision_ops import make_torchvision_importable

MAKES_BATCH = {"aten.randn.default", "aten.randint.low", "aten.randint.default", "aten.rand.default"}
IMPORTS = "import timm, torch, torchvision, transformers\nfrom torch import nn\n"
PICTURES = "x, y = torch.randn(8, 3, 64, 64, device='cuda'), torch.randint(10, (8,), device='cuda')"
TOKENS = "x = torch.randint(1000, (4, 64), device='cuda')"
GPT = "transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=2, n_embd=128, n_head=2, vocab_size=1000, use_cache=False))"
LLAMA = (
    "transformers.LlamaForCausalLM(transformers.LlamaConfig(num_hidden_layers=2, hidden_size=128, intermediate_size=256, "
    "num_attention_heads=2, num_key_value_heads=1, vocab_size=1000, use_cache=False))"
)
LANGUAGE = "loss = model(input_ids=x, labels=x).loss"
VISION = "loss = nn.functional.cross_entropy(model(x), y)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A model's source, the script around it, and what the Workload says instead of it."""

    model: str
    loop: str
    workload: dict[str, Any]
    loss: str = VISION
    batch: str = PICTURES
    arguments: dict[str, Any] = field(default_factory=dict)  # of the Script

    def script(self) -> str:
        loop = self.loop.format(batch=self.batch, loss=self.loss)
        return f"{IMPORTS}model = {self.model}\n{loop}"

    def by_hand(self, name: str) -> foretell.Workload:
        return foretell.Workload(
            name=name,
            model=lambda: _after(f"model = {self.model}", {}, ("model",))["model"],
            batch=lambda: _after(self.batch.replace(", device='cuda'", ""), {}, ("x", "y")),
            loss=lambda model, batch: _after(self.loss, {"model": model, **batch}, ("loss",))["loss"],
            **self.workload,
        )


def _after(source: str, known: dict[str, Any], wanted: tuple[str, ...]) -> dict[str, Any]:
    """What names stand for once the source has run, in the process that captures: libraries load there."""
    make_torchvision_importable()
    space = dict(known)
    exec(IMPORTS + source, space)
    return {name: space[name] for name in wanted if name in space}


def _plain(optimizer: str, *, before: str = "", clip: str = "", micro: int = 1) -> str:
    """A loop as most scripts have it."""
    return f"""
model.cuda().train()
{before}
optimizer = {optimizer}
for step in range(9):
    for micro in range({micro}):
        {{batch}}
        {{loss}}
        (loss / {micro}).backward()
    {clip}
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
"""


def _optimizer(kind: Callable[..., Any], **how: Any) -> Callable[[Any], Any]:
    return lambda parameters: kind(parameters, **how)


CLIP = "nn.utils.clip_grad_norm_(model.parameters(), 1.0)"
SCALED = """
model.cuda().train()
optimizer, scaler = torch.optim.AdamW(model.parameters()), torch.amp.GradScaler()
for step in range(9):
    {batch}
    with torch.autocast("cuda", dtype=torch.float16):
        {loss}
    scaler.scale(loss / 1).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
"""
CAST = """
model.cuda().train()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(9):
    {batch}
    with torch.autocast("cuda", dtype=torch.bfloat16):
        {loss}
    (loss / 1).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
"""
PARALLEL = "torch.distributed.init_process_group('nccl'); model = nn.parallel.DistributedDataParallel(model)"
SHARDED = """from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
torch.distributed.init_process_group('nccl')
for layer in model.transformer.h:
    fully_shard(layer, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
fully_shard(model, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))"""
DEEPSPEED = """
import deepspeed
config = {{"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 3, "gradient_clipping": 1.0,
          "bf16": {{"enabled": True}}, "zero_optimization": {{"stage": 2}}, "optimizer": {{"type": "AdamW"}}}}
model, optimizer, _, _ = deepspeed.initialize(model=model, config=config)
for step in range(30):
    {batch}
    {loss}
    model.backward(loss)
    model.step()
"""
EIGHT: Final[dict[str, Any]] = {"processes": 8}
TEXT: Final[dict[str, Any]] = {"loss": LANGUAGE, "batch": TOKENS}
JOBS: Final = {
    "resnet18, SGD": Job(
        model="torchvision.models.resnet18(num_classes=10)",
        loop=_plain("torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)"),
        workload={"optimizer": _optimizer(torch.optim.SGD, lr=0.1, momentum=0.9), "precision": "torch-fp32"},
    ),
    "mobilenet, RMSprop, DDP": Job(
        model="torchvision.models.mobilenet_v3_small(num_classes=10)",
        loop=_plain("torch.optim.RMSprop(model.parameters())", before=PARALLEL),
        workload={"optimizer": torch.optim.RMSprop, "precision": "torch-fp32"},
        arguments=EIGHT,
    ),
    "vit, bf16 autocast, clipped": Job(
        model="timm.create_model('vit_tiny_patch16_224', img_size=64, num_classes=10)",
        loop=CAST,
        workload={"optimizer": torch.optim.AdamW, "precision": "amp-bf16", "clip_grad_norm": 1.0},
    ),
    "convnext, fp16 scaled": Job(
        model="timm.create_model('convnext_atto', num_classes=10)",
        loop=SCALED,
        workload={"optimizer": torch.optim.AdamW, "precision": "amp-fp16"},
    ),
    "gpt2, accumulated": Job(
        model=GPT,
        loop=_plain("torch.optim.AdamW(model.parameters(), fused=True)", clip=CLIP, micro=4),
        workload={
            "optimizer": _optimizer(torch.optim.AdamW, fused=True), "precision": "torch-fp32", "clip_grad_norm": 1.0,
            "grad_accumulation": 4,
        },
        **TEXT,
    ),
    "llama, bf16": Job(
        model=LLAMA,
        loop=_plain("torch.optim.Adam(model.parameters())", before="model.to(torch.bfloat16)"),
        workload={"optimizer": torch.optim.Adam, "precision": "bf16"},
        **TEXT,
    ),
    "llama, tf32, Adafactor": Job(
        model=LLAMA,
        loop=_plain("torch.optim.Adafactor(model.parameters())", before="torch.set_float32_matmul_precision('high')"),
        workload={"optimizer": torch.optim.Adafactor, "precision": "tf32"},
        **TEXT,
    ),
    "lstm": Job(
        model="nn.LSTM(32, 64, 2, batch_first=True)",
        loop=_plain("torch.optim.Adagrad(model.parameters())"),
        batch="x = torch.randn(4, 16, 32, device='cuda')",
        loss="loss = model(x)[0].square().mean()",
        workload={"optimizer": torch.optim.Adagrad, "precision": "torch-fp32"},
    ),
    "gpt2, FSDP2's policy": Job(
        model=GPT,
        loop=_plain("torch.optim.AdamW(model.parameters())", before=SHARDED, micro=2),
        workload={
            "optimizer": torch.optim.AdamW, "precision": "parameters:fp32/compute:bf16", "grad_accumulation": 2,
        },
        arguments=EIGHT,
        **TEXT,
    ),
    "gpt2, DeepSpeed": Job(
        model=GPT,
        loop=DEEPSPEED,
        workload={
            "optimizer": _optimizer(torch.optim.AdamW, fused=True), "precision": "parameters:bf16/master:fp32",
            "grad_accumulation": 3, "clip_grad_norm": 1.0,
        },
        arguments=EIGHT,
        **TEXT,
    ),
}  # fmt: skip


def run(names: Sequence[str] = ()) -> None:
    same, names = 0, names or list(JOBS)
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            path = Path(folder) / "train.py"
            path.write_text(JOBS[name].script(), encoding="utf-8")
            ran = ops(foretell.capture_graph(foretell.Script(path=str(path), **JOBS[name].arguments), cache=False))
            written = ops(foretell.capture_graph(JOBS[name].by_hand(name)))
            first = next((i for i, (a, b) in enumerate(zip(ran, written, strict=False)) if a != b), None)
            same += ran == written
            print(
                f"{name}: {len(ran)} and {len(written)} ops, "
                + ("the same" if ran == written else f"differ at {first}")
            )
            if ran != written and first is not None:
                print(f"  script   {ran[first][0]}\n  workload {written[first][0]}")
    print(f"{same} of {len(names)} are the same, op for op.")


def ops(graph: foretell.Graph) -> list[tuple[object, ...]]:
    return [
        (op.target, op.signature.inputs, op.signature.outputs, op.times)
        for op in graph.ops
        if op.target not in MAKES_BATCH
    ]
