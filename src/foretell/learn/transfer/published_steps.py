"""Published steps of devices that are not ours to measure: a graph, a device, the time it took.

What a source leaves open is taken as its own scripts have it by default, and said here: timm's benchmark trains with
momentum; torch before 2 loops over parameters (`cost.older_software` writes its attention out); with torch 2 norms are
timm's fast ones (steps take less than half-precision norms in fp32 would read and write); the torchvision sweep times
forward and backward, no optimizer, and with them the copy of the images from pageable memory and gradients set to zero one
by one; NeuSight runs Hugging Face models in true fp32, attention written out, BERT with its head of texts only where it is
trained, and adds gradients to those of the run before (`measure_e2e` of its tracing). Versions of torch are those their
documents name.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from foretell.errors import ForetellError
from foretell.graph import Graph
from foretell.hardware import Device, Host, devices, recognise
from foretell.store.importers import LeftOut, Row, Selection, public_file, public_rows, take
from foretell.units import Seconds

_PAGEABLE: Final = 6e9  # bytes per second to a device from memory that is not pinned
_ADDED: Final = 3  # moves of a gradient that is added to another: two are read, one is written
MAX_STEPS: Final = 24  # steps of each source and device, unless asked otherwise


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedStep:
    """One published step of one device. `settings` are those of a capture."""

    origin: str  # the public file
    device: str
    source: str
    settings: Mapping[str, str]
    seconds: Seconds
    config: Mapping[str, Any] | None = None  # of a Hugging Face model, where the source is one
    updates: bool = True  # whether the optimizer's part was timed
    torch: str = ""  # the version that ran it, where it is known
    feeds: bool = False  # whether the batch was copied to the device, and gradients set to zero, while it was timed
    adds_up: bool = False  # whether gradients were added to those of the step before

    @property
    def software(self) -> str | None:
        """As `Conditions` have it."""
        return f"torch-{self.torch}" if self.torch else None

    @property
    def trains(self) -> bool:
        return self.settings["optimizer"] != "none"


def published_steps(folder: Path, most: int = MAX_STEPS) -> dict[str, Selection[PublishedStep]]:
    """Steps of every source in a folder, drawn evenly, whatever the order of rows; what is not taken is counted."""
    found = {}
    for name, source in SOURCES.items():
        if public_file(folder, name) is not None:
            taken = take(public_rows(folder, name), partial(source.make, name))
            drawn = tuple(source.draw(taken.items, most))
            rest = {"not drawn": len(taken.items) - len(drawn)} if len(drawn) < len(taken.items) else {}
            found[name] = Selection(items=drawn, left_out={**taken.left_out, **rest})
    return found


def graph_of(step: PublishedStep, progress: Callable[[str], None] = lambda text: None) -> Graph | None:
    """The captured step; None where today's libraries no longer build it."""
    from foretell.capture import cache
    from foretell.capture.child import capture_source

    source, settings = _place(step), dict(step.settings)
    key = cache.key(source, settings)
    graph = cache.get(key)
    if graph is None:
        progress(f"capturing {step.source} at batch {settings['batch']}")
        try:
            graph, read = capture_source(source, settings)
        except ForetellError:
            return None
        cache.put(key, graph, read)
    if step.updates:
        return graph
    return replace(graph, ops=tuple(op for op in graph.ops if op.phase != "optimizer"))


def outside_step(step: PublishedStep, graph: Graph, host: Host, device: Device) -> Seconds:
    """What was timed with a step and is no part of it."""
    if step.adds_up and step.trains:
        return _ADDED * sum(s.nbytes for s in graph.storages if s.role == "parameter") / device.bandwidth
    if not step.feeds:
        return 0.0
    batch = sum(s.nbytes for s in graph.storages if s.role == "input")
    zeroed = sum(s.role == "parameter" for s in graph.storages) if step.trains else 0
    return batch / _PAGEABLE + zeroed * host.op_seconds


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


def _device(row: Row) -> str:
    title = row["device"].replace("_", " ")
    found, name = recognise(title), title.lower().replace(" ", "-")
    if found is None and name not in {known.name for known in devices()}:
        raise LeftOut(f"of a device that is not in the catalog: {title}")
    return found.name if found else name


def _order(*parts: str) -> bytes:
    return hashlib.sha256(" ".join(parts).encode()).digest()


# timm on RTX 3090 and 4090, in the newest torch that both have and that is not compiled.

_TIMM_DEVICES: Final = {"rtx3090": "rtx-3090", "rtx4090": "rtx-4090"}


def _timm(torch: str, optimizer: str, origin: str, row: Row) -> PublishedStep:
    if row["device"] not in _TIMM_DEVICES or row["torch"] != torch:
        raise LeftOut(f"not of torch {torch} on {' or '.join(_TIMM_DEVICES)}")
    if row["compiled"]:
        raise LeftOut("compiled")
    if not row["batch"] or not row["step_seconds"]:
        raise LeftOut("without a batch or a time")
    old = torch.startswith("pt1")
    return PublishedStep(
        origin=origin,
        device=_TIMM_DEVICES[row["device"]],
        source=f"timm/{row['model']}",
        settings={
            "batch": str(row["batch"]),
            "image_size": str(row["image_size"]),
            "precision": "amp-fp16",
            "channels_last": str(row["layout"] == "nhwc").lower(),
            "optimizer": optimizer,
            **({} if old else {"fast_norm": "true"}),
        },
        seconds=row["step_seconds"],
        torch=_version(torch),
    )


def _version(label: str) -> str:
    """1.12 of pt112, 2.4 of pt240, whose last digit is the patch."""
    major, minor = label[2], label[3:]
    return f"{major}.{minor if major == '1' else minor[0]}"


def _one_of_each(steps: Sequence[PublishedStep], most: int) -> list[PublishedStep]:
    """Architectures in an order their names give, so that devices share most of them; one layout each."""

    def order(step: PublishedStep) -> tuple[bytes, bytes]:
        model = step.source.removeprefix("timm/")
        return _order(model), _order(model, "nhwc" if step.settings["channels_last"] == "true" else "nchw")

    best: dict[str, dict[str, PublishedStep]] = {device: {} for device in _TIMM_DEVICES.values()}
    for step in sorted(steps, key=order):
        best[step.device].setdefault(step.source, step)
    return [step for those in best.values() for step in list(those.values())[:most]]


# torchvision on RTX 2080 Ti and Titan Xp, in two precisions, trained and not.


def _torchvision(origin: str, row: Row) -> PublishedStep:
    if row["gpus"] != 1:
        raise LeftOut("of several devices")
    if row["precision"] not in ("fp32", "fp16"):
        raise LeftOut(f"in {row['precision']}")
    optimizer = "none" if row["mode"] == "infer" else "sgd"
    return PublishedStep(
        origin=origin,
        device=_device(row),
        source=f"torchvision/{row['model']}",
        settings={"batch": str(row["batch_per_gpu"]), "precision": row["precision"], "optimizer": optimizer},
        seconds=row["step_seconds"],
        updates=False,
        feeds=True,
        torch="1.4",
    )


def _of_some_models(steps: Sequence[PublishedStep], most: int) -> list[PublishedStep]:
    """The last measurement of every setting, of models that their names choose."""
    names = sorted({s.source for s in steps}, key=lambda source: _order(source.removeprefix("torchvision/")))
    chosen = names[: max(1, most // 4)]
    last = {(s.device, s.source, s.settings["precision"], s.trains): s for s in steps if s.source in chosen}
    return list(last.values())


# Language models on the devices of NeuSight. GPT-3 XL has 24 heads of 128, so it is 3072 wide: its times agree with that
# and not with the 2048 of its paper.

_GPT: Final = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_positions": 2048}
_CONFIGS: Final[Mapping[str, Mapping[str, Any]]] = {
    "bert_large": {"model_type": "bert", "architectures": ["BertForMaskedLM"], "hidden_size": 1024, "num_hidden_layers": 24,
                   "num_attention_heads": 16, "intermediate_size": 4096},
    "gpt2_large": {**_GPT, "n_embd": 1280, "n_layer": 36, "n_head": 20},
    "gpt3_xl": {**_GPT, "n_embd": 3072, "n_layer": 24, "n_head": 24},
    "gpt3_27": {**_GPT, "n_embd": 2560, "n_layer": 32, "n_head": 32},
    "opt_13": {"model_type": "opt", "architectures": ["OPTForCausalLM"], "hidden_size": 2048, "ffn_dim": 8192,
               "word_embed_proj_dim": 2048, "num_hidden_layers": 24, "num_attention_heads": 32},
}  # fmt: skip

_CLASSIFIES: Final = {"bert_large": "BertForSequenceClassification"}  # what they are in inference


def _language(origin: str, row: Row) -> PublishedStep:
    if row["model"] not in _CONFIGS:
        raise LeftOut(f"of {row['model']}, of which is not published which experts a token meets")
    if row["option"]:
        raise LeftOut(f"with {row['option']}")
    config = {**_CONFIGS[row["model"]], "attn_implementation": "eager"}
    if row["mode"] == "inf" and row["model"] in _CLASSIFIES:
        config["architectures"] = [_CLASSIFIES[row["model"]]]
    return PublishedStep(
        origin=origin,
        device=_device(row),
        source=row["model"],
        settings={
            "batch": str(row["batch"]),
            "seq": str(row["sequence"]),
            "precision": "fp32",
            "optimizer": "none" if row["mode"] == "inf" else "sgd",
        },
        config=config,
        seconds=row["step_seconds"],
        updates=False,
        adds_up=True,
        torch="2.1",
    )


class Source(NamedTuple):
    make: Callable[[str, Row], PublishedStep]
    draw: Callable[[Sequence[PublishedStep], int], Sequence[PublishedStep]]


SOURCES: Final[Mapping[str, Source]] = {
    "neusight_e2e": Source(_language, lambda steps, most: steps),  # there are few
    "cnn_many_gpus": Source(_torchvision, _of_some_models),
    "timm_train": Source(partial(_timm, "pt112", "sgd-momentum-forloop"), _one_of_each),
    "timm_infer": Source(partial(_timm, "pt240", "none"), _one_of_each),
}
