"""`fit`: a store of measurements, and public ones beside it → a model folder that `forecast` takes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Final

from foretell.cost import interaction, operator_errors
from foretell.cost.folder import CARD, seal
from foretell.cost.host import FILE, HostCosts
from foretell.cost.model import CostModel
from foretell.design.blind import fold_of, is_generated
from foretell.errors import ModelError
from foretell.forecasting.uncertainty import own_device
from foretell.learn.dataset import Measured, OpTable, joined, load_to_fit
from foretell.learn.host import fit_host
from foretell.learn.interaction import fit_interaction
from foretell.learn.operators import fit_operators
from foretell.learn.options import FitOptions
from foretell.learn.transfer.published_ops import own_products
from foretell.learn.uncertainty.left_out import Unseen, leave_groups_out
from foretell.learn.uncertainty.other_devices import fit_others
from foretell.learn.uncertainty.own_device import calibrate
from foretell.store.store import Store

_FEWEST_GROUPS: Final = 5  # families that must be there for intervals to mean something
FAMILIES: Final = "families.json"
_OLD_NAMES: Final = {"elsewhere": "other_devices"}  # of cards up to h200-2026.11


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What a model was fitted on; written beside it."""

    name: str
    device: str
    steps: int
    architectures: int
    ops: int
    public: dict[str, int]  # rows taken from public measurements, by source
    torch: list[str]
    first: str
    last: str
    seed: int
    network: float = 0.0  # how much of the network's correction is applied; 0: none, or there is no network
    other_devices: dict[str, int] = field(default_factory=dict)  # public ops of other devices, by device
    compiled: dict[str, int] = field(default_factory=dict)  # compiled steps, their different kernels and all launches
    inherits: str = ""  # the version beside it whose other files it goes on using


def fit(
    stores: Sequence[Store],
    folder: Path,
    *,
    device: str = "h200",
    public: Path | None = None,
    others: Path | None = None,
    seed: int = 0,
    intervals: bool = True,
    unseen: Unseen | None = None,
    workers: int = 2,
    progress: Callable[[str], None] = lambda text: None,
) -> Card:
    """Fit a model on what stores hold of a device, and save it in a folder.

    `others` is a folder of public measurements of other devices, to learn more of them than our own device tells.
    `intervals` asks how large errors are on families it has not seen, which takes a fit for each of them; `unseen` is
    what such fits predicted before of these very steps, and spares them.
    """
    options = FitOptions(seed=seed, workers=workers, progress=progress)
    measured = load_to_fit(stores, device, progress)
    if not len(measured.ops):
        raise ModelError(
            f"there are no ops measured on {device} to learn from. Measure some first: foretell measure SOURCE --device cuda"
        )
    public_tables = own_products(public, measured.device, progress) if public else {}
    ops = joined([measured.ops, *public_tables.values()])
    models = fit_operators(ops, seed=seed, progress=progress)
    models.save(folder)
    progress("fitting the host's costs")
    _write(folder / FILE, asdict(fit_host(measured)))
    split = by_family(measured, families_of(*stores))
    (folder / interaction.FILE).unlink(missing_ok=True)
    network = fit_interaction(measured, ops, split, options)
    if network is not None:
        network.save(folder)
    for name in (own_device.FILE, operator_errors.FILE):
        (folder / name).unlink(missing_ok=True)
    if intervals and len(set(split.values())) >= _FEWEST_GROUPS:
        known = _of_these_steps(measured, split, unseen) if unseen else None
        save_errors(known or leave_groups_out(measured, split, options, list(public_tables.values())), folder)
    card = _card(folder.name, measured, public_tables, seed, network.strength if network else 0.0)
    _write(folder / CARD, asdict(card))
    if others is not None:
        model = CostModel(name=folder.name, device=device, operators=models, host=HostCosts.load(folder / FILE))
        taken = fit_others(model, others, folder, intervals=intervals, progress=progress)
        card = replace(card, other_devices=taken)
        _write(folder / CARD, asdict(card))
    seal(folder)
    return card


def save_errors(unseen: Unseen, folder: Path) -> None:
    """How wide intervals of a model are, beside it."""
    (folder / own_device.FILE).write_text(json.dumps(asdict(calibrate(unseen.steps))) + "\n")
    if unseen.operator_errors is not None:
        unseen.operator_errors.save(folder / operator_errors.FILE)


def _write(path: Path, content: Mapping[str, object]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")


def by_family(measured: Measured, families: Mapping[str, str]) -> dict[int, str]:
    """Timed step → its family, which for most architectures is their own."""
    return {i: family_of(s.source, families) for i, s in enumerate(measured.steps) if measured.is_timed(i)}


def family_of(source: str, families: Mapping[str, str]) -> str:
    return fold_of(source) if is_generated(source) else families.get(source, source)


def _of_these_steps(measured: Measured, split: Mapping[int, str], unseen: Unseen) -> Unseen:
    """`unseen`, if it is about the steps that are fitted on, left out in the same groups."""
    groups = {measured.steps[i].id: group for i, group in split.items()}
    if {s.record: s.group for s in unseen.steps} != groups:
        known = sum(s.record in groups for s in unseen.steps)
        raise ModelError(
            f"the saved forecasts are of {len(unseen.steps)} steps, {known} of them among the {len(groups)} of the store. Make "
            "them again: foretell bench accuracy --data STORE --save FILE"
        )
    return unseen


def read_card(folder: Path) -> Card:
    """What a model was fitted on."""
    try:
        content = json.loads((folder / CARD).read_text())
        return Card(**{_OLD_NAMES.get(name, name): value for name, value in content.items()})
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ModelError(f"{folder} holds no card of a model ({error}). Fit one with: foretell fit") from error


def families_of(*stores: Store) -> dict[str, str]:
    """Source → family, where a store's folder says so; an architecture is its own otherwise."""
    files = [store.path / FAMILIES for store in stores]
    return {
        source: family for file in files if file.is_file() for source, family in json.loads(file.read_text()).items()
    }


def _card(name: str, measured: Measured, public_tables: Mapping[str, OpTable], seed: int, network: float) -> Card:
    steps = [s for s in measured.steps if s.kind == "step"]
    dates = sorted(s.date for s in measured.steps)
    return Card(
        name=name,
        device=measured.device.name,
        steps=len(steps),
        architectures=len({s.source for s in steps}),
        ops=len(measured.ops),
        public={source: len(table) for source, table in public_tables.items()},
        torch=sorted({s.torch for s in measured.steps}),
        first=dates[0],
        last=dates[-1],
        seed=seed,
        network=network,
    )
