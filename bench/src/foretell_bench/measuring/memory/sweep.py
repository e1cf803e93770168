"""Sweeps single operators on a CUDA device for the memory they take inside: convolutions, RNNs, attention.

Shapes are drawn at random from what real networks use; rows are appended as they are measured. `--strange` draws
convolutions alone, as networks nobody named have them: any width, one to three dimensions, grouped, transposed, and
half of them in fp32. One process has all of the fp32 ones of one and two dimensions, whose workspaces may fill the device.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import random
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch

_CHANNELS_IN: Final = (
    3, 4, 16, 24, 32, 40, 48, 64, 64, 80, 96, 112, 128, 128, 160, 192, 256, 256, 320, 384, 512, 512, 640, 768, 1024, 1280,
    1536, 2048,
)  # fmt: skip
_CHANNELS_OUT: Final = (
    8, 16, 24, 32, 40, 64, 64, 96, 128, 128, 160, 192, 256, 256, 320, 384, 512, 512, 768, 1000, 1024, 1280, 2048,
)  # fmt: skip
DTYPES: Final = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def rise(call: Callable[[], object]) -> tuple[int, int]:
    """(bytes allocated and freed again, bytes kept) by a call on the device."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    kept = call()
    torch.cuda.synchronize()
    after, peak = torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()
    del kept
    return peak - after, after - before


def convolution(r: random.Random) -> dict[str, Any]:
    kernel = r.choice([1, 1, 1, 3, 3, 3, 3, 5, 7, 2, 4, 11, 16])
    depthwise = kernel > 1 and r.random() < 0.2
    groups = 1
    cin = r.choice(_CHANNELS_IN)
    cout = r.choice(_CHANNELS_OUT)
    if kernel >= 11:
        cin, cout = 3, r.choice([64, 96, 384, 768, 1024])
    if depthwise:
        cout = groups = cin
    elif r.random() < 0.12:
        groups = r.choice([2, 4, 8, 16, 32])
        cin, cout = max(cin // groups, 4) * groups, max(cout // groups, 4) * groups
    rank = r.choices([2, 1, 3], [0.86, 0.07, 0.07])[0]
    side = (
        r.choice([1, 4, 7, 8, 14, 16, 17, 28, 32, 35, 56, 64, 65, 112, 128, 224, 256])
        if rank == 2
        else r.choice([7, 14, 28, 56])
    )
    size = (side,) * rank if rank > 1 else (r.choice([128, 499, 1500, 4096, 8192]),)
    size = tuple(max(s, kernel) for s in size)
    stride = r.choice([1, 1, 1, 2]) if kernel < 11 else kernel if kernel == 16 else 4
    dilation = r.choice([1] * 9 + [2, 4]) if kernel == 3 else 1
    batch = r.choice([1, 2, 4, 8, 16, 32, 32, 64, 64, 128, 128, 256, 512])
    return {
        "op": "convolution",
        "dtype": r.choice(["fp32", "tf32", "bf16", "bf16", "fp16"]),
        "channels_last": rank == 2 and r.random() < 0.35,
        "x": (batch, cin, *size),
        "w": (cout, cin // groups, *(kernel,) * rank),
        "stride": stride,
        "dilation": dilation,
        "padding": r.choice([dilation * (kernel // 2)] * 4 + [0]),
        "groups": groups,
        "transposed": rank == 2 and groups == 1 and kernel in (2, 4) and r.random() < 0.6,
    }


def strange_convolution(r: random.Random, *, by_fft: bool) -> dict[str, Any]:
    """`by_fft`: where cuDNN may transform whole images, which can take tens of gigabytes."""

    def between(low: float, high: float) -> int:
        return round(math.exp(r.uniform(math.log(low), math.log(high))))

    rank = r.choice([1, 1, 2]) if by_fft else r.choice([1, 2, 3, 3])
    dtype = "fp32" if by_fft else r.choice(["tf32", "bf16", "fp16", *(["fp32"] * 3 if rank == 3 else [])])
    kernel = r.choice([1, 2, 3, 3, 3, 3, 4, 5, 5, 7, 9] if rank < 3 else [1, 2, 3, 3, 3, 4, 5])
    kind = r.choice(["plain"] * (5 if by_fft else 2) + ["grouped", "depthwise", "dilated", "strided", "transposed"])
    cin, cout, groups = between(1, 640), between(2, 640), 1
    if kind == "grouped":
        groups = r.choice([2, 2, 3, 4, 5, 8, 16, 32])
        cin, cout = (max(1, n // groups) * groups for n in (cin, cout))
    if kind == "depthwise":
        groups, cout = cin, cin * r.choice([1, 1, 1, 2])
    lengths = {1: (8, 320) if by_fft and r.random() < 0.7 else (16, 8192), 2: (4, 256), 3: (4, 64)}
    side = between(*lengths[rank])
    size = (between(2, 32), side, side) if rank == 3 else (side,) * rank
    dilation = r.choice([2, 3, 4, 8]) if kind == "dilated" else 1
    batch = max(1, min(between(1, 1024), 2**27 // (max(cin, cout) * math.prod(size))))
    return {
        "op": "convolution",
        "dtype": dtype,
        "channels_last": rank == 2 and r.random() < 0.25,
        "x": (batch, cin, *size),
        "w": (cout, cin // groups, *(kernel,) * rank),
        "stride": r.choice([2, 2, 3, 4]) if kind in ("strided", "transposed") else 1,
        "dilation": dilation,
        "padding": r.choice([dilation * (kernel - 1) // 2] * 5 + [0]),
        "groups": groups,
        "transposed": kind == "transposed",
    }


def measure_convolution(c: dict[str, Any]) -> dict[str, Any] | None:
    batch, cin, *size = c["x"]
    cout, cin_group, *kernel = c["w"]
    rank = len(size)
    outs = [
        (s - 1) * c["stride"] - 2 * c["padding"] + k
        if c["transposed"]
        else (s + 2 * c["padding"] - c["dilation"] * (k - 1) - 1) // c["stride"] + 1
        for s, k in zip(size, kernel, strict=True)
    ]
    if min(outs) < 1:
        return None
    positions, area = math.prod(outs), math.prod(size)
    flops = 2 * batch * positions * cout * cin_group * kernel[0] ** rank
    item = 4 if c["dtype"] in ("fp32", "tf32") else 2
    if item * batch * (cin * area + cout * positions) > 3e9 or flops > 3e12:
        return None
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = c["dtype"] == "tf32"
    layout = torch.channels_last if c["channels_last"] else torch.contiguous_format
    dtype = DTYPES[c["dtype"]]
    x = torch.randn(c["x"], device="cuda", dtype=dtype).contiguous(memory_format=layout)
    shape = c["w"] if not c["transposed"] else (cin, cout, *kernel)
    w = torch.randn(shape, device="cuda", dtype=dtype).contiguous(memory_format=layout)
    rest = (
        [c["stride"]] * rank,
        [c["padding"]] * rank,
        [c["dilation"]] * rank,
        c["transposed"],
        [0] * rank,
        c["groups"],
    )
    conv, back = torch.ops.aten.convolution, torch.ops.aten.convolution_backward
    y = conv(x, w, None, *rest)
    result: dict[str, Any] = {"w": list(shape), "y": list(y.shape), "forward": rise(lambda: conv(x, w, None, *rest))}
    g = torch.randn_like(y)
    for name, mask in (
        ("both", [True, True, False]),
        ("weight", [False, True, False]),
        ("input", [True, False, False]),
    ):
        back(g, x, w, None, *rest, mask)
        result[name] = rise(partial(back, g, x, w, None, *rest, mask))
    return result


def rnn(r: random.Random) -> dict[str, Any]:
    return {
        "op": "rnn",
        "dtype": r.choice(["fp32", "tf32", "bf16", "fp16"]),
        "kind": r.choice(["LSTM", "GRU", "RNN"]),
        "batch": r.choice([1, 8, 32, 64, 128, 256]),
        "seq": r.choice([10, 35, 70, 128, 256]),
        "input": r.choice([32, 64, 128, 256, 512, 650, 1024]),
        "hidden": r.choice([64, 128, 256, 512, 650, 1024]),
        "layers": r.choice([1, 2, 3]),
        "bidirectional": r.random() < 0.3,
        "batch_first": r.random() < 0.7,
        "dropout": r.choice([0.0, 0.2]),
    }


def measure_rnn(c: dict[str, Any]) -> dict[str, Any]:
    torch.backends.cudnn.allow_tf32 = c["dtype"] == "tf32"
    dtype = DTYPES[c["dtype"]]
    net = (
        getattr(torch.nn, c["kind"])(
            c["input"],
            c["hidden"],
            c["layers"],
            batch_first=c["batch_first"],
            bidirectional=c["bidirectional"],
            dropout=c["dropout"] if c["layers"] > 1 else 0.0,
        )
        .cuda()
        .to(dtype)
    )
    net.flatten_parameters()
    shape = (c["batch"], c["seq"], c["input"]) if c["batch_first"] else (c["seq"], c["batch"], c["input"])
    x = torch.randn(shape, device="cuda", dtype=dtype, requires_grad=True)
    out = net(x)
    forward = rise(lambda: net(x))
    g = torch.randn_like(out[0])
    backward = rise(lambda: torch.autograd.grad(out[0], [x, *net.parameters()], g))
    return {
        "forward": forward,
        "backward": backward,
        "out": list(out[0].shape),
        "out_strides": list(out[0].stride()),
        "parameters": sum(p.numel() for p in net.parameters()),
    }


def attention(r: random.Random) -> dict[str, Any]:
    heads = r.choice([1, 3, 6, 8, 12, 16, 32])
    return {
        "op": "attention",
        "dtype": r.choice(["fp32", "bf16", "bf16", "fp16"]),
        "batch": r.choice([1, 2, 4, 8, 16, 32]),
        "heads": heads,
        "kv": r.choice([heads, heads, heads, max(heads // 4, 1)]),
        "seq": r.choice([16, 49, 77, 128, 197, 256, 257, 512, 577, 1024, 2048, 4096]),
        "dim": r.choice([32, 40, 64, 64, 64, 72, 80, 96, 128, 128, 256]),
        "causal": r.random() < 0.4,
        "mask": r.random() < 0.2,
        "packed": r.random() < 0.5,
        "backend": r.choice(["default", "default", "flash", "efficient"]),
    }


def measure_attention(c: dict[str, Any]) -> dict[str, Any] | None:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    if (
        c["heads"] % c["kv"]
        or c["batch"] * c["heads"] * c["seq"] * c["dim"] > 2**28
        or (c["mask"] and c["batch"] * c["seq"] ** 2 > 2**26)
    ):
        return None
    dtype = DTYPES[c["dtype"]]

    def make(heads: int) -> torch.Tensor:
        if c["packed"]:
            return (
                torch.randn(c["batch"], c["seq"], heads, c["dim"], device="cuda", dtype=dtype)
                .transpose(1, 2)
                .detach()
                .requires_grad_()
            )
        return torch.randn(c["batch"], heads, c["seq"], c["dim"], device="cuda", dtype=dtype, requires_grad=True)

    q, k, v = make(c["heads"]), make(c["kv"]), make(c["kv"])
    mask = torch.zeros(c["batch"], 1, c["seq"], c["seq"], device="cuda", dtype=dtype) if c["mask"] else None
    grouped = c["heads"] != c["kv"]
    causal = c["causal"] and not c["mask"]
    forced = {"flash": [SDPBackend.FLASH_ATTENTION], "efficient": [SDPBackend.EFFICIENT_ATTENTION]}.get(c["backend"])

    def call() -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, mask, 0.0, causal, enable_gqa=grouped)

    with sdpa_kernel(forced) if forced else nullcontext():
        out = call()
        forward = rise(call)
        g = torch.randn_like(out)
        backward = rise(lambda: torch.autograd.grad(out, [q, k, v], g, retain_graph=True))
        kind = type(out.grad_fn).__name__
    return {"forward": forward, "backward": backward, "kind": kind}


Draw = Callable[[random.Random], dict[str, Any]]
Measure = Callable[[dict[str, Any]], dict[str, Any] | None]


def worker(seed: int, seconds: float, path: Path, strange: bool) -> None:
    r = random.Random(seed)
    kinds: list[tuple[Draw, Measure]] = [
        *[(convolution, measure_convolution)] * 8,
        *[(attention, measure_attention)] * 3,
    ]
    if seed == 0:
        kinds = [(rnn, measure_rnn), (attention, measure_attention)]
    if strange:
        kinds = [(partial(strange_convolution, by_fft=seed == 0), measure_convolution)]
    end = time.time() + seconds
    with path.open("a") as file:
        while time.time() < end:
            draw, measure = r.choice(kinds)
            c = draw(r)
            began = time.time()
            try:
                result = measure(c)
            except (RuntimeError, torch.OutOfMemoryError) as error:
                result = {"error": str(error)[:160]}
            if result is not None:
                file.write(json.dumps({**c, **result, "seconds": round(time.time() - began, 3)}) + "\n")
                file.flush()
            torch.cuda.empty_cache()


def run(out: Path, seconds: float = 120.0, jobs: int = 4, *, strange: bool = False) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    parts = [out.with_suffix(f".{seed}.part") for seed in range(jobs)]
    processes = [
        multiprocessing.get_context("spawn").Process(target=worker, args=(seed, seconds, part, strange))
        for seed, part in enumerate(parts)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(seconds + 60)
        process.kill()
    with out.open("a") as file:
        for part in parts:
            if part.exists():
                file.write(part.read_text())
                part.unlink()
    print(f"{sum(1 for _ in out.open())} rows in {out}")
