"""Examples of our own, and a few of archives, tried as they are: what each gave, and how long the answer took.

Scripts as published are those of `public`. Scripts of other projects come from their archives on PyPI, which are fetched,
or are those of an installed package; those in `examples/` are ours, in the style of the projects
they name. Libraries that a script imports must be installed.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import foretell
from foretell_bench.checkout import EXAMPLES

_IGNITE: Final = "pytorch-ignite==0.5.5"
_SCHEDULE_FREE: Final = "schedulefree==1.4.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A script or configuration: of an archive, of an installed package or of our examples, and its arguments."""

    project: str
    path: str
    archive: str | None = None
    package: str | None = None
    arguments: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)  # of a configuration
    on: str = "h100-sxm"
    fake_data: bool = False


def _ignite(path: str, *arguments: str) -> Example:
    return Example(
        project="pytorch-ignite", path=f"examples/{path}", archive=_IGNITE, arguments=arguments, fake_data=True
    )


def _ours(project: str, path: str, *arguments: str, on: str = "h100-sxm", fake_data: bool = False) -> Example:
    return Example(project=project, path=f"scripts/{path}", arguments=arguments, on=on, fake_data=fake_data)


def _config(project: str, path: str, on: str, **settings: str) -> Example:
    return Example(project=project, path=f"configs/{path}", settings=settings, on=on)


EXAMPLE_JOBS: Final = {
    "mnist": _ignite("mnist/mnist.py"),
    "mnist, wandb": _ignite("mnist/mnist_with_wandb_logger.py"),
    "mnist, resumed": _ignite("mnist/mnist_save_resume_engine.py"),
    "mnist, tensorboard": _ignite("mnist/mnist_with_tensorboard_logger.py"),
    "dcgan": _ignite("gan/dcgan.py", "--dataset", "cifar10", "--dataroot", "data", "--output-dir", "out"),
    "siamese": _ignite("siamese_network/siamese_network.py"),
    "cifar10": _ignite("cifar10/main.py", "run"),
    "cifar100 amp": _ignite("cifar100_amp_benchmark/benchmark_torch_cuda_amp.py", "data"),
    "cifar100 fp32": _ignite("cifar100_amp_benchmark/benchmark_fp32.py", "data"),
    "schedulefree mnist": Example(project="schedulefree", path="examples/mnist/main.py", archive=_SCHEDULE_FREE, fake_data=True),
    "sft": Example(
        project="trl", path="scripts/sft.py", package="trl", fake_data=True,
        arguments=("--model_name_or_path", "openai-community/gpt2", "--dataset_name", "trl-lib/Capybara", "--output_dir", "out",
                   "--per_device_train_batch_size", "2", "--report_to", "none"),
    ),
    "torchtitan trainer": Example(  # graphs of CUDA that it records itself run no Python: they are turned off
        project="torchtitan", path="train.py", package="torchtitan", on="8xh100-sxm", fake_data=True,
        arguments=("--module", "llama3", "--config", "llama3_debugmodel", "--hf_assets_path", "{tokenizer}",
                   "--training.disable_cuda_graphs"),
    ),
    "gpt": _ours("nanoGPT", "gpt.py", fake_data=True),
    "gpt, 8 ranks": _ours("nanoGPT", "gpt.py", on="8xh100-sxm", fake_data=True),
    "imagenet, amp, ema": _ours("torchvision", "imagenet.py", "--amp", "--model-ema", fake_data=True),
    "imagenet, 8 ranks, sync-bn": _ours("torchvision", "imagenet.py", "--sync-bn", on="8xh100-sxm", fake_data=True),
    "segmentation": _ours("torchvision", "segmentation.py"),
    "distillation": _ours("torchvision", "distill.py"),
    "gan": _ours("PyTorch's examples", "gan.py"),
    "word language model": _ours("PyTorch's examples", "word_language_model.py"),
    "hf trainer": _ours("Hugging Face Trainer", "hf_trainer.py", "--output_dir", "out", "--bf16", "--report_to", "none"),
    "causal lm": _ours("transformers", "causal_lm.py"),
    "accelerate vit": _ours("accelerate", "accelerate_vit.py", "--layers", "4"),
    "lightning mixer": _ours("Lightning", "lightning_mixer.py"),
    "lightning mixer, 4 ranks": _ours("Lightning", "lightning_mixer.py", on="4xh100-sxm"),
    "timm": _ours("timm", "timm_finetune.py"),
    "clip": _ours("OpenCLIP", "clip.py"),
    "diffusion": _ours("denoising diffusion", "diffusion.py"),
    "seq2seq": _ours("nn.Transformer", "seq2seq.py"),
    "deepspeed": _ours("DeepSpeed", "deepspeed_gpt.py", on="8xh100-sxm"),
    "fsdp2": _ours("FSDP2", "fsdp2.py", on="8xh100-sxm"),
    "deepspeed zero 2": _config("DeepSpeed", "ds_zero2.json", "8xh100-sxm", model="hf/gpt2", batch="4", seq="512"),
    "deepspeed zero 3, offload": _config("DeepSpeed", "ds_zero3_offload.json", "rtx-4090", model="hf/gpt2", batch="4", seq="512"),
    "accelerate fsdp": _config("accelerate", "accelerate_fsdp.yaml", "8xh100-sxm", model="hf/gpt2", batch="4", seq="256"),
    "lightning": _config("Lightning", "lightning.yaml", "16xa100-80g-sxm", model="hf/gpt2", batch="2", seq="128"),
    "training arguments": _config("Hugging Face Trainer", "training_args.json", "8xh100-sxm", layers="2"),
    "torchtitan": _config("torchtitan", "torchtitan_llama3_8b.toml", "8xh100-sxm", layers="2"),
    "megatron": _config("Megatron-LM", "megatron_gpt.sh", "64xh100-sxm"),
    "axolotl qlora": _config("axolotl", "axolotl_qlora.yml", "rtx-3090", layers="2"),
    "llama-factory lora": _config("LLaMA-Factory", "llamafactory_lora.yaml", "8xh100-sxm", layers="2"),
}  # fmt: skip


def run(out: Path, names: Sequence[str] = ()) -> None:
    results: dict[str, dict[str, object]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in names or list(EXAMPLE_JOBS):
            results[name] = answer(EXAMPLE_JOBS[name], Path(folder))
            print(name, json.dumps(results[name]), flush=True)
            out.write_text(json.dumps(results, indent=1), encoding="utf-8")
    given = [r for r in results.values() if "step" in r]
    print(
        f"{len(given)} of {len(results)} give a forecast, of {len({r['project'] for r in results.values()})} projects."
    )


def answer(example: Example, folder: Path) -> dict[str, object]:
    path = str(root_of(example, folder) / example.path)
    source: foretell.Script | str = path
    if path.endswith(".py"):
        arguments = tuple(a.format(tokenizer=tokenizer(folder)) if "{" in a else a for a in example.arguments)
        source = foretell.Script(path=path, arguments=arguments, fake_data=example.fake_data)
    started = time.monotonic()
    try:
        forecast = foretell.forecast(source, example.on, settings=example.settings or None)
    except foretell.ForetellError as error:
        return {"project": example.project, "error": str(error)[:500], "seconds": time.monotonic() - started}
    return {
        "project": example.project,
        "parameters": forecast.step.parameters if forecast.step else None,
        "ops": len(forecast.graph.ops),
        "plan": forecast.plan,
        "step": forecast.step_time.seconds,
        "seconds": time.monotonic() - started,
        "caveats": sorted({caveat.code for caveat in forecast.caveats}),
    }


def tokenizer(folder: Path) -> Path:
    """The folder of a tokenizer of letters, for scripts that read one from files."""
    import tokenizers

    made = folder / "tokenizer"
    made.mkdir(exist_ok=True)
    words = {word: i for i, word in enumerate(["<s>", "</s>", "<unk>", *map(chr, range(32, 127))])}
    letters = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    letters.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    letters.save(str(made / "tokenizer.json"))
    (made / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}), encoding="utf-8")
    return made


def root_of(example: Example, folder: Path) -> Path:
    if example.archive is not None:
        return unpacked(example.archive, folder)
    if example.package is not None:
        found = importlib.util.find_spec(example.package)
        return Path(found.origin).parent if found and found.origin else folder
    return EXAMPLES


def unpacked(archive: str, folder: Path) -> Path:
    """The folder of a source distribution."""
    kept = folder / archive
    if not kept.exists():
        kept.mkdir()
        how = ["-q", "--no-deps", "--no-binary", ":all:", "--no-build-isolation"]
        command = [sys.executable, "-m", "pip", "download", *how, "-d", str(kept), archive]
        subprocess.run(command, check=True)
        (found,) = kept.glob("*.tar.gz")
        with tarfile.open(found) as packed:
            packed.extractall(kept, filter="data")
    return next(path for path in kept.iterdir() if path.is_dir())
