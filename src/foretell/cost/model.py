"""The cost model of a forecast: learned where operators were measured, the roofline where they were not.

Models are folders of plain files. One is shipped inside the package and found by its name; `roofline` needs none.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from foretell.cost import interaction
from foretell.cost.accumulated import as_measured, further_seconds
from foretell.cost.attained import attained_in
from foretell.cost.attention_kernels import as_run_on
from foretell.cost.beyond_trees import beyond_trees
from foretell.cost.features import describe
from foretell.cost.files import reading
from foretell.cost.folder import CARD, check_seal, file_of, state_of
from foretell.cost.folder import DEFAULT as DEFAULT
from foretell.cost.folder import SHIPPED as SHIPPED
from foretell.cost.host import FILE, HostCosts, usual_costs
from foretell.cost.interaction import Interaction, Outline, outline
from foretell.cost.older_software import OlderSoftware, older_software_in
from foretell.cost.operator_errors import FILE as ERRORS_FILE
from foretell.cost.operator_errors import FUSED_FILE as FUSED_ERRORS
from foretell.cost.operator_errors import OperatorErrors
from foretell.cost.operators import FILE as OPERATORS_FILE
from foretell.cost.operators import FUSED_FILE, REMEMBERED, OperatorModels
from foretell.cost.roofline import Price, on_tf32, price_calls
from foretell.cost.transfer import FILE as GENERATIONS_FILE
from foretell.cost.transfer import Generations, transferred
from foretell.errors import ModelError, did_you_mean
from foretell.folders import Stamps
from foretell.graph import Graph, Signature
from foretell.graph.calls import Calls
from foretell.graph.operators import operator_of
from foretell.hardware import Device
from foretell.hardware import device as known_device
from foretell.hardware import devices as known_devices
from foretell.limits import read_json
from foretell.precision import Precision
from foretell.units import Seconds

Floats = npt.NDArray[np.float64]
ROOFLINE: Final = "roofline"


@dataclass(frozen=True, kw_only=True)
class Priced:
    """A graph's calls with their prices, and the device time of those no model knows, by operator."""

    calls: Calls
    of_calls: Sequence[Price]
    unknown: Mapping[str, Seconds] = field(default_factory=dict)
    families: Mapping[int, str] = field(default_factory=dict)  # call → the family it was priced in
    errors: Mapping[int, float] = field(default_factory=dict)  # and the error to expect of it, as a logarithm

    @property
    def prices(self) -> list[Price]:
        """Of every op."""
        return self.calls.of_ops(self.of_calls)

    @property
    def seconds(self) -> Floats:
        """Of every op."""
        return np.array([price.seconds for price in self.of_calls], dtype=float)[self.calls.places]

    @property
    def waits(self) -> npt.NDArray[np.bool_]:
        """Whether the host waits for it, of every op."""
        return np.array([price.work.waits for price in self.of_calls], dtype=bool)[self.calls.places]


class _Learned(NamedTuple):
    seconds: Seconds
    family: str
    known: bool  # whether a model has seen the operator
    error: float  # to expect, as a logarithm; 0 where no errors are known


@dataclass(frozen=True, kw_only=True)
class CostModel:
    name: str
    folder: Path | None = None  # where it was read from; its errors lie beside it
    device: str = ""  # what it was measured on
    operators: OperatorModels | None = None  # None: the roofline alone
    generations: Generations = field(default_factory=Generations)  # what was learned of devices other than its own
    host: HostCosts = field(default_factory=usual_costs)
    interaction: Interaction | None = None  # None: a step takes the sum of its ops
    older_software: OlderSoftware = field(default_factory=OlderSoftware)
    operator_errors: OperatorErrors | None = None  # of ops on the measured device; None: not known
    _seen: dict[tuple[Device, bool], dict[Signature, _Learned]] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )

    def price(self, graph: Graph, device: Device) -> Priced:
        """Price every op of a graph; equal signatures are priced once."""
        calls, least = graph.calls, price_calls(graph, device)
        if self.operators is None:
            return Priced(calls=calls, of_calls=least)
        launched = [i for i, price in enumerate(least) if price.work.kernel]
        signatures = [calls.distinct[i].signature for i in launched]
        learned = self._learn_all(signatures, device, graph.precision)
        factors = self._factors(graph, device) if launched else {}
        unknown: dict[str, Seconds] = {}
        families: dict[int, str] = {}
        errors: dict[int, float] = {}
        prices = list(least)
        for i, signature in zip(launched, signatures, strict=True):
            own = learned[signature]
            seconds = own.seconds * factors.get(signature, 1.0)
            if self.device in (device.name, ""):  # nothing is faster than the roofline, as far as we know our clocks
                seconds = max(seconds, least[i].seconds)
            prices[i] = Price(least[i].work, seconds)
            families[i] = own.family
            errors[i] = own.error
            if not own.known:
                unknown[signature.name] = unknown.get(signature.name, 0.0) + seconds * calls.times[i]
        return Priced(calls=calls, of_calls=prices, unknown=unknown, families=families, errors=errors)

    def embedding(self, graph: Graph, device: Device) -> Floats:
        """A step as a vector: steps of like ops in like surroundings lie close together.

        For search, take the nearest neighbours among the vectors of measured steps; for transfer, give it as features to
        a model of your own. Vectors of one model are comparable, those of two are not.
        """
        if self.interaction is None or self.operators is None:
            raise ModelError(
                f"the model {self.name!r} has no interaction network, which embeddings come from. Take "
                f"{DEFAULT!r}, or fit one with: foretell fit"
            )
        step = _outline(graph, device)
        return self.interaction.embed(step, *self._alone(step, graph, device), device)

    def _alone(self, step: Outline, graph: Graph, device: Device) -> tuple[Floats, list[str]]:
        """What each node's ops take by themselves, and their family."""
        learned = self._learn_all(step.signatures, device, graph.precision)
        own = [learned[signature] for signature in step.signatures]
        return np.maximum([op.seconds for op in own], step.least), [op.family for op in own]

    def _factors(self, graph: Graph, device: Device) -> Mapping[Signature, float]:
        """What ops take in this step over what they take by themselves.

        Neighbours were seen on the measured device alone, so others are left as they are.
        """
        if self.interaction is None or device.name != self.device:
            return {}
        device = self._as_measured(device)
        step = _outline(graph, device)
        logs = self.interaction.correct(step, *self._alone(step, graph, device), device)
        factors = dict(zip(step.signatures, np.exp(logs).tolist(), strict=True))
        # Kernels that a compiler writes were measured in steps alone, with what is around them.
        return {s: factor for s, factor in factors.items() if operator_of(s.name).family != "fused"}

    def _learn_all(
        self, signatures: Sequence[Signature], device: Device, precision: Precision
    ) -> Mapping[Signature, _Learned]:
        if precision.tf32 != "convolutions":
            return self._learn(signatures, device, precision.on_tf32("matmul", device))
        on_units: dict[bool, list[Signature]] = {False: [], True: []}
        for signature in signatures:
            on_units[on_tf32(signature.name, precision, device)].append(signature)
        learned = {tf32: self._learn(some, device, tf32) for tf32, some in on_units.items()}
        return {signature: learned[tf32][signature] for tf32, some in on_units.items() for signature in some}

    def _learn(self, signatures: Iterable[Signature], device: Device, tf32: bool) -> Mapping[Signature, _Learned]:
        """Asks the models for what they were not asked before: plans and batches repeat most ops of each other."""
        assert self.operators is not None
        seen = self._seen.setdefault((device, tf32), {})
        if len(seen) > REMEMBERED:
            seen = self._seen[device, tf32] = {}  # a new one: other threads read the old
        fresh = list(dict.fromkeys(s for s in signatures if s not in seen))
        if fresh:
            run = [as_run_on(as_measured(s), device) for s in fresh]
            names = [operator_of(s.name).like or s.name for s in run]
            errors, own = np.zeros(len(run)), self._as_measured(device)
            if self.device in (device.name, ""):
                alone = self.operators.alone(run, own, tf32=tf32)
                attained = self.generations.attained
                by_trees = zip(run, alone, strict=True)
                seconds = np.array([beyond_trees(s, a.seconds, own, own, attained) for s, a in by_trees])
                families = [a.family for a in alone]
                if self.operator_errors is not None:
                    errors = self.operator_errors.of(names, [describe(s, own, tf32=tf32) for s in run])
            if device != own:
                seconds, families = transferred(run, own, self.operators, device, self.generations, tf32=tf32)
            seconds = np.hypot(seconds, [further_seconds(s, device) for s in fresh])  # hidden by the product, in part
            learned = zip(fresh, names, families, seconds.tolist(), errors.tolist(), strict=True)
            for s, name, family, predicted, error in learned:
                seen[s] = _Learned(predicted, family, self.operators.knows(name, family), error)
        return seen

    def _as_measured(self, device: Device) -> Device:
        """The device that trees are of: they know no other facts than its own, also where another has its name."""
        if not self.device or (device.name == self.device and all(d.name != device.name for d in known_devices())):
            return device
        return known_device(self.device)


def _outline(graph: Graph, device: Device) -> Outline:
    return graph.remember(("outline", device), lambda: outline(graph, device))


def names() -> list[str]:
    return [ROOFLINE, *sorted(path.name for path in SHIPPED.iterdir() if path.is_dir())]


def load_model(name: str = DEFAULT) -> CostModel:
    """A shipped model by its name, or the folder of one that was fitted, read again once its files have changed."""
    if name in names():  # which a folder of the user's, given by its whole path, is not
        return _shipped(name)
    folder = Path(name)
    if not folder.is_dir():
        known = names()
        raise ModelError(
            f"no model {name!r}. {did_you_mean(name, known)}Shipped: {', '.join(known)}; or give the folder of one "
            "that `foretell fit` wrote."
        )
    return _read(folder, state_of(folder))


@functools.cache
def _shipped(name: str) -> CostModel:
    return CostModel(name=ROOFLINE) if name == ROOFLINE else _read(SHIPPED / name, ())


@functools.lru_cache(maxsize=8)
def _read(folder: Path, state: Stamps) -> CostModel:
    check_seal(folder)
    others, network, errors = (file_of(folder, name) for name in (GENERATIONS_FILE, interaction.FILE, ERRORS_FILE))
    operators = OperatorModels.load((file_of(folder, OPERATORS_FILE) or folder / OPERATORS_FILE).parent)
    with reading(folder, "card with the device it was measured on"):
        measured_on = str(read_json(folder / CARD)["device"])
    return CostModel(
        name=folder.name,
        folder=folder,
        device=measured_on,
        operators=operators.with_families(file_of(folder, FUSED_FILE)),
        generations=replace(Generations.load(others) if others else Generations(), attained=attained_in(folder)),
        host=HostCosts.load(file_of(folder, FILE) or folder / FILE),
        interaction=Interaction.load(network) if network else None,
        older_software=older_software_in(folder),
        operator_errors=OperatorErrors.load(errors, file_of(folder, FUSED_ERRORS)) if errors else None,
    )
