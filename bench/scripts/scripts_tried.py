"""Training scripts tried as they are: what each gave, and how long the answer took.

    python bench/scripts/scripts_tried.py OUT.json [NAME …]

Scripts of other projects come from their archives on PyPI, which are fetched; those in `examples/scripts` are ours, in the
style of the projects they name. Libraries that a script imports must be installed beside Foretell.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import foretell

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "scripts"
IGNITE, FREE = "pytorch-ignite==0.5.5", "schedulefree==1.4.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A script, from an archive or our examples, and how it is asked about."""

    path: str
    archive: str | None = None
    arguments: tuple[str, ...] = ()
    on: str = "h100-sxm"
    fake_data: bool = False


def _ignite(path: str, *arguments: str) -> Tried:
    return Tried(path=f"examples/{path}", archive=IGNITE, arguments=arguments, fake_data=True)


SCRIPTS = {
    "ignite mnist": _ignite("mnist/mnist.py"),
    "ignite mnist, wandb": _ignite("mnist/mnist_with_wandb_logger.py"),
    "ignite mnist, resumed": _ignite("mnist/mnist_save_resume_engine.py"),
    "ignite mnist, tensorboard": _ignite("mnist/mnist_with_tensorboard_logger.py"),
    "ignite dcgan": _ignite("gan/dcgan.py", "--dataset", "cifar10", "--dataroot", "data", "--output-dir", "out"),
    "ignite siamese": _ignite("siamese_network/siamese_network.py"),
    "ignite cifar10": _ignite("cifar10/main.py", "run"),
    "ignite cifar100 amp": _ignite("cifar100_amp_benchmark/benchmark_torch_cuda_amp.py", "data"),
    "ignite cifar100 fp32": _ignite("cifar100_amp_benchmark/benchmark_fp32.py", "data"),
    "schedulefree mnist": Tried(path="examples/mnist/main.py", archive=FREE, fake_data=True),
    "gpt": Tried(path="gpt.py", fake_data=True),
    "gpt, 8 ranks": Tried(path="gpt.py", on="8xh100-sxm", fake_data=True),
    "imagenet, amp, ema": Tried(path="imagenet.py", arguments=("--amp", "--model-ema"), fake_data=True),
    "imagenet, 8 ranks, sync-bn": Tried(path="imagenet.py", arguments=("--sync-bn",), on="8xh100-sxm", fake_data=True),
    "gan": Tried(path="gan.py"),
    "hf trainer": Tried(path="hf_trainer.py", arguments=("--output_dir", "out", "--bf16", "--report_to", "none")),
    "accelerate vit": Tried(path="accelerate_vit.py", arguments=("--layers", "4")),
    "lightning mixer": Tried(path="lightning_mixer.py"),
    "lightning mixer, 4 ranks": Tried(path="lightning_mixer.py", on="4xh100-sxm"),
    "diffusion": Tried(path="diffusion.py"),
    "seq2seq": Tried(path="seq2seq.py"),
}


def main() -> None:
    out, names = Path(sys.argv[1]), sys.argv[2:] or list(SCRIPTS)
    results: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            results[name] = answer(SCRIPTS[name], Path(folder))
            print(name, json.dumps(results[name]), flush=True)
            out.write_text(json.dumps(results, indent=1), encoding="utf-8")


def answer(tried: Tried, folder: Path) -> dict[str, object]:
    root = EXAMPLES if tried.archive is None else unpacked(tried.archive, folder)
    script = foretell.Script(path=str(root / tried.path), arguments=tried.arguments, fake_data=tried.fake_data)
    started = time.monotonic()
    try:
        forecast = foretell.forecast(script, tried.on)
    except foretell.ForetellError as error:
        return {"error": str(error)[:500], "seconds": time.monotonic() - started}
    return {
        "ops": len(forecast.graph.ops),
        "plan": forecast.plan,
        "step": forecast.step_time.seconds,
        "seconds": time.monotonic() - started,
        "caveats": sorted({caveat.code for caveat in forecast.caveats}),
    }


def unpacked(archive: str, folder: Path) -> Path:
    """The folder of a source distribution."""
    kept = folder / archive
    if not kept.exists():
        kept.mkdir()
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "-q",
            "--no-deps",
            "--no-binary",
            ":all:",
            "-d",
            kept,
            archive,
        ]
        subprocess.run(command, check=True)
        (found,) = kept.glob("*.tar.gz")
        with tarfile.open(found) as packed:
            packed.extractall(kept, filter="data")
    return next(path for path in kept.iterdir() if path.is_dir())


if __name__ == "__main__":
    main()
