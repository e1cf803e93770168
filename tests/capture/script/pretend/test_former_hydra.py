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


class _Refused(Exception):
    pass


def test_a_plugin_that_is_missing_gives_way_and_a_group_of_one_package_is_found() -> None:
    class ConfigRepository:
        def load_config(self, config_path: str) -> str | None:
            return config_path if config_path.endswith(("/default", "/basic")) else None

    class ConfigLoaderImpl:
        def load_configuration(self, config_name: str, overrides: list[str]) -> list[str]:
            if "task=walk" in overrides:
                raise _Refused("Could not override 'task'.\nDid you mean to override task@_global_?")
            return overrides

    module = types.SimpleNamespace(
        ConfigRepository=ConfigRepository, ConfigLoaderImpl=ConfigLoaderImpl, ConfigCompositionException=_Refused
    )
    former_hydra._do_without_plugins(module)
    former_hydra._override_what_is_meant(module)
    assert ConfigRepository().load_config("hydra/job_logging/colorlog") == "hydra/job_logging/default"
    assert ConfigRepository().load_config("model/unet") is None
    assert ConfigLoaderImpl().load_configuration("c", ["task=walk", "a=1"]) == ["task@_global_=walk", "a=1"]
