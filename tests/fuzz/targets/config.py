"""A Hugging Face config.json with changed and damaged contents; what is read is made a workload. Building it is a child's."""

from __future__ import annotations

import json
import random
import tempfile
from importlib.util import find_spec
from pathlib import Path

from foretell.sources.resolve import load_workload
from tests.fuzz.mutate import change, damaged

if find_spec("transformers") is None:
    raise ModuleNotFoundError("there is nothing to test", name="transformers")
QUICK_WEIGHT = 0.25  # a case takes a while
CONFIGS = (
    {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 100,
     "num_hidden_layers": 2, "rope_scaling": {"factor": 8.0, "type": "linear"}, "_name_or_path": "meta/tiny", "torch_dtype": "bfloat16"},
    {"architectures": ["BertForMaskedLM"], "model_type": "bert", "hidden_size": 64, "layer_types": ["a", "b"], "id2label": {"0": "x"}},
    {"model_type": "vit", "image_size": 32, "patch_size": 8, "num_labels": 10},
)  # fmt: skip
BOMBS = (
    b"[" * 200_000,
    b'{"a":' * 100_000,
    b"[" + b"[]," * 1_500_000 + b"[]]",
    b'{"model_type":"' + b"x" * 2_000_000 + b'"}',
    b"",
    b"null",
)


def make(rng: random.Random) -> bytes:
    kind, config = rng.random(), json.loads(json.dumps(rng.choice(CONFIGS)))
    if kind < 0.02:
        return rng.choice(BOMBS)
    if kind < 0.2:
        return damaged(rng, json.dumps(config).encode())
    for _ in range(rng.choice((1, 1, 2, 4))):
        change(rng, config)
    return json.dumps(config).encode("utf-8", "surrogatepass")


def prepare() -> None:
    use(json.dumps(CONFIGS[0]).encode(), random.Random(0))


def use(data: bytes, rng: random.Random) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_bytes(data)
        assert load_workload(str(path), {"batch": "2"}).name
