"""Fitted methods as safe files: one JSON file of what they are, one safetensors file of their numbers. No code of a file runs.

A fitted method is a tree of dataclasses, collections, arrays and networks. `_CLASSES` names every class that may be in it;
a network is made anew from the arguments it was made with and given its weights, without a byte more than the file has.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from foretell.cost.files import load_arrays, reading, save_arrays
from foretell.cost.folder import check_seal, seal
from foretell.errors import InputError, ModelError
from foretell.limits import read_json
from foretell.methods.protocol import Method

_VERSION: Final = 1
_ABOUT: Final = "method.json"
_NUMBERS: Final = "numbers.safetensors"
_HOME: Final = "foretell."
_CLASSES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "ScaleDL": "methods.scaledl.method:ScaleDL", "LayerSettings": "methods.scaledl.layers:LayerSettings",
        "LayerModels": "methods.scaledl.layers:LayerModels", "Kind": "methods.scaledl.layers:_Kind",
        "NetworkSettings": "methods.scaledl.network:NetworkSettings", "Across": "methods.scaledl.network:Across",
        "PredictDDL": "methods.predictddl.method:PredictDDL", "TaskChecker": "methods.predictddl.method:TaskChecker",
        "Predictor": "methods.predictddl.method:Predictor", "Embedder": "methods.predictddl.method:Embedder",
        "Regressor": "methods.predictddl.regressors:Regressor",
        "Driple": "methods.driple.method:Driple", "DripleSettings": "methods.driple.method:DripleSettings",
        "Fitted": "methods.driple.method:Fitted", "Shape": "methods.driple.network:Shape",
        "DNNAbacus": "methods.dnnabacus:DNNAbacus", "Ernest": "methods.ernest:Ernest",
        "Foretell": "methods.product:Foretell",
        **{name: f"profile:{name}" for name in (
            "Profile", "Card", "Intervals", "Links", "MemoryFactors", "Operators", "Purpose", "Residuals",
        )},
    }
)  # fmt: skip
_NETWORKS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "layer": "methods.scaledl.layers:_Regressor", "across": "methods.scaledl.network:_Network",
        "driple": "methods.driple.network:Network",
    }
)  # fmt: skip
_OLD_FIELDS: Final = {"told_times": "sees_times"}  # of methods that 0.1 saved
_SAVED: Final = ("ScaleDL", "PredictDDL", "Driple", "DNNAbacus", "Ernest", "Foretell")
Arrays = dict[str, Any]


def save(method: Method, folder: Path | str) -> Path:
    """Write a fitted method into a folder that holds nothing else."""
    folder = Path(folder)
    if folder.exists() and not (folder / _ABOUT).exists() and any(folder.iterdir()):
        raise InputError(f"{folder} holds something else than a method. Choose a new folder.")
    arrays: Arrays = {}
    tree = _Writer(arrays).write(method)
    if not isinstance(tree, dict) or tree.get("class") not in _SAVED:
        raise InputError(f"{type(method).__name__} cannot be saved. Those that can: {', '.join(_SAVED)}.")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _ABOUT).write_text(json.dumps({"version": _VERSION, "method": tree}, separators=(",", ":")) + "\n")
    save_arrays(folder / _NUMBERS, arrays or {"nothing": np.zeros(1)}, version=_VERSION)
    seal(folder)
    return folder


def load(folder: Path | str) -> Method:
    """A method as it was saved, ready to predict."""
    tree = _saved(Path(folder))
    with reading(Path(folder) / _ABOUT, "fitted method"):
        arrays, _ = load_arrays(Path(folder) / _NUMBERS, version=_VERSION)
        made: Method = _Reader(arrays).read(tree)
    return made


def saved_kind(folder: Path | str) -> str:
    """Which method a folder holds, like PredictDDL; its numbers are not read."""
    return str(_saved(Path(folder))["class"])


def _saved(folder: Path) -> Mapping[str, Any]:
    """What is written of the method in a folder, once its files are known to be whole."""
    if not (folder / _ABOUT).is_file():
        raise InputError(f"{folder} holds no fitted method. Fit one with: foretell fit {folder} --method scaledl")
    check_seal(folder)
    with reading(folder / _ABOUT, "fitted method"):
        about = read_json(folder / _ABOUT)
        if int(about["version"]) > _VERSION:
            raise ModelError(
                f"{folder} has format {about['version']}, this Foretell reads up to {_VERSION}. Upgrade it."
            )
        tree: Mapping[str, Any] = about["method"]
        if tree["class"] not in _SAVED:
            raise ValueError(f"{tree['class']!r} is no method")
    return tree


class _Writer:
    def __init__(self, arrays: Arrays) -> None:
        self.arrays = arrays
        self.named = {_found(_CLASSES, name): name for name in _CLASSES if _is_loaded(_CLASSES[name])}
        self.networks = {_found(_NETWORKS, name): name for name in _NETWORKS if _is_loaded(_NETWORKS[name])}

    def write(self, value: Any) -> Any:
        if value is None or isinstance(value, bool | int | str):
            return value
        if isinstance(value, float):
            return {"float": value.hex()}  # of infinity and what is no number too
        if isinstance(value, np.ndarray):
            return {"array": self._keep(value)}
        if isinstance(value, tuple | list):
            return {"tuple" if isinstance(value, tuple) else "list": [self.write(each) for each in value]}
        if isinstance(value, Mapping):
            return {"map": [[self.write(key), self.write(each)] for key, each in value.items()]}
        if isinstance(value, Path):
            return {"path": str(value)}
        if type(value) in self.networks:
            weights = {name: self._keep(weight.detach().cpu().numpy()) for name, weight in value.state_dict().items()}
            made_with = self.write(value.made_with)
            return {"network": self.networks[type(value)], "made_with": made_with, "weights": weights}
        if type(value) in self.named:
            return {"class": self.named[type(value)], "fields": {k: self.write(v) for k, v in _fields(value).items()}}
        raise InputError(
            f"a {type(value).__name__} cannot be saved with a method. Leave it out, and give it after loading."
        )

    def _keep(self, array: np.ndarray[Any, Any]) -> str:
        name = f"{len(self.arrays)}"
        self.arrays[name] = array
        return name


class _Reader:
    def __init__(self, arrays: Mapping[str, Any]) -> None:
        self.arrays = arrays
        self.kinds: dict[str, Callable[[Any], Any]] = {
            "float": float.fromhex,
            "array": lambda name: self.arrays[name],
            "tuple": lambda items: tuple(self.read(each) for each in items),
            "list": lambda items: [self.read(each) for each in items],
            "map": lambda pairs: {self.read(key): self.read(each) for key, each in pairs},
            "path": Path,
        }

    def read(self, tree: Any) -> Any:
        if tree is None or isinstance(tree, bool | int | str):
            return tree
        if "network" in tree:
            return self._network(tree)
        if "class" in tree:
            return self._made(_found(_CLASSES, tree["class"]), {k: self.read(v) for k, v in tree["fields"].items()})
        [(kind, value)] = tree.items()
        return self.kinds[kind](value)

    def _network(self, tree: Any) -> Any:
        import torch

        cls = _found(_NETWORKS, tree["network"])
        with torch.device("meta"):  # sizes that the weights do not have cost nothing before they are refused
            network = cls(*self.read(tree["made_with"]))
            weights = {name: torch.from_numpy(self.arrays[kept]) for name, kept in tree["weights"].items()}
            if hasattr(network, "expect"):
                network.expect(weights)
        network.load_state_dict(weights, assign=True)
        return network.eval()

    def _made(self, cls: Any, fields: Mapping[str, Any]) -> Any:
        if hasattr(cls, "__dataclass_fields__"):
            return cls(**{_OLD_FIELDS.get(name, name): value for name, value in fields.items()})
        made = cls()  # fitted values are attributes of a plain class
        for name, value in fields.items():
            if name not in vars(made):
                raise ValueError(f"a {cls.__name__} has no {name}")
            setattr(made, name, value)
        return made


def _fields(value: Any) -> dict[str, Any]:
    """What a class keeps; what begins with an underscore is found again."""
    if dataclasses.is_dataclass(value):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.name[0] != "_"}
    return dict(vars(value))


def _is_loaded(where: str) -> bool:
    import sys

    return _HOME + where.partition(":")[0] in sys.modules


def _found(known: Mapping[str, str], name: str) -> Any:
    module, _, attribute = known[name].partition(":")
    return getattr(importlib.import_module(_HOME + module), attribute)
