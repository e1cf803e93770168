"""Which task a model class is for, and which class a model type trains as: the registries of the library."""

from __future__ import annotations

from typing import Final

from transformers.models.auto import modeling_auto

# The library's registry → our task, most specific first.
_REGISTRIES: Final = {
    "SPEECH_SEQ_2_SEQ": "speech-seq2seq",
    "CTC": "speech-ctc",
    "IMAGE_TEXT_TO_TEXT": "image-text",
    "SEQ_TO_SEQ_CAUSAL_LM": "seq2seq",
    "CAUSAL_LM": "causal-lm",
    "MASKED_LM": "masked-lm",
    "IMAGE_CLASSIFICATION": "image-classification",
    "SEMANTIC_SEGMENTATION": "segmentation",
    "DEPTH_ESTIMATION": "depth",
    "VIDEO_CLASSIFICATION": "video-classification",
    "AUDIO_CLASSIFICATION": "audio-classification",
    "ZERO_SHOT_IMAGE_CLASSIFICATION": "contrastive",
    "SEQUENCE_CLASSIFICATION": "text-classification",
}
_OF_SENTENCE_PAIRS: Final = ("BertForPreTraining", "MegatronBertForPreTraining")


def task_of_class(model: str) -> str | None:
    if model in _OF_SENTENCE_PAIRS:
        return "sentence-pairs"
    return next((task for kind, task in _REGISTRIES.items() if any(model in c for c in _classes(kind).values())), None)


def class_of_type(model_type: str) -> str | None:
    """The main class that a model type is trained as."""
    return next((_classes(kind)[model_type][0] for kind in _REGISTRIES if model_type in _classes(kind)), None)


def _classes(kind: str) -> dict[str, tuple[str, ...]]:
    """Model type → its classes for this kind of task."""
    found = getattr(modeling_auto, f"MODEL_FOR_{kind}_MAPPING_NAMES", {})
    return {name: (classes,) if isinstance(classes, str) else tuple(classes) for name, classes in found.items()}
