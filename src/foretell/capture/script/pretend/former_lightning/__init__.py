"""Lightning before its second version: its modules, names, arguments and hooks, as what they became.

Many scripts are written for it. They run on the version that is installed; what has no part in a step (what ends an
epoch, a progress bar) is taken and dropped.
"""

from __future__ import annotations

import importlib
import inspect
import types
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from foretell.capture.script.imports import once_imported, provide
from foretell.capture.script.pretend.former_lightning import arguments, steps
from foretell.capture.script.pretend.nothing import Nothing
from foretell.capture.script.session import Session

_LIBRARIES: Final = ("pytorch_lightning", "lightning.pytorch")
# Where a module's contents are now, within the library or outside.
_MOVED: Final[Mapping[str, tuple[str, ...]]] = {
    "core.lightning": (".core.module",), "core.decorators": (".core.hooks",), "core.memory": (".utilities.model_summary",),
    "utilities.distributed": (".utilities.rank_zero",), "utilities.apply_func": ("lightning_utilities.core.apply_func",),
    "utilities.cloud_io": ("lightning_fabric.utilities.cloud_io",), "callbacks.base": (".callbacks.callback",),
    "loggers.base": (".loggers.logger",), "logging": (".loggers",), "loggers.test_tube": (".loggers",),
    "profiler": (".profilers",), "metrics": ("torchmetrics",), "metrics.functional": ("torchmetrics.functional",),
    "metrics.classification": ("torchmetrics",), "plugins.training_type": (".plugins",), "plugins.training_type.ddp": (".plugins",),
    "trainer.supporters": (".utilities.combined_loader",), "overrides.data_parallel": (".overrides.distributed",),
    "plugins.precision.native_amp": (".plugins",), "root_module.root_module": (".core.module",), "root_module": (".core.module",),
    "callbacks.pt_callbacks": (".callbacks",), "callbacks.lr_logger": (".callbacks",),
}  # fmt: skip
# Names that were in a module, and what they became there or in another.
_RENAMED: Final[Mapping[str, Mapping[str, str]]] = {
    "callbacks": {"ProgressBar": "TQDMProgressBar", "GPUStatsMonitor": "DeviceStatsMonitor", "XLAStatsMonitor": "DeviceStatsMonitor",
                  "LearningRateLogger": "LearningRateMonitor", "ProgressBarBase": "ProgressBar"},
    "callbacks.progress": {"ProgressBarBase": "ProgressBar"}, "loggers.logger": {"LightningLoggerBase": "Logger"},
    "utilities.types": {"EPOCH_OUTPUT": "STEP_OUTPUT"},
}  # fmt: skip
_STRATEGIES: Final = {
    "DDPPlugin": "DDPStrategy", "DDPSpawnPlugin": "DDPStrategy", "DDPShardedPlugin": "DDPStrategy",
    "DeepSpeedPlugin": "DeepSpeedStrategy", "FullyShardedPlugin": "FSDPStrategy", "DDP2Plugin": "DDPStrategy",
}  # fmt: skip


def install(session: Session) -> None:
    provide(_was_moved, _made, to_everyone=True)  # libraries for it are seldom kept up
    for library in _LIBRARIES:
        for part, names in _RENAMED.items():
            once_imported(f"{library}.{part}", partial(_rename, names=names))
        once_imported(library, lambda module: _adapt(module, session))


def _was_moved(name: str) -> bool:
    return any(name.startswith(f"{of}.") and name[len(of) + 1 :] in _MOVED for of in _LIBRARIES)


def _made(name: str) -> types.ModuleType:
    """A module that was moved: it has what is in the one that it became."""
    library = next(of for of in _LIBRARIES if name.startswith(f"{of}."))
    places = [place if place[0] != "." else library + place for place in _MOVED[name[len(library) + 1 :]]]
    module: Any = types.ModuleType(name)

    def find(wanted: str) -> Any:
        if wanted.startswith("__"):
            raise AttributeError(wanted)
        for there in [*map(importlib.import_module, places), importlib.import_module(library)]:
            if hasattr(there, wanted):
                return getattr(there, wanted)
        raise AttributeError(f"module '{name}' has no attribute '{wanted}'")

    module.__getattr__ = find
    return module  # type: ignore[no-any-return]


def _rename(module: Any, names: Mapping[str, str]) -> None:
    for former, name in names.items():
        if not hasattr(module, former) and hasattr(module, name):
            setattr(module, former, getattr(module, name))


def _add(owner: Any, **values: Any) -> None:
    for name, value in values.items():
        if not hasattr(owner, name):
            setattr(owner, name, value)


def _adapt(library: Any, session: Session) -> None:
    _add_names(library)
    arguments.adapt(library)
    steps.adapt(library)
    for kind, reduced in {"ModelCheckpoint": _checkpoint, "EarlyStopping": _stopping}.items():
        _accept(getattr(library.callbacks, kind), reduced)


def _add_names(library: Any) -> None:
    def same(function: Any) -> Any:
        return function

    strategies = library.strategies
    now = {former: getattr(strategies, name) for former, name in _STRATEGIES.items() if hasattr(strategies, name)}
    hooks = importlib.import_module(f"{library.__name__}.core.hooks")
    _add(library.plugins, **now, NativeMixedPrecisionPlugin=library.plugins.MixedPrecision)
    _add(library, data_loader=same, LightningDistributedDataParallel=Nothing("LightningDistributedDataParallel"))
    _add(hooks, auto_move_data=same, data_loader=same)
    seeds = importlib.import_module(f"{library.__name__}.utilities.seed")
    _add(seeds, seed_everything=library.seed_everything)
    _add(library.loggers, TestTubeLogger=_test_tube(library.loggers), LoggerCollection=list)
    library.seed_everything = _seeding(library.seed_everything)


def _seeding(seed: Callable[..., Any]) -> Callable[..., Any]:
    """A configuration's seed may be text."""
    return lambda given=None, *args, **kwargs: seed(
        int(given) if isinstance(given, str) and given.isdigit() else given, *args, **kwargs
    )


def _test_tube(loggers: Any) -> Callable[..., Any]:
    """A logger of a package that is no longer made: it wrote what TensorBoard reads."""

    def make(save_dir: Any = ".", name: Any = "default", *args: Any, version: Any = None, **kwargs: Any) -> Any:
        return loggers.TensorBoardLogger(save_dir, name=name or "default", version=version)

    return make


def _accept(kind: Any, reduced: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    make = kind.__init__
    known = inspect.signature(make).parameters

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **{name: value for name, value in reduced(kwargs).items() if name in known})

    init.__wrapped__ = make  # type: ignore[attr-defined]
    kind.__init__ = init


def _checkpoint(given: dict[str, Any]) -> dict[str, Any]:
    path = given.pop("filepath", None)
    if path is not None:
        given.setdefault("dirpath", str(path).rpartition("/")[0] or None)
    if "period" in given:
        given.setdefault("every_n_epochs", given.pop("period"))
    return _stopping(given)


def _stopping(given: dict[str, Any]) -> dict[str, Any]:
    if given.get("mode") == "auto":
        given["mode"] = "max" if any(word in str(given.get("monitor")) for word in ("acc", "f1", "auc")) else "min"
    return given
