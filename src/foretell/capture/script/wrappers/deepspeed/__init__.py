"""DeepSpeed as a script sees it: `initialize` gives an engine that runs one replica's step, and its configuration is the plan.

What it would communicate, gather or keep in host memory is the plan's to say. Precision, accumulation, clipping and the
optimizer are the step's, and run here as a Workload of the same configuration runs them. DeepSpeed's own package, where
it is installed, is not used: it needs a GPU.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import torch

from foretell.capture.as_gpu.patches import replace
from foretell.capture.script.findings import DeepSpeed
from foretell.capture.script.imports import provide
from foretell.capture.script.session import Session
from foretell.capture.script.wrappers import keywords
from foretell.capture.script.wrappers.deepspeed.engine import Engine
from foretell.capture.script.wrappers.deepspeed.parts import (
    NAME,
    PARTS,
    VERSION,
    Accelerator,
    OnDevice,
    Part,
    add_arguments,
    join_group,
)
from foretell.capture.script.wrappers.deepspeed.pipeline import PipelineEngine, PipelineModule
from foretell.errors import WorkloadError
from foretell.sources.configs import Configuration, read_configuration

FREE: Final = ("model_parameters", "distributed_port", "dist_init_required")
NOT_MODELLED: Final = ("mpu", "mesh_param")
USED: Final = ("args", "model", "optimizer", "training_data", "lr_scheduler", "collate_fn", "config", "config_params")


def install(session: Session) -> None:
    script = session.script
    words = (*script.arguments, *dict(script.environment))
    everyone = importlib.util.find_spec(NAME) is not None or any(NAME in word.lower() for word in words)
    provide(
        lambda name: name.partition(".")[0] == NAME,
        lambda name: _module(name, session),
        first=True,
        to_everyone=everyone,
    )
    if everyone:
        _be_installed()


def _be_installed() -> None:
    """Libraries ask for its version before they import it."""
    version, metadata = importlib.metadata.version, importlib.metadata.metadata
    replace(importlib.metadata, "version", lambda name: VERSION if name == NAME else version(name))
    replace(
        importlib.metadata,
        "metadata",
        lambda name: {"Name": NAME, "Version": VERSION} if name == NAME else metadata(name),
    )


def _module(name: str, session: Session) -> ModuleType:
    module = Part(name)
    if name == NAME:
        module.__dict__.update(
            __version__=VERSION,
            version=VERSION,
            initialize=lambda *args, **kwargs: _initialize(session, *args, **kwargs),
            init_distributed=join_group,
            add_config_arguments=add_arguments,
            DeepSpeedEngine=Engine,
            PipelineEngine=PipelineEngine,
            PipelineModule=PipelineModule,
            OnDevice=OnDevice,
            get_accelerator=Accelerator,
        )
    else:
        module.__dict__.update(PARTS.get(name.removeprefix(f"{NAME}."), {}))
    return module


def initialize(
    args: Any = None, model: Any = None, optimizer: Any = None, model_parameters: Any = None, training_data: Any = None,
    lr_scheduler: Any = None, distributed_port: int = 29500, mpu: Any = None, dist_init_required: Any = None,
    collate_fn: Any = None, config: Any = None, mesh_param: Any = None, config_params: Any = None,
) -> None:  # fmt: skip
    """Have the signature of DeepSpeed's own, which is not installed."""


def _initialize(session: Session, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
    keys = keywords(initialize, f"deepspeed.initialize in {session.script.name}", args, kwargs)
    keys.free(*FREE)
    keys.not_modelled(*NOT_MODELLED)
    arguments, model = keys.take("args"), keys.take("model")
    given = keys.take("config") or keys.take("config_params")
    given = given or getattr(arguments, "deepspeed_config", None) or getattr(arguments, "deepscale_config", None)
    if given is None or model is None:
        raise WorkloadError("deepspeed.initialize is called without a model, or without a config. Give it both.")
    join_group()
    entries, configuration = _read(given)
    kind = PipelineEngine if isinstance(model, PipelineModule) else Engine
    engine = kind(model, keys.take("optimizer"), keys.take("lr_scheduler"), configuration, entries, session)
    if isinstance(model, PipelineModule) and model.num_stages > 1:
        session.find(degrees={**session.findings.degrees, "pp": model.num_stages})
    if engine.optimizer is not None:  # else it is a model that is only asked
        session.find_wrapper(DeepSpeed(settings=dict(configuration.plan)), keys)
        session.find_caveats(*configuration.caveats)
    loader, training_data, collate_fn = None, keys.take("training_data"), keys.take("collate_fn")
    if training_data is not None:
        loader = torch.utils.data.DataLoader(training_data, engine.batch, collate_fn=collate_fn)
        if isinstance(engine, PipelineEngine):
            engine.set_dataloader(loader)
    return engine, engine.optimizer, loader, engine.lr_scheduler


def _read(given: Any) -> tuple[Mapping[str, Any], Configuration]:
    """A table, or the path of a file that has one."""
    path = Path("the DeepSpeed config")
    if not isinstance(given, Mapping):
        path = Path(given)
        given = json.loads(path.read_text(encoding="utf-8"))
    usual = {"zero_optimization": {"stage": 0}}  # by which a table with nothing else of DeepSpeed's is recognised
    return given, read_configuration({**usual, **given}, path)
