"""Runs training scripts for real, unmodified, and measures their steps: seconds between updates, peak memory.

    python bench/scripts/scripts_on_device.py OUT.json [NAME …]

Needs torch and the libraries of the scripts, and nothing of Foretell. Each script runs in a process of its own with small
data made here, until so many steps are measured, and is then ended. The device is waited for before the first and after
the last of them only, as the script itself would. `host` measures what the host needs to make numbers and to copy them.
`scripts_beside.py` puts forecasts beside these measurements.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "scripts"
WARM, MEASURED = 8, 20
LIMIT = 45.0  # seconds per script, its start included

# Name → script and its arguments. `forecast` runs the same.
JOBS: dict[str, tuple[str, list[str]]] = {
    "gpt, amp-bf16": ("gpt.py", ["--gradient_accumulation_steps=2", "--eval_iters=1", "--compile=False"]),
    "gpt, amp-fp16": (
        "gpt.py",
        ["--gradient_accumulation_steps=1", "--batch_size=8", "--eval_iters=1", "--compile=False", "--dtype=float16"],
    ),
    "imagenet resnet18": ("imagenet.py", ["--data-path=imagenet", "--batch-size=64", "--workers=12"]),
    "imagenet resnet50 amp ema": (
        "imagenet.py",
        ["--data-path=imagenet", "--model=resnet50", "--batch-size=96", "--workers=12", "--amp", "--model-ema"],
    ),
    "gan": ("gan.py", ["--batch=256", "--width=128"]),
    "hf trainer, bf16": (
        "hf_trainer.py",
        ["--output_dir=out", "--bf16", "--per_device_train_batch_size=32", "--report_to=none", "--save_strategy=no"],
    ),
    "hf trainer, fp32 accumulated": (
        "hf_trainer.py",
        ["--output_dir=out", "--per_device_train_batch_size=16", "--gradient_accumulation_steps=2", "--report_to=none",
         "--save_strategy=no"],
    ),
    "accelerate vit": ("accelerate_vit.py", ["--batch=64"]),
    "lightning mlp mixer": ("lightning_mixer.py", ["--batch=64"]),
    "diffusion unet": ("diffusion.py", ["--batch=32"]),
    "seq2seq transformer": ("seq2seq.py", ["--batch=64"]),
    "timm convnext": ("timm_finetune.py", ["--batch-size=64"]),
    "causal lm": ("causal_lm.py", []),
    "causal lm, checkpointing": ("causal_lm.py", ["--batch=16", "--checkpointing"]),
    "segmentation": ("segmentation.py", ["--batch-size=16"]),
    "word language model": ("word_language_model.py", []),
    "clip": ("clip.py", []),
    "distillation": ("distill.py", []),
}  # fmt: skip
HOST = "host"


def main() -> None:
    out, names = Path(sys.argv[1]), sys.argv[2:] or [*JOBS, HOST]
    with tempfile.TemporaryDirectory() as folder:
        make_data(Path(folder))
        results: dict[str, object] = {}
        for name in names:
            results[name] = measured(name, folder)
            print(name, json.dumps(results[name]), flush=True)
            out.write_text(json.dumps(results, indent=1), encoding="utf-8")


def make_data(folder: Path) -> None:
    import numpy as np
    from PIL import Image

    tokens = folder / "data" / "shakespeare"
    tokens.mkdir(parents=True)
    for split in ("train", "val"):
        np.random.default_rng(0).integers(0, 50000, 500_000).astype(np.uint16).tofile(tokens / f"{split}.bin")
    picture = folder / "picture.jpg"
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)).save(picture)
    for label in range(1000):
        pictures = folder / "imagenet" / "train" / f"n{label:08}"
        pictures.mkdir(parents=True)
        for i in range(6):  # the same picture again and again, as links
            os.link(picture, pictures / f"{i}.jpg")


def measured(name: str, folder: str) -> dict[str, object]:
    answer = Path(folder) / "answer.json"
    answer.unlink(missing_ok=True)
    started = time.monotonic()
    command = [sys.executable, __file__, "--host", str(answer)]
    if name != HOST:
        script, arguments = JOBS[name]
        command = [sys.executable, __file__, "--one", str(answer), str(EXAMPLES / script), *arguments]
    try:
        ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LIMIT, check=False)
        words = ended.stderr[-1500:]
    except subprocess.TimeoutExpired as late:
        words = f"took longer than {LIMIT} s: {(late.stderr or b'')[-500:]!r}"
    taken = {"wall": time.monotonic() - started}
    return {**taken, **(json.loads(answer.read_text()) if answer.exists() else {"error": words})}


def run_one(answer: Path, script: str, arguments: list[str]) -> None:
    """In a process of its own: the script, followed from update to update."""
    import runpy

    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    known: list[object] = []
    updates: list[int] = []
    waited: list[float] = []

    def after_update(optimizer: object, args: object, kwargs: object) -> None:
        if not any(optimizer is other for other in known):
            known.append(optimizer)
        which = next(i for i, other in enumerate(known) if other is optimizer)
        updates.append(which)
        steps = updates.count(len(known) - 1)  # a step ends with the last of them
        if which != len(known) - 1 or steps not in (WARM, WARM + MEASURED):
            return
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        waited.append(time.perf_counter())
        if steps == WARM + MEASURED:
            answer.write_text(json.dumps(facts((waited[-1] - waited[-2]) / MEASURED)))
            os._exit(0)
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()

    def facts(step: float) -> dict[str, object]:
        on = torch.cuda.is_available()
        return {
            "step": step,
            "allocated": torch.cuda.max_memory_allocated() if on else 0,
            "reserved": torch.cuda.max_memory_reserved() if on else 0,
            "device": torch.cuda.get_device_name() if on else "cpu",
            "torch": torch.__version__,
        }

    register_optimizer_step_post_hook(after_update)
    sys.argv = [script, *arguments]
    sys.path[0] = str(Path(script).parent)
    runpy.run_path(script, run_name="__main__")


def measure_host(answer: Path) -> None:
    """Seconds of what scripts do on the host in a step, one process alone."""
    import torch

    small, large = 2**10, 2**22
    makers = {
        "randn": lambda n: torch.randn(n), "rand": lambda n: torch.rand(n), "randint": lambda n: torch.randint(1000, (n,)),
        "randperm": lambda n: torch.randperm(n), "bernoulli": lambda n: torch.empty(n).bernoulli_(0.5),
        "zeros": lambda n: torch.zeros(n), "full": lambda n: torch.full((n,), 0.5),
    }  # fmt: skip
    found: dict[str, float] = {}
    for threads in (1, torch.get_num_threads()):
        torch.set_num_threads(threads)
        for name, make in makers.items():
            for n in (small, large):
                found[f"{name} {n} {threads}"] = seconds_of(lambda make=make, n=n: make(n))
        for n in (small, large):
            x = torch.ones(n)
            rows = [torch.ones(n // 32) for _ in range(32)]
            found[f"clone {n} {threads}"] = seconds_of(x.clone)
            found[f"stack {n} {threads}"] = seconds_of(lambda rows=rows: torch.stack(rows))
            found[f"mul {n} {threads}"] = seconds_of(lambda x=x: x * 2.0)
            found[f"bf16 {n} {threads}"] = seconds_of(lambda x=x: x.to(torch.bfloat16))
            if torch.cuda.is_available():
                found[f"to device {n} {threads}"] = seconds_of(lambda x=x: x.cuda())
                pinned = x.pin_memory()
                found[f"pinned to device {n} {threads}"] = seconds_of(lambda x=pinned: x.cuda())
    answer.write_text(json.dumps(found))


def seconds_of(work: Callable[[], object]) -> float:
    """The median of some runs, after a first."""
    work()
    taken = []
    for _ in range(15):
        started = time.perf_counter()
        work()
        taken.append(time.perf_counter() - started)
    return sorted(taken)[len(taken) // 2]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--host"]:
        measure_host(Path(sys.argv[2]))
    elif sys.argv[1:2] == ["--one"]:
        run_one(Path(sys.argv[2]), sys.argv[3], sys.argv[4:])
    else:
        main()
