"""Tasks: what a batch holds and what the loss is. Without labels, the library's models just run forward."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Concatenate, ParamSpec

import torch
from torch import Tensor
from torch.nn import functional as F

from foretell.errors import SourceError
from foretell.sources.named.adapters import Quantize, adapted, only_last_layers
from foretell.sources.named.huggingface.architecture import Architecture, entry, text_part
from foretell.sources.named.huggingface.objectives import KINDS, Objective, finished, loss_of, prepared
from foretell.sources.named.recipe import MakeTensors, Recipe, parameters_of, takes_step_settings
from foretell.workload import Workload

P = ParamSpec("P")
TASKS: dict[str, Callable[..., Workload]] = {}
_SAMPLES_PER_SECOND = 16_000
_FRAMES_PER_SECOND = 100  # of a spectrogram
_STACKED_FRAMES_PER_SECOND = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """An architecture configured for its settings; fields are those of a Recipe."""

    config: Any
    inputs: MakeTensors
    targets: MakeTensors = dict
    conditions: MakeTensors = dict
    loss: Callable[[Any, Any], Any] = lambda model, b: model(**b).loss
    samples: int | None = None
    tokens: int | None = None
    objective: Objective = "sft"


Build = Callable[Concatenate[Architecture, P], Task]


def task(name: str) -> Callable[[Build[P]], Build[P]]:
    """Register a function from an architecture and settings to its task."""

    def register(build: Build[P]) -> Build[P]:
        def recipe(
            architecture: Architecture,
            *,
            checkpointing: bool = False,
            lora_rank: int = 0,
            lora_targets: str = "all",
            quantize: Quantize = "none",
            also_trained: str = "",
            lora_decomposed: bool = False,
            oft_block: int = 0,
            trained_layers: int = 0,
            **settings: Any,
        ) -> Recipe:
            made = build(architecture, **settings)  # type: ignore[call-arg]

            def model() -> Any:
                plain = prepared(architecture.built(made.config, checkpointing), made.objective)
                trained = adapted(
                    plain, lora_rank=lora_rank, lora_targets=lora_targets, quantize=quantize, also_trained=also_trained,
                    lora_decomposed=lora_decomposed, oft_block=oft_block,
                )  # fmt: skip
                trained = only_last_layers(trained, trained_layers)
                plain_copy = partial(architecture.built, made.config, False)
                return finished(trained, made.objective, bool(lora_rank or oft_block), plain_copy)

            return Recipe(
                name=architecture.name,
                model=model,
                forward=lambda model, b: model(**b),
                **{
                    field: getattr(made, field)
                    for field in ("inputs", "targets", "conditions", "loss", "samples", "tokens")
                },
            )

        own = [p for p in parameters_of(recipe) if p.kind is p.KEYWORD_ONLY]
        recipe.__signature__ = inspect.Signature([*parameters_of(build), *own])  # type: ignore[attr-defined]
        recipe.__doc__ = build.__doc__
        TASKS[name] = takes_step_settings(recipe)
        return build

    return register


# Text.


def _tokens(config: Any, batch: int, seq: int, name: str) -> MakeTensors:
    return lambda: {name: torch.randint(text_part(config).vocab_size, (batch, seq))}


def _labels(classes: int, *shape: int) -> MakeTensors:
    return lambda: {"labels": torch.randint(classes, shape)}


def _language_model(architecture: Architecture, batch: int, seq: int, layers: int | None) -> Task:
    config = architecture.configured_for_text(seq, layers)
    inputs, targets = (_tokens(config, batch, seq, name) for name in ("input_ids", "labels"))
    return Task(config=config, inputs=inputs, targets=targets)


@task("causal-lm")
def causal_lm(
    architecture: Architecture,
    *,
    batch: int = 8,
    seq: int = 1024,
    layers: int | None = None,
    objective: Objective = "sft",
    completion: int | None = None,
    fused_loss: bool = False,
    upcast_logits: bool = False,
) -> Task:
    """Next-token cross-entropy on sequences without padding, or another objective of fine-tuning."""
    texts = KINDS[objective].texts
    made = _language_model(architecture, batch * texts, seq, layers)
    if objective == "sft" and not fused_loss:
        return made
    loss = loss_of(objective, completion=completion, fused=fused_loss, upcast=upcast_logits)
    targets = made.targets if objective == "sft" else dict
    return replace(made, targets=targets, loss=loss, samples=batch, objective=objective)


@task("masked-lm")
def masked_lm(architecture: Architecture, *, batch: int = 16, seq: int = 512, layers: int | None = None) -> Task:
    """Cross-entropy at masked positions, which are priced like all others."""
    return _language_model(architecture, batch, seq, layers)


@task("sentence-pairs")
def sentence_pairs(architecture: Architecture, *, batch: int = 16, seq: int = 512, layers: int | None = None) -> Task:
    """BERT's own pretraining: masked positions, and whether one sentence follows the other."""
    made = _language_model(architecture, batch, seq, layers)
    return replace(made, targets=lambda: {**made.targets(), "next_sentence_label": torch.randint(2, (batch,))})


@task("text-classification")
def text_classification(
    architecture: Architecture, *, batch: int = 32, seq: int = 128, classes: int = 2, layers: int | None = None
) -> Task:
    """Cross-entropy over one label a text."""
    config = architecture.configured_for_text(seq, layers, num_labels=classes)
    if text_part(config).pad_token_id is None:  # decoders look for the last token that is not padding
        text_part(config).pad_token_id = 0
    return Task(config=config, inputs=_tokens(config, batch, seq, "input_ids"), targets=_labels(classes, batch))


@task("seq2seq")
def seq2seq(architecture: Architecture, *, batch: int = 8, seq: int = 512, target_seq: int = 128) -> Task:
    """Cross-entropy of a target text given a source text."""
    config = architecture.configured_for_text(seq)
    targets, conditions = (_tokens(config, batch, target_seq, name) for name in ("labels", "decoder_input_ids"))
    return Task(config=config, inputs=_tokens(config, batch, seq, "input_ids"), targets=targets, conditions=conditions)


# Sound.


def _sound(architecture: Architecture, config: Any, batch: int, seconds: float) -> MakeTensors:
    """What the model hears. Models differ in which axis is time; the entry that sizes the other axis tells."""
    name = architecture.model_class.main_input_name
    frames = int(seconds * _FRAMES_PER_SECOND)
    shape: tuple[int, ...]
    if name != "input_features":
        if length := entry(config, "max_length"):  # spectrogram patches of a fixed length
            shape = (batch, length, config.num_mel_bins)
        else:
            shape = (batch, int(seconds * _SAMPLES_PER_SECOND))
    elif bins := entry(config, "feature_projection_input_dim"):
        shape = (batch, int(seconds * _STACKED_FRAMES_PER_SECOND), bins)
    elif bins := entry(config, "input_feat_per_channel"):
        shape = (batch, frames, bins)
    else:
        shape = (batch, config.num_mel_bins, frames)
    return lambda: {name: torch.randn(shape)}


@task("speech-seq2seq")
def speech_seq2seq(architecture: Architecture, *, batch: int = 8, seconds: float = 30.0, seq: int = 128) -> Task:
    """Cross-entropy of a transcript given a recording (Whisper wants thirty seconds of it)."""
    config = architecture.configured()
    targets, conditions = (_tokens(config, batch, seq, name) for name in ("labels", "decoder_input_ids"))
    return Task(
        config=config, inputs=_sound(architecture, config, batch, seconds), targets=targets, conditions=conditions
    )


@task("speech-ctc")
def speech_ctc(architecture: Architecture, *, batch: int = 8, seconds: float = 10.0, seq: int = 64) -> Task:
    """Connectionist temporal classification of a transcript, from the waveform or its features."""
    config = architecture.configured()

    def targets() -> dict[str, Any]:
        return {"labels": torch.randint(1, config.vocab_size, (batch, seq))}

    return Task(config=config, inputs=_sound(architecture, config, batch, seconds), targets=targets)


@task("audio-classification")
def audio_classification(
    architecture: Architecture, *, batch: int = 8, seconds: float = 10.0, classes: int = 527
) -> Task:
    """Cross-entropy over one label a recording."""
    config = architecture.configured(num_labels=classes)
    inputs = _sound(architecture, config, batch, seconds)
    return Task(config=config, inputs=inputs, targets=_labels(classes, batch))


# Images.


def _images(config: Any, batch: int, image_size: int) -> MakeTensors:
    channels = getattr(config, "num_channels", 3)
    return lambda: {"pixel_values": torch.randn(batch, channels, image_size, image_size)}


@task("image-classification")
def image_classification(
    architecture: Architecture, *, batch: int = 32, image_size: int = 224, classes: int = 1000
) -> Task:
    """Cross-entropy over one label an image."""
    config = architecture.configured(image_size=image_size, num_labels=classes)
    return Task(config=config, inputs=_images(config, batch, image_size), targets=_labels(classes, batch))


@task("image-reconstruction")
def image_reconstruction(architecture: Architecture, *, batch: int = 32, image_size: int = 224) -> Task:
    """Pre-training on images alone; the model hides patches and has its own loss."""
    config = architecture.configured(image_size=image_size)
    return Task(config=config, inputs=_images(config, batch, image_size))


@task("segmentation")
def segmentation(architecture: Architecture, *, batch: int = 8, image_size: int = 512, classes: int = 150) -> Task:
    """Cross-entropy over one label a pixel."""
    config = architecture.configured(image_size=image_size, num_labels=classes)
    targets = _labels(classes, batch, image_size, image_size)
    return Task(config=config, inputs=_images(config, batch, image_size), targets=targets)


@task("depth")
def depth(architecture: Architecture, *, batch: int = 8, image_size: int = 384) -> Task:
    """Mean absolute error of the depth of every pixel; the library's models bring no loss for it."""
    config = architecture.configured(image_size=image_size)

    def loss(model: Any, b: Any) -> Tensor:
        found = model(**b).predicted_depth
        return F.l1_loss(found, torch.zeros_like(found))

    return Task(config=config, inputs=_images(config, batch, image_size), loss=loss)


@task("video-classification")
def video_classification(
    architecture: Architecture, *, batch: int = 4, image_size: int = 224, classes: int = 400
) -> Task:
    """Cross-entropy over one label a clip, of as many frames as the configuration says."""
    config = architecture.configured(image_size=image_size, crop_size=image_size, num_labels=classes)
    shape = (batch, getattr(config, "num_frames", None) or config.frames_per_clip, 3, image_size, image_size)
    name = architecture.model_class.main_input_name
    return Task(config=config, inputs=lambda: {name: torch.randn(shape)}, targets=_labels(classes, batch))


# Images with text.


@task("contrastive")
def contrastive(architecture: Architecture, *, batch: int = 32, seq: int = 64) -> Task:
    """Each image against each text of the batch."""
    config = architecture.configured()
    side = config.vision_config.image_size

    def inputs() -> dict[str, Any]:
        text = torch.randint(config.text_config.vocab_size, (batch, seq))
        return {"input_ids": text, "pixel_values": torch.randn(batch, 3, side, side)}

    def loss(model: Any, b: Any) -> Any:
        return model(**b, return_loss=True).loss

    return Task(config=config, inputs=inputs, loss=loss, tokens=batch * seq)


@task("image-text")
def image_text(architecture: Architecture, *, batch: int = 4, seq: int = 1024) -> Task:
    """Next-token cross-entropy on text that holds one image; `seq` counts the image's positions too."""
    config = architecture.configured()
    size = config.vision_config.image_size
    side = size if isinstance(size, int) else size[0]
    if seq <= architecture.image_tokens:
        raise SourceError(
            f"seq={seq} of hf/{architecture.name} leaves no room for text beside the {architecture.image_tokens} "
            "positions of the image. Give a longer seq."
        )

    def inputs() -> dict[str, Any]:
        token = getattr(config, "image_token_id", None)
        token = int(token if token is not None else config.image_token_index)
        # Ordinary tokens come before the image's token, or there are plenty of them anyway.
        ordinary = min(int(text_part(config).vocab_size), max(token, 1000))
        text = torch.randint(ordinary, (batch, seq - architecture.image_tokens))
        image = torch.full((batch, architecture.image_tokens), token)
        return {"input_ids": torch.cat([image, text], 1), "pixel_values": torch.randn(batch, 3, side, side)}

    return Task(config=config, inputs=inputs, targets=_tokens(config, batch, seq, "labels"), tokens=batch * seq)


@task("image-patches-text")
def image_patches_text(architecture: Architecture, *, batch: int = 4, image_size: int = 448, seq: int = 1024) -> Task:
    """As `image_text`, for models that take an image of any size as a row of patches."""
    config = architecture.configured()
    vision = config.vision_config
    side = image_size // vision.patch_size
    positions = (side // vision.spatial_merge_size) ** 2

    def inputs() -> dict[str, Any]:
        text = torch.randint(1000, (batch, seq - positions))
        image = torch.full((batch, positions), config.image_token_id)
        numbers = 3 * vision.temporal_patch_size * vision.patch_size**2
        return {
            "input_ids": torch.cat([text[:, :1], image, text[:, 1:]], 1),
            "pixel_values": torch.randn(batch * side * side, numbers),
            "image_grid_thw": torch.tensor([[1, side, side]] * batch),
            "mm_token_type_ids": torch.cat([text[:, :1] * 0, image * 0 + 1, text[:, 1:] * 0], 1),
        }

    return Task(config=config, inputs=inputs, targets=_tokens(config, batch, seq, "labels"), tokens=batch * seq)


# Series.


@task("time-series")
def time_series(architecture: Architecture, *, batch: int = 64) -> Task:
    """The model's own loss of the values to come, given the values so far."""
    config = architecture.configured()
    past, future = ((batch, n, config.num_input_channels) for n in (config.context_length, config.prediction_length))
    return Task(
        config=config,
        inputs=lambda: {"past_values": torch.randn(past)},
        targets=lambda: {"future_values": torch.randn(future)},
    )


@task("decision")
def decision(architecture: Architecture, *, batch: int = 64, seq: int = 20) -> Task:
    """Mean squared error of the actions along a trajectory."""
    config = architecture.configured()

    def inputs() -> dict[str, Any]:
        widths = {"states": config.state_dim, "actions": config.act_dim, "rewards": 1, "returns_to_go": 1}
        return {
            **{name: torch.randn(batch, seq, width) for name, width in widths.items()},
            "timesteps": torch.arange(seq).repeat(batch, 1),
            "attention_mask": torch.ones(batch, seq, dtype=torch.long),
        }

    return Task(config=config, inputs=inputs, loss=lambda model, b: F.mse_loss(model(**b).action_preds, b["actions"]))
