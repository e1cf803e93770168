"""Settings of Hydra before 1.0 are put together as it did."""

from __future__ import annotations

import types
from pathlib import Path

import pytest

from foretell.capture.script.pretend import former_hydra


def test_groups_and_words_make_the_settings(tmp_path: Path) -> None:
    pytest.importorskip("omegaconf")
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent" / "sac.yaml").write_text("agent:\n  name: sac\n  params: {size: 4, device: '${device}'}\n")
    (tmp_path / "train.yaml").write_text("defaults:\n  - agent: sac\nenv: a\ndevice: cuda\nhydra:\n  name: x\n")
    made = former_hydra.composed(str(tmp_path / "train.yaml"), ["env=b", "agent.params.size=8", "hydra.run.dir=x"])
    assert (made.env, made.agent.params.size, made.agent.params.device) == ("b", 8, "cuda")
    assert "hydra" not in made


def test_a_class_with_parameters_is_made() -> None:
    utils = types.SimpleNamespace(instantiate=lambda config: "now", get_object={"a.B": dict}.get, get_original_cwd=str)
    former_hydra._make_former(utils)
    assert utils.instantiate({"class": "a.B", "params": {"x": 1}}, y=2) == {"x": 1, "y": 2}
    assert utils.instantiate({"_target_": "a.B"}) == "now"
