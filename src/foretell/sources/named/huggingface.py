"""Hugging Face: architectures built from configuration, never downloaded, with the loss of their task.

`huggingface.toml` is the shipped table: a name, the model class, and where the configuration differs from the
library's default. The library's own registries say which task a model class is for, so a user's `config.json`
goes the same way.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from importlib import resources
from pathlib import Path
from typing import Any

import torch

from foretell.errors import SourceError, WorkloadError
from foretell.sources.named.recipe import Recipe, takes_step_settings
from foretell.sources.named.torchvision_ops import make_torchvision_importable
from foretell.workload import Workload

make_torchvision_importable()
import transformers  # noqa: E402
from transformers.models.auto import modeling_auto as registries  # noqa: E402

MakeTensors = Callable[[], dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """A model class with its configuration, as the table or a config.json gives it."""

    name: str
    model: str
    config: Mapping[str, Any] = field(default_factory=dict)
    unset: tuple[str, ...] = ()  # entries that are None, which TOML cannot say
    task: str | None = None  # where the library's registries do not tell
    defaults: Mapping[str, Any] = field(default_factory=dict)  # of settings
    image_tokens: int = 0  # positions an image takes in the text, for vision-language models

    @property
    def model_class(self) -> Any:
        return getattr(transformers, self.model)

    def configured(self, **changes: Any) -> Any:
        """The configuration with some entries changed; entries it does not know, and None, are left out."""
        config_class = self.model_class.config_class
        known = {name: value for name, value in changes.items() if value is not None}
        for name in list(known):
            usual = entry(config_class(), name)
            if usual is None:
                del known[name]
            elif isinstance(usual, list | tuple):  # some want an image's height and width
                known[name] = [known[name]] * len(usual)
        spelt = {getattr(config_class, "attribute_map", {}).get(name, name): value for name, value in known.items()}
        entries = {**self.config, **dict.fromkeys(self.unset), **spelt}
        if "layer_types" in self.config and "num_hidden_layers" in known:
            entries["layer_types"] = list(self.config["layer_types"])[: known["num_hidden_layers"]]
        try:
            config = config_class.from_dict(entries)
        except Exception as problem:  # each library class checks in its own way
            asked = f" with {', '.join(f'{k}={v}' for k, v in known.items())}" if known else ""
            raise SourceError(f"{self.name} cannot be configured{asked}: {problem}") from problem
        for part in (config, config.get_text_config()):
            if hasattr(part, "use_cache"):
                part.use_cache = False
        if entry(config, "is_encoder_decoder") and entry(config, "decoder_start_token_id") is None:
            config.decoder_start_token_id = 0  # which token it is changes nothing; shifting the labels needs one
        return config

    def built(self, config: Any, checkpointing: bool) -> Any:
        model = self.model_class(config)
        if checkpointing:
            if not model.supports_gradient_checkpointing:
                raise WorkloadError(f"{self.model} has no gradient checkpointing of its own. Leave out checkpointing.")
            model.gradient_checkpointing_enable()
        return model


def entry(config: Any, name: str) -> Any:
    """An entry of a configuration, or None where it has none."""
    try:
        return getattr(config, name, None)
    except NotImplementedError:  # some say so when asked for a limit they do not have
        return None


def names() -> Sequence[str]:
    return tuple(_table())


def workload_function(name: str) -> Callable[..., Workload]:
    return _function_for(_table()[name])


def config_file_function(path: Path) -> Callable[..., Workload]:
    """The workload function of a `config.json`: its architecture, or the main one of its model type."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as problem:
        raise SourceError(f"'{path}' is not a JSON file: {problem}. Give a Hugging Face config.json.") from None
    if not isinstance(config, dict) or not ({"model_type", "architectures"} & config.keys()):
        raise SourceError(
            f"'{path}' is not a Hugging Face configuration: it has neither 'model_type' nor 'architectures'. "
            "Give the config.json that lies beside a model's weights."
        )
    name = str(config.get("_name_or_path") or "") or path.resolve().parent.name
    return _function_for(Architecture(name=name.rsplit("/", 1)[-1], model=_class_for(config, path), config=config))


@cache
def _table() -> dict[str, Architecture]:
    text = resources.files("foretell.sources.named").joinpath("huggingface.toml").read_text(encoding="utf-8")
    return {name: Architecture(name=name, **entry) for name, entry in tomllib.loads(text).items()}


def _function_for(architecture: Architecture) -> Callable[..., Workload]:
    task = architecture.task or _task_of_class(architecture.model)
    if task is None:
        raise SourceError(
            f"{architecture.name}: no training task is known for {architecture.model}. "
            f"Name another class under 'architectures', of: {', '.join(TASKS)}; or write the step as file.py:function."
        )
    return partial(TASKS[task], architecture, **architecture.defaults)


# Which task a model class is for: the library's registries, most specific first.
_REGISTRIES: tuple[tuple[str, str], ...] = (
    ("SPEECH_SEQ_2_SEQ", "speech-seq2seq"),
    ("CTC", "speech-ctc"),
    ("IMAGE_TEXT_TO_TEXT", "image-text"),
    ("SEQ_TO_SEQ_CAUSAL_LM", "seq2seq"),
    ("CAUSAL_LM", "causal-lm"),
    ("MASKED_LM", "masked-lm"),
    ("IMAGE_CLASSIFICATION", "image-classification"),
    ("SEMANTIC_SEGMENTATION", "segmentation"),
    ("DEPTH_ESTIMATION", "depth"),
    ("VIDEO_CLASSIFICATION", "video-classification"),
    ("AUDIO_CLASSIFICATION", "audio-classification"),
    ("ZERO_SHOT_IMAGE_CLASSIFICATION", "contrastive"),
    ("SEQUENCE_CLASSIFICATION", "text-classification"),
)


def _registry(kind: str) -> dict[str, tuple[str, ...]]:
    """Model type → its classes for this kind of task."""
    found = getattr(registries, f"MODEL_FOR_{kind}_MAPPING_NAMES", {})
    return {name: (classes,) if isinstance(classes, str) else tuple(classes) for name, classes in found.items()}


def _task_of_class(model: str) -> str | None:
    return next((task for kind, task in _REGISTRIES if any(model in c for c in _registry(kind).values())), None)


def _class_for(config: Mapping[str, Any], path: Path) -> str:
    named = next(iter(config.get("architectures") or ()), None)
    if named and hasattr(transformers, named) and _task_of_class(named):
        return str(named)
    model_type = str(config.get("model_type"))
    found = next((_registry(kind)[model_type][0] for kind, _ in _REGISTRIES if model_type in _registry(kind)), None)
    if found is None:
        raise SourceError(
            f"'{path}': transformers {transformers.__version__} has no trainable architecture for model_type "
            f"{model_type!r}, architectures {config.get('architectures')}. "
            "If the model brings its own code, write the step as file.py:function."
        )
    return found


# Tasks: what a batch holds and what the loss is. Without labels, the library's models just run forward.


def _recipe(
    architecture: Architecture, config: Any, inputs: MakeTensors, targets: MakeTensors, *,
    checkpointing: bool, inference_only: MakeTensors = dict,
    loss: Callable[[Any, Any], Any] = lambda model, b: model(**b).loss, tokens: int | None = None,
) -> Recipe:  # fmt: skip
    return Recipe(
        name=architecture.name,
        model=lambda: architecture.built(config, checkpointing),
        batch=lambda: inputs() | targets(),
        loss=loss,
        inputs=lambda: inputs() | inference_only(),
        forward=lambda model, b: model(**b),
        tokens=tokens,
    )


def _text_config(architecture: Architecture, seq: int, layers: int | None, **changes: Any) -> Any:
    """A configuration for this length: models with a table of positions are built with as many as it takes."""
    config = architecture.configured(num_hidden_layers=layers, **changes)
    if 0 < (entry(config, "max_position_embeddings") or 0) < seq:
        config = architecture.configured(num_hidden_layers=layers, max_position_embeddings=seq, **changes)
    return config


def _tokens(config: Any, batch: int, seq: int) -> torch.Tensor:
    return torch.randint(config.get_text_config().vocab_size, (batch, seq))


@takes_step_settings
def causal_lm(
    architecture: Architecture,
    *,
    batch: int = 8,
    seq: int = 1024,
    layers: int | None = None,
    checkpointing: bool = False,
) -> Recipe:
    """Next-token cross-entropy on sequences without padding."""
    config = _text_config(architecture, seq, layers)

    def inputs() -> dict[str, Any]:
        return {"input_ids": _tokens(config, batch, seq)}

    def targets() -> dict[str, Any]:
        return {"labels": _tokens(config, batch, seq)}

    return _recipe(architecture, config, inputs, targets, checkpointing=checkpointing)


@takes_step_settings
def masked_lm(
    architecture: Architecture,
    *,
    batch: int = 16,
    seq: int = 512,
    layers: int | None = None,
    checkpointing: bool = False,
) -> Recipe:
    """Cross-entropy at masked positions, which are priced like all others."""
    config = _text_config(architecture, seq, layers)

    def inputs() -> dict[str, Any]:
        return {"input_ids": _tokens(config, batch, seq)}

    def targets() -> dict[str, Any]:
        return {"labels": _tokens(config, batch, seq)}

    return _recipe(architecture, config, inputs, targets, checkpointing=checkpointing)


@takes_step_settings
def text_classification(
    architecture: Architecture, *, batch: int = 32, seq: int = 128, classes: int = 2, layers: int | None = None,
    checkpointing: bool = False,
) -> Recipe:  # fmt: skip
    """Cross-entropy over one label a text."""
    config = _text_config(architecture, seq, layers, num_labels=classes)
    if config.get_text_config().pad_token_id is None:  # decoders look for the last token that is not padding
        config.get_text_config().pad_token_id = 0

    def inputs() -> dict[str, Any]:
        return {"input_ids": _tokens(config, batch, seq)}

    def targets() -> dict[str, Any]:
        return {"labels": torch.randint(classes, (batch,))}

    return _recipe(architecture, config, inputs, targets, checkpointing=checkpointing)


@takes_step_settings
def seq2seq(
    architecture: Architecture, *, batch: int = 8, seq: int = 512, target_seq: int = 128, checkpointing: bool = False,
) -> Recipe:  # fmt: skip
    """Cross-entropy of a target text given a source text."""
    config = _text_config(architecture, seq, None)

    def inputs() -> dict[str, Any]:
        return {"input_ids": _tokens(config, batch, seq)}

    def targets() -> dict[str, Any]:
        return {"labels": _tokens(config, batch, target_seq)}

    def decoder() -> dict[str, Any]:
        return {"decoder_input_ids": _tokens(config, batch, target_seq)}

    return _recipe(architecture, config, inputs, targets, checkpointing=checkpointing, inference_only=decoder)


@takes_step_settings
def speech_seq2seq(
    architecture: Architecture, *, batch: int = 8, seconds: float = 30.0, seq: int = 128, checkpointing: bool = False
) -> Recipe:
    """Cross-entropy of a transcript given a recording (Whisper wants thirty seconds of it)."""
    config = architecture.configured()

    def targets() -> dict[str, Any]:
        return {"labels": _tokens(config, batch, seq)}

    def decoder() -> dict[str, Any]:
        return {"decoder_input_ids": _tokens(config, batch, seq)}

    inputs = partial(_sound, architecture, config, batch, seconds)
    return _recipe(architecture, config, inputs, targets, checkpointing=checkpointing, inference_only=decoder)


@takes_step_settings
def speech_ctc(
    architecture: Architecture, *, batch: int = 8, seconds: float = 10.0, seq: int = 64, checkpointing: bool = False
) -> Recipe:
    """Connectionist temporal classification of a transcript, from the waveform or its features."""
    config = architecture.configured()

    def targets() -> dict[str, Any]:
        return {"labels": torch.randint(1, config.vocab_size, (batch, seq))}

    inputs = partial(_sound, architecture, config, batch, seconds)
    return _recipe(architecture, config, inputs, targets, checkpointing=checkpointing)


@takes_step_settings
def audio_classification(
    architecture: Architecture,
    *,
    batch: int = 8,
    seconds: float = 10.0,
    classes: int = 527,
    checkpointing: bool = False,
) -> Recipe:
    """Cross-entropy over one label a recording."""
    config = architecture.configured(num_labels=classes)

    def targets() -> dict[str, Any]:
        return {"labels": torch.randint(classes, (batch,))}

    inputs = partial(_sound, architecture, config, batch, seconds)
    return _recipe(architecture, config, inputs, targets, checkpointing=checkpointing)


_SAMPLES_A_SECOND = 16_000
_FRAMES_A_SECOND = 100  # of a spectrogram
_STACKED_FRAMES_A_SECOND = 50


def _sound(architecture: Architecture, config: Any, batch: int, seconds: float) -> dict[str, Any]:
    """What the model hears. Models differ in which axis is time; the entry that sizes the other axis tells."""
    frames = int(seconds * _FRAMES_A_SECOND)
    name = architecture.model_class.main_input_name
    if name != "input_features":
        if length := entry(config, "max_length"):  # spectrogram patches of a fixed length
            return {name: torch.randn(batch, length, config.num_mel_bins)}
        return {name: torch.randn(batch, int(seconds * _SAMPLES_A_SECOND))}
    if bins := entry(config, "feature_projection_input_dim"):
        return {name: torch.randn(batch, int(seconds * _STACKED_FRAMES_A_SECOND), bins)}
    if bins := entry(config, "input_feat_per_channel"):
        return {name: torch.randn(batch, frames, bins)}
    return {name: torch.randn(batch, config.num_mel_bins, frames)}


def _images(config: Any, batch: int, image_size: int) -> torch.Tensor:
    return torch.randn(batch, getattr(config, "num_channels", 3), image_size, image_size)


@takes_step_settings
def image_classification(
    architecture: Architecture,
    *,
    batch: int = 32,
    image_size: int = 224,
    classes: int = 1000,
    checkpointing: bool = False,
) -> Recipe:
    """Cross-entropy over one label an image."""
    config = architecture.configured(image_size=image_size, num_labels=classes)

    def inputs() -> dict[str, Any]:
        return {"pixel_values": _images(config, batch, image_size)}

    def targets() -> dict[str, Any]:
        return {"labels": torch.randint(classes, (batch,))}

    return _recipe(architecture, config, inputs, targets, checkpointing=checkpointing)


@takes_step_settings
def image_reconstruction(
    architecture: Architecture, *, batch: int = 32, image_size: int = 224, checkpointing: bool = False
) -> Recipe:
    """Pre-training on images alone; the model hides patches and has its own loss."""
    config = architecture.configured(image_size=image_size)

    def inputs() -> dict[str, Any]:
        return {"pixel_values": _images(config, batch, image_size)}

    return _recipe(architecture, config, inputs, dict, checkpointing=checkpointing)


@takes_step_settings
def segmentation(
    architecture: Architecture,
    *,
    batch: int = 8,
    image_size: int = 512,
    classes: int = 150,
    checkpointing: bool = False,
) -> Recipe:
    """Cross-entropy over one label a pixel."""
    config = architecture.configured(image_size=image_size, num_labels=classes)

    def inputs() -> dict[str, Any]:
        return {"pixel_values": _images(config, batch, image_size)}

    def targets() -> dict[str, Any]:
        return {"labels": torch.randint(classes, (batch, image_size, image_size))}

    return _recipe(architecture, config, inputs, targets, checkpointing=checkpointing)


@takes_step_settings
def depth(architecture: Architecture, *, batch: int = 8, image_size: int = 384, checkpointing: bool = False) -> Recipe:
    """Mean absolute error of the depth of every pixel; the library's models bring no loss for it."""
    config = architecture.configured(image_size=image_size)

    def inputs() -> dict[str, Any]:
        return {"pixel_values": _images(config, batch, image_size)}

    def loss(model: Any, b: Any) -> torch.Tensor:
        found = model(**b).predicted_depth
        return torch.nn.functional.l1_loss(found, torch.zeros_like(found))

    return _recipe(architecture, config, inputs, dict, checkpointing=checkpointing, loss=loss)


@takes_step_settings
def video_classification(
    architecture: Architecture,
    *,
    batch: int = 4,
    image_size: int = 224,
    classes: int = 400,
    checkpointing: bool = False,
) -> Recipe:
    """Cross-entropy over one label a clip, of as many frames as the configuration says."""
    config = architecture.configured(image_size=image_size, crop_size=image_size, num_labels=classes)
    frames = getattr(config, "num_frames", None) or config.frames_per_clip

    def inputs() -> dict[str, Any]:
        clip = torch.randn(batch, frames, 3, image_size, image_size)
        return {architecture.model_class.main_input_name: clip}

    def targets() -> dict[str, Any]:
        return {"labels": torch.randint(classes, (batch,))}

    return _recipe(architecture, config, inputs, targets, checkpointing=checkpointing)


@takes_step_settings
def contrastive(architecture: Architecture, *, batch: int = 32, seq: int = 64, checkpointing: bool = False) -> Recipe:
    """Each image against each text of the batch."""
    config = architecture.configured()

    def inputs() -> dict[str, Any]:
        images = torch.randn(batch, 3, config.vision_config.image_size, config.vision_config.image_size)
        return {"input_ids": torch.randint(config.text_config.vocab_size, (batch, seq)), "pixel_values": images}

    return _recipe(
        architecture, config, inputs, dict, checkpointing=checkpointing, tokens=batch * seq,
        loss=lambda model, b: model(**b, return_loss=True).loss,
    )  # fmt: skip


@takes_step_settings
def image_text(architecture: Architecture, *, batch: int = 4, seq: int = 1024, checkpointing: bool = False) -> Recipe:
    """Next-token cross-entropy on text that holds one image; `seq` counts the image's positions too."""
    config = architecture.configured()
    size = config.vision_config.image_size
    if seq <= architecture.image_tokens:
        raise SourceError(
            f"seq={seq} of hf/{architecture.name} leaves no room for text beside the {architecture.image_tokens} "
            "positions of the image. Give a longer seq."
        )

    def inputs() -> dict[str, Any]:
        text = torch.randint(_lowest_special(config), (batch, seq - architecture.image_tokens))
        image = torch.full((batch, architecture.image_tokens), _image_token(config))
        side = size if isinstance(size, int) else size[0]
        pixels = torch.randn(batch, 3, side, side)
        return {"input_ids": torch.cat([image, text], 1), "pixel_values": pixels}

    def targets() -> dict[str, Any]:
        return {"labels": _tokens(config, batch, seq)}

    return _recipe(architecture, config, inputs, targets, checkpointing=checkpointing, tokens=batch * seq)


def _image_token(config: Any) -> int:
    token = getattr(config, "image_token_id", None)
    return int(token if token is not None else config.image_token_index)


def _lowest_special(config: Any) -> int:
    """Ordinary tokens come before the image's token, or there are plenty of them anyway."""
    return min(int(config.get_text_config().vocab_size), max(_image_token(config), 1000))


@takes_step_settings
def image_patches_text(
    architecture: Architecture, *, batch: int = 4, image_size: int = 448, seq: int = 1024, checkpointing: bool = False
) -> Recipe:
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

    def targets() -> dict[str, Any]:
        return {"labels": _tokens(config, batch, seq)}

    return _recipe(architecture, config, inputs, targets, checkpointing=checkpointing, tokens=batch * seq)


@takes_step_settings
def time_series(architecture: Architecture, *, batch: int = 64, checkpointing: bool = False) -> Recipe:
    """The model's own loss of the values to come, given the values so far."""
    config = architecture.configured()

    def inputs() -> dict[str, Any]:
        return {"past_values": torch.randn(batch, config.context_length, config.num_input_channels)}

    def targets() -> dict[str, Any]:
        return {"future_values": torch.randn(batch, config.prediction_length, config.num_input_channels)}

    return _recipe(architecture, config, inputs, targets, checkpointing=checkpointing)


@takes_step_settings
def decision(architecture: Architecture, *, batch: int = 64, seq: int = 20, checkpointing: bool = False) -> Recipe:
    """Mean squared error of the actions along a trajectory."""
    config = architecture.configured()

    def inputs() -> dict[str, Any]:
        return {
            "states": torch.randn(batch, seq, config.state_dim),
            "actions": torch.randn(batch, seq, config.act_dim),
            "rewards": torch.randn(batch, seq, 1),
            "returns_to_go": torch.randn(batch, seq, 1),
            "timesteps": torch.arange(seq).repeat(batch, 1),
            "attention_mask": torch.ones(batch, seq, dtype=torch.long),
        }

    def loss(model: Any, b: Any) -> torch.Tensor:
        return torch.nn.functional.mse_loss(model(**b).action_preds, b["actions"])

    return _recipe(architecture, config, inputs, dict, checkpointing=checkpointing, loss=loss)


TASKS: dict[str, Callable[..., Workload]] = {
    "causal-lm": causal_lm,
    "masked-lm": masked_lm,
    "text-classification": text_classification,
    "seq2seq": seq2seq,
    "speech-seq2seq": speech_seq2seq,
    "speech-ctc": speech_ctc,
    "audio-classification": audio_classification,
    "image-classification": image_classification,
    "image-reconstruction": image_reconstruction,
    "segmentation": segmentation,
    "depth": depth,
    "video-classification": video_classification,
    "contrastive": contrastive,
    "image-text": image_text,
    "image-patches-text": image_patches_text,
    "time-series": time_series,
    "decision": decision,
}
