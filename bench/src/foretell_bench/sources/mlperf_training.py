"""`mlperf_training`: audited submissions; ResNet-50 alone is forecast.

A profile is for one accelerator, fitted on other systems: those of a submitter and round fall into one of four parts.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from foretell.hardware import recognise
from foretell.plans import Plan
from foretell.store.importers import LeftOut, Row, Selection, public_rows, take
from foretell.units import BytesPerSecond
from foretell_bench.graphs import named
from foretell_bench.sources.question import Ask, Measure, Question, filled, nodes_of, part_of

SOURCE: Final = "mlperf_training"
MEASURES: Final = (
    Measure(name="ResNet, step time of other systems, mean error", of="seconds", statistic="mean"),
    Measure(name="ResNet, step time of other systems, median error", of="seconds", statistic="median"),
)
_PARTS: Final = 4
_PORTS: Final = re.compile(r"(\d+)\s*x\b.*?(\d+)\s*gb", re.IGNORECASE)


def questions(data: Path) -> Selection[Question]:
    return take(public_rows(data, SOURCE), _question)


def _question(row: Row) -> Question:
    if row["benchmark"] != "resnet":
        raise LeftOut("of other benchmarks, whose model and step the source does not describe")
    if not row["devices"] or not row["global_batch"] or not row["step_seconds"]:
        raise LeftOut("without devices, batch or step time")
    known = recognise(row["device"]) if row["device"] else None
    if known is None:
        raise LeftOut("on a device that is not in the catalog")
    if row["global_batch"] < row["devices"]:
        raise LeftOut("with less than one sample per device")
    half = "fp16" if "fp16" in known.peaks else "bf16"
    settings = {"precision": f"amp-{half}", "channels_last": "true", "optimizer": "sgd-momentum"}
    counts = filled(row["devices"], row["devices_per_node"] or known.node_size)
    return Question(
        ask=Ask(
            model=named("torchvision/resnet50", settings, round(row["global_batch"] / row["devices"])),
            plan=Plan(dp=row["devices"]), cluster=nodes_of(known.name, counts, port_of(row["network"] or "")),
        ),
        domain=known.name, part=part_of(f"{row['round']} {row['organisation']}", _PARTS), seconds=row["step_seconds"],
    )  # fmt: skip


def port_of(network: str) -> BytesPerSecond | None:
    """What `Management: 1x Ethernet 40Gb/s, Compute: 8x ConnectX-6 IB HDR 200Gb/s` gives a node's collectives."""
    parts = [p for p in re.split(r"[,+]", network) if not re.search("management|storage|ethernet", p, re.IGNORECASE)]
    rates = [int(match[1]) * int(match[2]) * 1e9 / 8 for part in parts if (match := _PORTS.search(part))]
    return max(rates, default=None)
