"""`fit`: a store of measurements, and public ones beside it → a model folder that `forecast` takes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Final

from foretell.cost import interaction
from foretell.cost.host import FILE, HostCosts
from foretell.cost.model import CostModel
from foretell.errors import ModelError
from foretell.forecasting import calibration as uncertainty
from foretell.hardware import device as known_device
from foretell.hardware import recognise
from foretell.learn.calibrate import calibrate
from foretell.learn.dataset import Measured, OpTable, joined, load, products
from foretell.learn.holdout import Foretold, groups, leave_groups_out
from foretell.learn.host import fit_host
from foretell.learn.interaction import fit_interaction
from foretell.learn.operators import fit_operators
from foretell.learn.transfer.intervals import fit_others
from foretell.store.importers import read_public
from foretell.store.store import Store

_PRODUCTS_TAKEN: Final = 12_000  # of the public ones: beyond that they teach nothing new
_SMALLEST_PRODUCT: Final = 16  # rows; thinner ones are decoding, not training
_FEWEST_GROUPS: Final = 5  # families that must be there for intervals to mean something
FAMILIES: Final = "families.json"


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
    network: float = 0.0  # how far the network over ops is believed; 0: not at all, or there is none
    elsewhere: dict[str, int] = field(default_factory=dict)  # public ops of other devices, by device


def fit(
    store: Store, folder: Path, *, device: str = "h200", public: Path | None = None, others: Path | None = None, seed: int = 0,
    intervals: bool = True, unseen: Sequence[Foretold] = (), workers: int = 2, progress: Callable[[str], None] = lambda text: None,
) -> Card:  # fmt: skip
    """Fit a model on what a store holds of a device, and save it in a folder.

    `others` is a folder of public measurements of other devices, to say more of them than our own device does.
    `intervals` asks how far off it is on families it has not seen, which takes a fit for each of them; `unseen` is what
    such fits said before of these very steps, and spares them.
    """
    measured = load(store, device, progress)
    if not len(measured.ops):
        raise ModelError(
            f"the store holds no ops measured on {device}. Measure some first: foretell measure SOURCE --device cuda"
        )
    beside = public_products(public, device, progress) if public else {}
    ops = joined([measured.ops, *beside.values()])
    models = fit_operators(ops, seed=seed, progress=progress)
    models.save(folder)
    progress("fitting what the host pays")
    (folder / FILE).write_text(json.dumps(asdict(fit_host(measured)), indent=2) + "\n")
    split = groups(measured, "family", families_of(store), seed)
    (folder / interaction.FILE).unlink(missing_ok=True)
    network = fit_interaction(measured, ops, split, seed=seed, workers=workers, progress=progress)
    if network is not None:
        network.save(folder)
    (folder / uncertainty.FILE).unlink(missing_ok=True)
    if intervals and len(set(split.values())) >= _FEWEST_GROUPS:
        said = _said_of(measured, split, unseen) or leave_groups_out(
            measured, split, beside=list(beside.values()), seed=seed, workers=workers, progress=progress
        )
        save_calibration(calibrate(said), folder)
    card = _card(folder.name, measured, beside, seed, network.strength if network else 0.0)
    (folder / "card.json").write_text(json.dumps(asdict(card), indent=2) + "\n")
    if others is not None:
        model = CostModel(name=folder.name, device=device, operators=models, host=HostCosts.load(folder / FILE))
        taken = fit_others(ops, model, others, folder, intervals=intervals, seed=seed, progress=progress)
        card = replace(card, elsewhere=taken)
        (folder / "card.json").write_text(json.dumps(asdict(card), indent=2) + "\n")
    return card


def _said_of(measured: Measured, split: Mapping[int, str], unseen: Sequence[Foretold]) -> Sequence[Foretold]:
    """`unseen`, if it is about the steps that are fitted on, left out in the same groups."""
    asked = {measured.steps[i].id: group for i, group in split.items()}
    if unseen and {s.step: s.group for s in unseen} != asked:
        known = sum(s.step in asked for s in unseen)
        raise ModelError(
            f"the saved forecasts are of {len(unseen)} steps, {known} of them among the {len(asked)} of the store. Make "
            "them again: foretell bench accuracy --data STORE --save FILE"
        )
    return unseen


def read_card(folder: Path) -> Card:
    """What a model was fitted on."""
    try:
        return Card(**json.loads((folder / "card.json").read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise ModelError(f"{folder} holds no card of a model ({error}). Fit one with: foretell fit") from error


def save_calibration(calibration: uncertainty.Calibration, folder: Path) -> None:
    (folder / uncertainty.FILE).write_text(json.dumps(asdict(calibration)) + "\n")


def families_of(store: Store) -> dict[str, str]:
    """Source → family, where the store's folder says so; an architecture is its own otherwise."""
    file = store.path / FAMILIES
    found: dict[str, str] = json.loads(file.read_text()) if file.is_file() else {}
    return found


def public_products(file: Path, device: str, progress: Callable[[str], None]) -> dict[str, OpTable]:
    """Matrix products of this device among public measurements, with who measured them."""
    progress(f"reading {file}")
    rows = read_public(file).table.to_pylist()
    target = known_device(device)
    names = {row["device"] for row in rows}
    ours = {name for name in names if (found := recognise(name)) is not None and found.name == target.name}
    mine = [r for r in rows if r["device"] in ours and r["dtype"] == "bfloat16" and r["m"] >= _SMALLEST_PRODUCT]
    thinned = mine[:: max(1, len(mine) // _PRODUCTS_TAKEN)]
    if not thinned:
        return {}
    origin = thinned[0]["source"]
    return {str(origin): products([(r["m"], r["n"], r["k"], r["seconds"]) for r in thinned], target)}


def _card(name: str, measured: Measured, beside: dict[str, OpTable], seed: int, network: float) -> Card:
    steps = [s for s in measured.steps if s.kind == "step"]
    dates = sorted(s.date for s in measured.steps)
    return Card(
        name=name, device=measured.device.name, steps=len(steps), architectures=len({s.source for s in steps}),
        ops=len(measured.ops), public={source: len(table) for source, table in beside.items()},
        torch=sorted({s.torch for s in measured.steps}), first=dates[0], last=dates[-1], seed=seed,
        network=network,
    )  # fmt: skip
