"""Trainers' own argument parsers as oracle: each name that they take is used, costs nothing, or is named in a caveat."""

from __future__ import annotations

import dataclasses
import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from foretell.sources.configs.keys import Keys

NAMES = json.loads(Path(__file__).with_name("trainer_keys.json").read_text())
LEAST: dict[str, dict[str, Any]] = {
    "trainer": {"per_device_train_batch_size": 1, "model_name_or_path": "gpt2"},
    "llamafactory": {"model_name_or_path": "gpt2", "stage": "sft", "finetuning_type": "lora"},
    "axolotl": {"base_model": "gpt2", "sequence_len": 8},
}


def left_over(reader: str, names: list[str]) -> list[str]:
    """What a reader neither uses nor knows."""
    keys = Keys({**dict.fromkeys(names), **LEAST[reader]}, "file.yaml")
    import_module(f"foretell.sources.configs.{reader}").read(keys, Path())
    return keys.left()


@pytest.mark.parametrize(
    ("reader", "listed"), [("trainer", "trl"), ("llamafactory", "llamafactory"), ("axolotl", "axolotl")]
)
def test_every_argument_of_a_trainer_is_accounted_for(reader: str, listed: str) -> None:
    assert left_over(reader, NAMES[listed].split()) == []


def test_every_training_argument_is_accounted_for() -> None:
    from transformers import Seq2SeqTrainingArguments

    names = [field.name for field in dataclasses.fields(Seq2SeqTrainingArguments)]
    assert left_over("trainer", names) == []
    assert left_over("llamafactory", names) == []


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("trl", "SFTConfig"),
        ("trl", "DPOConfig"),
        ("trl", "GRPOConfig"),
        ("trl", "RewardConfig"),
        ("trl", "ModelConfig"),
    ],
)
def test_arguments_of_an_installed_trl_are_accounted_for(module: str, name: str) -> None:
    config = getattr(pytest.importorskip(module), name)
    assert left_over("trainer", [field.name for field in dataclasses.fields(config)]) == []
