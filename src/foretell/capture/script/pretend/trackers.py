"""Trackers, plots, progress bars and what else watches a run: quiet where they are installed, and there where not."""

from __future__ import annotations

import importlib.util
import inspect
import os
import sys
import types
from collections.abc import Mapping
from typing import Any, Final

from foretell.capture.script.imports import once_imported, provide, replace_broken
from foretell.capture.script.pretend.nothing import RETURNED, Nothing, has_everything
from foretell.capture.script.session import Session

_SWITCHES: Final = {
    "WANDB_MODE": "disabled", "WANDB_DISABLED": "true", "WANDB_SILENT": "true", "COMET_MODE": "disabled",
    "NEPTUNE_MODE": "debug", "DISABLE_MLFLOW_INTEGRATION": "TRUE", "CLEARML_OFFLINE_MODE": "1", "SWANLAB_MODE": "disabled",
    "DO_NOT_TRACK": "1", "MPLBACKEND": "Agg",
}  # fmt: skip
_BOARD: Final = "torch.utils.tensorboard"
_WATCHERS: Final = frozenset(
    """wandb tensorboard tensorboardX tensorboard_logger mlflow comet_ml neptune clearml aim trackio swanlab visdom visualdl
    dvclive sacred trains polyaxon guild hiddenlayer torchviz graphviz pydot netron torchsummary torchinfo torchsummaryX
    torchstat pytorch_model_summary thop ptflops GPUtil gpustat py3nvml nvidia_smi setproctitle colorlog coloredlogs
    progress progressbar alive_progress matplotlib mpl_toolkits seaborn plotly bokeh ipdb pudb IPython memory_profiler
    line_profiler pytorch_memlab codecarbon carbontracker slack_sdk knockknock telegram_send notifiers ray_lightning
    azureml torch_tb_profiler pyinstrument viztracer pytorch_modelsummary moviepy""".split()
)
# Services, demonstrations and scores, which no step needs; and what only makes words look well.
_AROUND_TRAINING: Final = frozenset(
    """openai anthropic gradio streamlit boto3 botocore rouge rouge_score rouge_chinese sacrebleu bert_score jiwer pycocoevalcap
    seqeval bleurt pesq pystoi loguru termcolor colorama tabulate prettytable texttable terminaltables pretty_errors
    better_exceptions pyfiglet humanize nvitop nvtx""".split()
)
_SERVICES: Final = ("openai", "anthropic", "gradio")  # of which scripts import what newer versions have no more
_GIVEN: Final[Mapping[str, Any]] = {
    f"{_BOARD}.summary.hparams": 3, "tensorboard.summary.hparams": 3, "matplotlib.pyplot.subplots": 2, "thop.profile": (0.0, 0.0),
    "thop.clever_format": ("0", "0"), "ptflops.get_model_complexity_info": ("0", "0"), "GPUtil.getGPUs": [],
    "GPUtil.getAvailable": [0], "GPUtil.getFirstAvailable": [0], "matplotlib.pyplot.hist": 3,
}  # fmt: skip


def install(session: Session) -> None:
    os.environ.update(_SWITCHES)
    RETURNED.update(_GIVEN)
    missing = importlib.util.find_spec("tensorboard") is None  # then torch's own part would ask for it
    provide(lambda name: name.startswith(_BOARD), Nothing, first=missing, to_libraries=True)
    provide(_is_missing, _made, to_libraries=True)
    replace_broken(_WATCHERS | _AROUND_TRAINING, _made)
    provide(lambda name: name.partition(".")[0] == "tensorflow", Nothing)  # with which scripts of torch write logs
    for board in (f"{_BOARD}.writer", "tensorboardX.writer"):
        once_imported(board, _quiet_board)
    once_imported("wandb", _take_any_setting)
    for service in _SERVICES:
        once_imported(service, has_everything)
    once_imported("matplotlib.pyplot", lambda module: vars(module).update(show=lambda *args, **kwargs: None))
    once_imported("visdom", lambda module: vars(module).update(Visdom=Nothing("visdom.Visdom")))


def _is_missing(name: str) -> bool:
    """One that a library has imported for real keeps its own parts."""
    package = name.partition(".")[0]
    there = sys.modules.get(package)
    real = there is not None and not isinstance(there, Nothing) and package not in _SERVICES
    return package in _WATCHERS | _AROUND_TRAINING and not real


def _made(name: str) -> types.ModuleType:
    return _Wandb(name) if name == "wandb" else Nothing(name)


def _quiet_board(module: Any) -> None:
    """A writer of TensorBoard that writes nothing: graphs would be traced, and histograms computed."""
    writer = module.SummaryWriter

    def init(self: Any, log_dir: Any = None, *args: Any, **kwargs: Any) -> None:
        folder = os.fspath(log_dir or kwargs.get("logdir") or "runs")
        self.log_dir = self.logdir = folder
        self.file_writer = self.all_writers = Nothing(f"{_BOARD}.FileWriter")

    writer.__init__ = init
    for name in [n for n in dir(writer) if n.startswith("add_") or n in ("flush", "close", "export_scalars_to_json")]:
        setattr(writer, name, lambda self, *args, **kwargs: None)
    for name in ("get_logdir", "_get_logdir"):
        setattr(writer, name, lambda self: self.logdir)


def _take_any_setting(module: Any) -> None:
    """Of another version of wandb: what it does not know changes nothing that is tracked nowhere."""
    if isinstance(module, Nothing):
        return
    settings, init = module.Settings, module.init
    known, taken = frozenset(settings.model_fields), frozenset(inspect.signature(init).parameters)
    module.Settings = lambda *args, **given: settings(*args, **{k: v for k, v in given.items() if k in known})
    module.init = lambda *args, **given: init(*args, **{k: v for k, v in given.items() if k in taken})


class _Config(dict[str, Any]):
    """Settings by name, as keys and as attributes."""

    def __getattr__(self, name: str) -> Any:
        if name not in self:
            raise AttributeError(name)
        return self[name]

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def update(self, given: Any = None, *args: Any, **named: Any) -> None:  # type: ignore[override]
        """Of a mapping, or of what a parser of arguments made."""
        super().update(_as_mapping(given), **{k: v for k, v in named.items() if k != "allow_val_change"})

    def setdefaults(self, given: Any) -> None:
        super().update({**_as_mapping(given), **self})


def _as_mapping(given: Any) -> Mapping[str, Any]:
    if given is None:
        return {}
    return given if isinstance(given, Mapping) else {k: v for k, v in vars(given).items() if not k.startswith("_")}


class _Wandb(Nothing):
    """A script may take its settings back out of the tracker that it gave them to."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        vars(self).update(config=_Config(), run=None, init=self._start)

    def _start(self, *args: Any, config: Any = None, **how: Any) -> Any:
        self.config.update(config)
        run = Nothing("wandb.run")
        vars(run).update(config=self.config, name="run", id="run", dir=".", url="", project="", summary=_Config())
        vars(self).update(run=run)
        return run
