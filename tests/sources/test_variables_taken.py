"""Launch scripts that leave variables to their caller: what was put in for them is shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretell.sources.configs import configuration_of

SCRIPT = """
TP=${TP_SIZE:-2}
PP=${PP_SIZE:-1}
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers ${LAYERS:-4} --hidden-size 64 --num-attention-heads 4 \\
    --seq-length 128 --max-position-embeddings 128 --micro-batch-size $MBS --global-batch-size 64 --bf16 --vocab-size 1024 \\
    --tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP --wandb-exp-name ${WANDB_API_KEY:-none} \\
    --data-path ${DATA:-/data/text} --ckpt-step 3 --log-energy --rl-use-sequence-packing
"""


def test_values_of_the_environment_and_defaults_are_used_and_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "train.sh"
    path.write_text(SCRIPT)
    monkeypatch.setenv("TP_SIZE", "4")
    monkeypatch.setenv("MBS", "8")
    monkeypatch.setenv("WANDB_API_KEY", "do-not-show")
    found = configuration_of(str(path))
    assert found is not None
    assert (found.plan["tp"], found.settings["batch"]) == (4, 8)
    first, second = (c.text for c in found.caveats if c.code == "variables-taken")
    assert first == "train.sh takes from the environment: TP_SIZE=4, MBS=8."
    assert second == "train.sh takes by default, as nothing sets them: PP_SIZE=1, LAYERS=4."
    assert "do-not-show" not in "".join(c.text for c in found.caveats)


def test_families_of_arguments_cost_nothing_or_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "train.sh"
    path.write_text(SCRIPT.replace("$MBS", "8"))
    found = configuration_of(str(path))
    assert found is not None
    codes = {c.code: c.text for c in found.caveats}
    assert "configuration-key-unknown" not in codes
    assert "rl_use_sequence_packing" in codes["configuration-not-modelled"]
    assert "ckpt_step" not in codes["configuration-not-modelled"]
