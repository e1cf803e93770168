"""Learned times of ops: for each family, boosted trees that predict how far from the roofline its ops run.

Physics bounds the answer: what is learned is log(time ÷ roofline), so a model that knows nothing predicts the roofline.
All families of a model lie in one file of arrays; `learn` makes it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from foretell.cost.features import Description, describe
from foretell.cost.files import load_arrays, reading, save_arrays
from foretell.cost.recurrent import by_sequences, never_less
from foretell.cost.trees import Trees
from foretell.errors import ModelError
from foretell.graph import Signature
from foretell.graph.operators import Family, operator_of
from foretell.hardware import Device
from foretell.limits import parse_json
from foretell.units import Seconds

Floats = npt.NDArray[np.float64]
FILE: Final = "operators.safetensors"
FUSED_FILE: Final = "fused.safetensors"  # of kernels that a compiler writes
TEXT_INDEX: Final = "operators.json"  # of the first version, which kept LightGBM's text of each family
VERSION: Final = 2
_FARTHEST: Final = 20.0  # from the roofline, as a logarithm: farther off, no number of trees is to be believed
REMEMBERED: Final = 50_000  # ops whose times are kept, for each device
UNKNOWN: Final = -1.0  # the code of an operator that was not there when the model was fitted


@dataclass(frozen=True, kw_only=True)
class FamilyModel:
    """Trees of one family, with the columns and operators they were fitted on."""

    columns: tuple[str, ...]
    operators: tuple[str, ...]
    trees: Trees

    def __post_init__(self) -> None:
        if not self.columns or np.any(self.trees.column >= len(self.columns)):
            raise ValueError(f"trees ask for a column beyond the {len(self.columns)} there are")

    def log_ratio(self, names: Sequence[str], descriptions: Sequence[Description]) -> Floats:
        """log(time ÷ roofline) of each op."""
        return self.trees.predict(matrix(names, descriptions, self.columns, self.operators))


def matrix(
    names: Sequence[str], descriptions: Sequence[Description], columns: Sequence[str], operators: Sequence[str]
) -> Floats:
    """The table that trees read: the described values, and last the operator as a category."""
    code = {name: float(i) for i, name in enumerate(operators)}
    take = itemgetter(*columns)
    table = np.empty((len(names), len(columns) + 1))
    for row, name, d in zip(table, names, descriptions, strict=True):
        try:
            row[:-1] = take(d.values)
        except KeyError:  # not all ops of a family are described by the same values
            row[:-1] = [d.values.get(column, np.nan) for column in columns]
        row[-1] = code.get(name, UNKNOWN)
    return table


def places_by_family(descriptions: Sequence[Description]) -> dict[str, list[int]]:
    places: dict[str, list[int]] = {}
    for place, description in enumerate(descriptions):
        places.setdefault(description.family, []).append(place)
    return places


class Alone(NamedTuple):
    """What trees say of an op by itself on the device that they are of, and the family that they know it by."""

    seconds: Seconds
    family: Family


@dataclass(frozen=True, kw_only=True)
class OperatorModels:
    families: Mapping[str, FamilyModel]
    _known: dict[tuple[Device, bool], dict[Signature, Alone]] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )

    def alone(self, signatures: Sequence[Signature], own: Device, *, tf32: bool) -> list[Alone]:
        """Each op on the device that trees are of. Every other device is transferred from there, so each is asked once."""
        known = self._known.setdefault((own, tf32), {})
        if len(known) > REMEMBERED:
            known = self._known[own, tf32] = {}  # a new one: other threads read the old
        if fresh := list(dict.fromkeys(s for s in signatures if s not in known)):
            series = {s: by_sequences(s) for s in fresh if operator_of(s.name).family == "rnn"}
            every = list(dict.fromkeys([*fresh, *chain.from_iterable(series.values())]))
            described = {s: describe(s, own, tf32=tf32) for s in every}
            names = [operator_of(s.name).like or s.name for s in every]
            seconds = dict(zip(every, self.seconds(names, list(described.values())).tolist(), strict=True))
            taken = seconds | {
                s: never_less([seconds[each] for each in near], near.index(s)) for s, near in series.items()
            }
            known.update((s, Alone(taken[s], described[s].family)) for s in fresh)
        return [known[s] for s in signatures]

    def seconds(self, names: Sequence[str], descriptions: Sequence[Description]) -> Floats:
        """Device time of each op; the roofline where its family has no model."""
        out = np.array([d.roofline for d in descriptions])
        for family, places in places_by_family(descriptions).items():
            model = self.families.get(family)
            if model is not None:
                ratio = model.log_ratio([names[i] for i in places], [descriptions[i] for i in places])
                out[places] *= np.exp(ratio.clip(-_FARTHEST, _FARTHEST))
        return out

    def knows(self, name: str, family: str) -> bool:
        model = self.families.get(family)
        return model is not None and name in model.operators

    def with_families(self, path: Path | None) -> OperatorModels:
        """These, and what a file has of others: of kernels that a compiler writes, which were measured in other steps."""
        return (
            self
            if path is None
            else OperatorModels(families={**self.families, **load_families(path, "model of operators")})
        )

    def save(self, folder: Path) -> None:
        save_families(folder / FILE, self.families)

    @classmethod
    def load(cls, folder: Path) -> OperatorModels:
        if not (folder / FILE).is_file() and (folder / TEXT_INDEX).is_file():
            raise ModelError(
                f"the model in {folder} has format 1, this Foretell reads {VERSION}. Convert it with: "
                f"python -m foretell.learn.convert {folder}"
            )
        return cls(families=load_families(folder / FILE, "model of operators"))


def save_families(path: Path, families: Mapping[str, FamilyModel]) -> None:
    arrays = {name: a for family, model in families.items() for name, a in model.trees.arrays(family)}
    index = {family: {"columns": m.columns, "operators": m.operators} for family, m in families.items()}
    save_arrays(path, arrays, version=VERSION, families=json.dumps(index))


def load_families(path: Path, what: str) -> dict[str, FamilyModel]:
    with reading(path.parent, what):
        arrays, about = load_arrays(path, version=VERSION)
        return {
            str(family): FamilyModel(
                columns=tuple(map(str, entry["columns"])),
                operators=tuple(map(str, entry["operators"])),
                trees=Trees.read(arrays, family),
            )
            for family, entry in parse_json(about["families"].encode()).items()
        }
