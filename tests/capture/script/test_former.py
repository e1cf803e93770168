"""Names and arguments that libraries had when a script was written."""

from __future__ import annotations

from pathlib import Path

import pytest

import foretell
from foretell.errors import WorkloadError
from tests.capture.script.conftest import Write

PARSED = """
    import dataclasses, sys
    import torch
    from torch import nn
    from transformers import AdamW, HfArgumentParser, Trainer, TrainingArguments

    @dataclasses.dataclass
    class Model:
        width: int = 8
        use_cache: bool = False

    @dataclasses.dataclass
    class Arguments(TrainingArguments):
        cache_dir: str = ""

    model_arguments, arguments = HfArgumentParser((Model, Arguments)).parse_args_into_dataclasses()
    assert model_arguments.width == 16 and arguments.eval_strategy == "no" and arguments.learning_rate == 2e-5
    assert arguments.fsdp_config["transformer_layer_cls_to_wrap"] == ["Layer"]
    TrainingArguments("out", evaluation_strategy="steps", eval_steps=5, group_by_length=True, report_to=None)
    model = nn.Linear(16, 4).cuda()
    optimizer = AdamW(model.parameters(), lr=arguments.learning_rate, correct_bias=False)
    for step in range(5):
        model(torch.randn(8, 16).cuda()).sum().backward()
        optimizer.step()
"""


def test_arguments_of_older_trainers_are_taken(script: Write) -> None:
    pytest.importorskip("accelerate")
    words = "--output_dir out --width 16 --evaluation_strategy no --learning_rate 2e-5 --warmup_ratio 0.03 "
    words += "--fsdp_transformer_layer_cls_to_wrap Layer --overwrite_output_dir True"
    assert foretell.capture_graph(script(PARSED, arguments=tuple(words.split()))).samples == 8


def test_a_word_that_became_the_languages_own_is_named(script: Write, tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"line 2 .*async=True.*non_blocking"):
        foretell.capture_graph(script("import torch\ntorch.zeros(1).cuda(async=True)\n"))
