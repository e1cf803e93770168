"""Caveats of a forecast: what it rests on, and what it leaves out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from foretell.cost.model import ROOFLINE
from foretell.cost.offload import HOST_BYTES
from foretell.cost.older_software import writes_scores
from foretell.forecasting.assembly import Assembly
from foretell.forecasting.run import Placed
from foretell.forecasting.trainer import without_its_kernels
from foretell.graph import Caveat
from foretell.graph.operators import OPAQUE
from foretell.units import show_bytes

_SEEN: Final = 0.005  # of the time of ops: less is not spoken of


def caveats(made: Assembly) -> Iterator[Caveat]:
    """What a reader of the forecast should know, beside what the capture noted."""
    placed, model = made.ran.slowest, made.model
    device = placed.node.device.name
    if model.name == ROOFLINE:
        text = "Device time is the roofline of published peaks; real kernels are slower, often by half or more."
        yield Caveat("roofline-costs", text)
    elif model.device != device:
        text = f"Operators were measured on {model.device} and transferred to {device} by its published numbers."
        yield Caveat("device-not-measured", text)
    if layout := made.cluster.partly_filled:
        yield Caveat("racks-partly-filled", f"Placed as {layout}. Write another layout like 2x72xNAME.")
    if unpriced := made.cluster.unpriced:
        yield Caveat("no-such-offer", unpriced)
    if made.trainer.fraction:
        yield made.trainer.caveat(made.added / made.step)
    if other := without_its_kernels(made.trainer.trainer, made.program.whole.facts):
        yield other
    if (longer := placed.longer - 1) > _SEEN:
        text = (
            f"At its limit of {placed.node.device.power_watts:g} W the board lowers its clock: ops of a job that goes on take "
            f"{longer:.0%} longer than for a moment."
        )
        yield Caveat("power-limit", text, made.busy * longer / placed.longer / made.step)
    yield from _software_caveats(made, placed)
    yield from _precision_caveats(made, placed)
    yield from _offload_caveats(made, placed)
    yield from made.known.caveats
    for name, seconds in sorted(placed.priced.unknown.items()):
        share = seconds / made.busy if made.busy else 0.0
        if name == OPAQUE:
            targets = (s.target for s in placed.role.graph.signatures if s.name == OPAQUE)
            names = ", ".join(dict.fromkeys(target.rpartition(".")[2] for target in targets))
            text = f"Operations that cannot be looked into are priced by what is declared of them: {names}."
            yield Caveat("opaque-operations", text, share)
        else:
            yield Caveat("op-without-model", f"{name} priced by bytes", share)


def _software_caveats(made: Assembly, placed: Placed) -> Iterator[Caveat]:
    if made.software is None:
        return
    yield Caveat("other-software", f"As {made.software} ran it. {made.model.older_software.source}".rstrip())
    if writes_scores(placed.role.graph, made.software):
        text = f"{made.software} had no fused attention, whose scores took memory that is not counted."
        yield Caveat("memory-of-today", text)


def _precision_caveats(made: Assembly, placed: Placed) -> Iterator[Caveat]:
    """Where a device has no units for a precision, or has faster ones that it leaves out."""
    device, precision = placed.node.device, made.program.whole.precision
    wanted = "fp8" if precision.fp8 else precision.products
    unit = precision.unit("matmul", device)
    if precision.is_half and unit != wanted:
        saves = ", so it saves memory alone" if unit == "fp32" else ""
        text = f"{device.name} has no units for {wanted}: products are converted and run as {unit}{saves}."
        yield Caveat("precision-without-units", text)
    elif wanted == "fp32" and precision.tf32 == "never" and "tf32" in device.peaks and device.kind == "gpu":
        times = device.peak("tf32") / device.peak("fp32")
        text = f"fp32 leaves out tensor cores. With precision=tf32 products are up to {times:.0f} times as fast on {device.name}."
        yield Caveat("fp32-without-tensor-cores", text)


def _offload_caveats(made: Assembly, placed: Placed) -> Iterator[Caveat]:
    if made.plan.offload == "none":
        return
    updated = sum(c.nbytes for c in placed.role.collectives if c.kind in ("host-update", "nvme-update"))
    kept = updated * HOST_BYTES[made.plan.offload] * placed.node.count
    where = "drives" if made.plan.offload_to == "nvme" else "memory"
    text = f"The host's {where} must keep {show_bytes(kept)} per node. How fast it updates, and the link to it, are usual values."
    yield Caveat("offload-assumed", text)
