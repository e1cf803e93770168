"""Published steps of devices that are not ours to measure, as questions to Foretell: a graph, a device, what it took.

What a source leaves open is taken as its own scripts have it by default, and said here: timm's benchmark trains with
momentum; torch before 2 loops over parameters and has no fused attention; the torchvision sweep times forward and
backward, no optimizer; NeuSight runs Hugging Face models in true fp32, attention written out.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from foretell.errors import ForetellError
from foretell.graph import Graph
from foretell.hardware import devices, recognise
from foretell.store.importers import read_public
from foretell.units import Seconds

MOST: Final = 24  # steps of each source and device, unless asked otherwise
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedStep:
    """One published step of one device. `settings` are those of a capture."""

    origin: str  # the public file
    device: str
    source: str
    settings: Mapping[str, str]
    seconds: Seconds
    config: Mapping[str, Any] | None = None  # of a Hugging Face model, where the source is one
    eager: bool = False  # attention as plain products: torch before 2
    updates: bool = True  # whether the optimizer's part was timed

    @property
    def trains(self) -> bool:
        return self.settings["optimizer"] != "none"


def published_steps(folder: Path, most: int = MOST) -> list[PublishedStep]:
    """Steps of every source in a folder, drawn evenly; which ones does not hang on the order of rows."""
    found: list[PublishedStep] = []
    for name, source in SOURCES.items():
        path = next((p for p in (folder / f"{name}.csv.gz", folder / f"{name}.csv") if p.is_file()), None)
        if path is not None:
            found += source(read_public(path).table.to_pylist(), most)
    return found


def graph_of(step: PublishedStep, say: Callable[[str], None] = lambda text: None) -> Graph | None:
    """The captured step; None where today's libraries no longer build it."""
    from foretell.capture import cache
    from foretell.capture.child import capture_source

    source, settings = _place(step), dict(step.settings)
    key = cache.key(source, settings | {"attention": "eager" if step.eager else "fused"})
    graph = cache.get(key)
    if graph is None:
        say(f"capturing {step.source} at batch {settings['batch']}")
        try:
            with _timm_attention(fused=not step.eager):
                graph, read = capture_source(source, settings)
        except ForetellError:
            return None
        cache.put(key, graph, read)
    if step.updates:
        return graph
    return replace(graph, ops=tuple(op for op in graph.ops if op.phase != "optimizer"))


@contextmanager
def _timm_attention(*, fused: bool) -> Iterator[None]:
    """timm writes attention out where its environment says so; the child that captures inherits ours."""
    name, before = "TIMM_FUSED_ATTN", os.environ.get("TIMM_FUSED_ATTN")
    os.environ[name] = "1" if fused else "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _place(step: PublishedStep) -> str:
    """What to capture: a name, or a configuration written where captures can read it."""
    if step.config is None:
        return step.source
    from foretell.capture.cache import folder

    text = json.dumps(dict(step.config), sort_keys=True)
    path = folder() / "configurations" / hashlib.sha256(text.encode()).hexdigest()[:12] / "config.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return str(path)


def _device(name: str) -> str | None:
    plain = name.lower().replace(" ", "-")
    if any(known.name == plain for known in devices()):
        return plain
    found = recognise(name.replace("_", " "))
    return None if found is None else found.name


def _order(*parts: str) -> bytes:
    return hashlib.sha256(" ".join(parts).encode()).digest()


# timm on RTX 3090 and 4090, in the newest torch of each device that is not compiled.

_TIMM_DEVICES: Final = {"rtx3090": "rtx-3090", "rtx4090": "rtx-4090"}


def _timm(rows: Sequence[Row], most: int, *, origin: str, torch: str, optimizer: str) -> Iterator[PublishedStep]:
    for theirs, ours in _TIMM_DEVICES.items():
        mine = [r for r in rows if r["device"] == theirs and r["torch"] == torch and not r["compiled"]]
        for row in _one_of_each((r for r in mine if r["batch"] and r["step_seconds"]), most):
            settings = {
                "batch": str(row["batch"]), "image_size": str(row["image_size"]), "precision": "amp-fp16",
                "channels_last": str(row["layout"] == "nhwc").lower(), "optimizer": optimizer,
            }  # fmt: skip
            yield PublishedStep(
                origin=origin, device=ours, source=f"timm/{row['model']}", settings=settings,
                seconds=row["step_seconds"], eager=torch.startswith("pt1"),
            )  # fmt: skip


def _timm_train(rows: Sequence[Row], most: int) -> Iterator[PublishedStep]:
    return _timm(rows, most, origin="timm_train", torch="pt112", optimizer="sgd-momentum-forloop")


def _timm_infer(rows: Sequence[Row], most: int) -> Iterator[PublishedStep]:
    return _timm(rows, most, origin="timm_infer", torch="pt240", optimizer="none")


def _one_of_each(rows: Iterable[Row], most: int) -> list[Row]:
    """Architectures in an order their names give, so that devices share most of them; one layout each."""
    best: dict[str, Row] = {}
    for row in sorted(rows, key=lambda r: (_order(r["model"]), _order(r["model"], r["layout"]))):
        best.setdefault(row["model"], row)
    return list(best.values())[:most]


# torchvision on RTX 2080 Ti and Titan Xp, in two precisions, trained and not.


def _torchvision(rows: Sequence[Row], most: int) -> Iterator[PublishedStep]:
    kept = [r for r in rows if r["gpus"] == 1 and r["precision"] in ("fp32", "fp16")]
    chosen = sorted({r["model"] for r in kept}, key=_order)[: max(1, most // 4)]
    places = {name: _device(name) for name in {r["device"] for r in kept}}
    seen = {(places[r["device"]], r["model"], r["precision"], r["mode"]): r for r in kept if r["model"] in chosen}
    for (device, model, precision, mode), row in seen.items():
        if device is not None:
            optimizer = "none" if mode == "infer" else "sgd"
            settings = {"batch": str(row["batch_per_gpu"]), "precision": precision, "optimizer": optimizer}
            yield PublishedStep(
                origin="cnn_many_gpus", device=device, source=f"torchvision/{model}", settings=settings,
                seconds=row["step_seconds"], updates=False,
            )  # fmt: skip


# Language models on the devices of NeuSight.

_GPT: Final[Mapping[str, tuple[int, int, int]]] = {  # width, layers, heads
    "gpt2_large": (1280, 36, 20), "gpt3_xl": (3072, 24, 24), "gpt3_27": (2560, 32, 32),
}  # fmt: skip


def _config(model: str) -> Mapping[str, Any] | None:
    """GPT-3 XL has 24 heads of 128, so it is 3072 wide: its times agree with that and not with the 2048 of its paper."""
    if model == "bert_large":
        return {"model_type": "bert", "architectures": ["BertForMaskedLM"], "hidden_size": 1024, "num_hidden_layers": 24,
                "num_attention_heads": 16, "intermediate_size": 4096, "attn_implementation": "eager"}  # fmt: skip
    if model in _GPT:
        width, layers, heads = _GPT[model]
        return {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": width, "n_layer": layers,
                "n_head": heads, "n_positions": 2048, "attn_implementation": "eager"}  # fmt: skip
    if model == "opt_13":
        return {"model_type": "opt", "architectures": ["OPTForCausalLM"], "hidden_size": 2048, "ffn_dim": 8192,
                "word_embed_proj_dim": 2048, "num_hidden_layers": 24, "num_attention_heads": 32,
                "attn_implementation": "eager"}  # fmt: skip
    return None  # Switch: which experts a token meets is not published


def _language(rows: Sequence[Row], most: int) -> Iterator[PublishedStep]:
    for row in rows:  # there are few
        config, device = _config(row["model"]), _device(row["device"])
        if config and device and not row["option"]:
            settings = {
                "batch": str(row["batch"]), "seq": str(row["sequence"]), "precision": "fp32",
                "optimizer": "none" if row["mode"] == "inf" else "sgd",
            }  # fmt: skip
            yield PublishedStep(
                origin="neusight_e2e", device=device, source=row["model"], settings=settings, config=config,
                seconds=row["step_seconds"], updates=False,
            )  # fmt: skip


SOURCES: Final[Mapping[str, Callable[[Sequence[Row], int], Iterator[PublishedStep]]]] = {
    "neusight_e2e": _language,
    "cnn_many_gpus": _torchvision,
    "timm_train": _timm_train,
    "timm_infer": _timm_infer,
}
