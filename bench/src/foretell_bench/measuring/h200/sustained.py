"""How much slower a device gets once it is warm: steps run for most of a minute, compared with their first third of a second.

The dataset's steps were timed for a third of a second each. A board that reaches its power limit lowers its clock, so jobs
that run for hours may be slower than that. Each line: seconds per step when cold and when warm, clock and watts.
"""

from __future__ import annotations

import json
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import torch
from torch import nn

REST: Final = 4.0  # seconds of idling before each
FIRST: Final = 0.3  # seconds that the dataset times a step for


def product(size: int) -> Callable[[], object]:
    a, b = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    return lambda: a @ b


def decoder(layers: int, width: int, inner: int, heads: int, batch: int, length: int) -> Callable[[], object]:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=width, intermediate_size=inner, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=max(heads // 4, 1), vocab_size=32000, use_cache=False, max_position_embeddings=length,
    )  # fmt: skip
    model: nn.Module = LlamaForCausalLM(config)
    model.to("cuda", torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    tokens = torch.randint(0, 32000, (batch, length), device="cuda")

    def step() -> None:
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def image(name: str, batch: int, tf32: bool = False) -> Callable[[], object]:
    import torchvision

    model = getattr(torchvision.models, name)().cuda().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=True)
    images = torch.randn(batch, 3, 224, 224, device="cuda").to(memory_format=torch.channels_last)
    labels = torch.randint(0, 1000, (batch,), device="cuda")

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16, enabled=not tf32):
            loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def copies(elements: int) -> Callable[[], object]:
    x = torch.randn(elements, device="cuda", dtype=torch.bfloat16)
    return lambda: torch.add(x, 1.0)


STEPS: Final[dict[str, Callable[[], Callable[[], object]]]] = {
    "product 8192, bf16": lambda: product(8192),
    "product 2048, bf16": lambda: product(2048),
    "decoder 4 x 4096, bf16": lambda: decoder(4, 4096, 14336, 32, 2, 4096),
    "decoder 24 x 1024, bf16": lambda: decoder(24, 1024, 2816, 16, 8, 2048),
    "resnet50, amp-bf16": lambda: image("resnet50", 256),
    "resnet50, fp32 with tf32 convolutions": lambda: image("resnet50", 128, tf32=True),
    "vit_l_16, amp-bf16": lambda: image("vit_l_16", 64),
    "add, bf16": lambda: copies(2**30),
}


class Sampler(threading.Thread):
    """Clock, power and temperature of the first device, twenty times a second."""

    def __init__(self) -> None:
        import pynvml  # on machines that have a device to measure

        super().__init__(daemon=True)
        pynvml.nvmlInit()
        self.nvml = pynvml
        self.handle, self.on = pynvml.nvmlDeviceGetHandleByIndex(0), True
        self.samples: list[tuple[float, int, float, int]] = []  # when, MHz, watts, degrees Celsius

    def run(self) -> None:
        while self.on:
            clock = self.nvml.nvmlDeviceGetClockInfo(self.handle, self.nvml.NVML_CLOCK_SM)
            watts = self.nvml.nvmlDeviceGetPowerUsage(self.handle) / 1e3
            celsius = self.nvml.nvmlDeviceGetTemperature(self.handle, self.nvml.NVML_TEMPERATURE_GPU)
            self.samples.append((time.monotonic(), clock, watts, celsius))
            time.sleep(0.05)


def measured(make: Callable[[], Callable[[], object]], seconds: float) -> dict[str, object]:
    step = make()
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    time.sleep(REST)
    sampler = Sampler()
    sampler.start()
    rounds: list[tuple[float, float]] = []  # since the beginning, seconds per step
    begin = time.monotonic()
    step()
    torch.cuda.synchronize()
    last = time.monotonic()
    count = max(1, round(0.05 / (last - begin)))
    while last - begin < seconds:
        for _ in range(count):
            step()
        torch.cuda.synchronize()
        now = time.monotonic()
        rounds.append((now - begin, (now - last) / count))
        last = now
    sampler.on = False
    cold = statistics.median(each for at, each in rounds if at < FIRST + rounds[0][0])
    warm = statistics.median(each for at, each in rounds if at > seconds / 2)
    clocks = [s[1:] for s in sampler.samples if s[0] - begin > seconds / 2]
    first = [s[1:] for s in sampler.samples if s[0] - begin < FIRST + 0.2]
    return {
        "cold": cold, "warm": warm, "warm_over_cold": warm / cold,
        "clock_mhz": [max(s[0] for s in first), statistics.median(s[0] for s in clocks)],
        "watts": [max(s[1] for s in first), statistics.median(s[1] for s in clocks)],
        "celsius": clocks[-1][2],
    }  # fmt: skip


def run(out: Path, seconds: float = 25.0) -> None:
    results = {}
    for name, make in STEPS.items():
        results[name] = measured(make, seconds)
        print(name, json.dumps(results[name]), flush=True)
        torch.cuda.empty_cache()
        out.write_text(json.dumps(results, indent=1) + "\n")
