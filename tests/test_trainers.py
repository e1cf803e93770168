"""Trainers by name: as people write them, in a file, in a graph, and on the command line."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

import foretell
from foretell.errors import InputError, WorkloadError
from foretell.graph import Graph
from foretell.sources.resolve import load_workload
from foretell.trainers import KINDS, TRAINERS, trainer_named
from tests.parallel.models import graph


@pytest.mark.parametrize(
    ("written", "name"),
    [("Megatron-LM", "megatron"), ("NeMo", "nemo"), ("Hugging Face's Trainer", "huggingface"), ("unknown", "unknown")],
)
def test_a_trainer_is_found_by_the_names_that_people_give_it(written: str, name: str) -> None:
    assert trainer_named(written) == name


def test_every_kind_has_a_trainer_and_what_is_none_is_refused() -> None:
    assert set(TRAINERS.values()) == set(KINDS)
    with pytest.raises(InputError, match="a number like"):
        trainer_named("mine")
    with pytest.raises(WorkloadError, match="trainer"):
        dataclasses.replace(load_workload("torchvision/resnet18"), trainer="mine")


def test_a_configuration_says_who_trains(tmp_path: Path) -> None:
    (tmp_path / "ds_config.json").write_text(
        json.dumps({"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 2}})
    )
    made = load_workload(str(tmp_path / "ds_config.json"), {"model": "torchvision/resnet18"})
    assert made.trainer == "deepspeed"


def test_a_graph_file_keeps_who_trains(tmp_path: Path) -> None:
    plain = graph("llama")
    known = dataclasses.replace(plain, facts=dataclasses.replace(plain.facts, trainer="torchtitan"))
    known.save(tmp_path / "step.graph")
    assert Graph.load(tmp_path / "step.graph").facts.trainer == "torchtitan"
    assert known.content_hash == plain.content_hash, "the same step"
    f = foretell.forecast(known, on="2xh200")
    assert f.trainer.seconds > 0
    assert any("torchtitan" in caveat.text for caveat in f.caveats)
