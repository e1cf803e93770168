"""Trainers by name: as people write them, in a file, in a graph, and on the command line."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

import foretell
from foretell.errors import InputError, WorkloadError
from foretell.forecasting.trainer import trainer_settings
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


def test_a_trainer_brings_its_kernels_or_the_answer_says_that_it_has_not(tmp_path: Path) -> None:
    nemo, plain = foretell.Conditions(trainer="nemo"), foretell.Conditions(trainer="torchtitan")
    assert trainer_settings("hf/gpt2", {"batch": 2}, nemo) == {"batch": 2, "kernels": "megatron"}
    assert trainer_settings("hf/gpt2", {"kernels": "torch"}, nemo) == {"kernels": "torch"}
    assert trainer_settings("hf/gpt2", None, plain) is None
    assert trainer_settings("file.py:function", None, nemo) is None
    without = foretell.forecast(graph("llama"), on="2xh200", conditions=nemo)
    assert any(caveat.code == "trainer-kernels" for caveat in without.caveats)
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "gpt2", "n_embd": 32, "n_layer": 1, "n_head": 2, "vocab_size": 64, "n_positions": 32})
    )
    with_them = foretell.forecast(
        str(tmp_path / "config.json"), on="2xh200", conditions=nemo, settings={"seq": 16, "batch": 2}
    )
    assert not any(caveat.code == "trainer-kernels" for caveat in with_them.caveats)
    assert with_them.graph.facts.trainer == "megatron"
