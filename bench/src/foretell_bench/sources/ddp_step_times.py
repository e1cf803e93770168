"""`ddp_step_times`: data-parallel steps of six jobs on T4 and RTX 2080 Ti, by placement.

The source says neither input sizes nor precision; they are assumed as the jobs usually run, in fp32. A profile is for one
job on one cluster: it is fitted on single replicas and half of the placements, and the other half is tested.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from foretell.plans import Plan
from foretell.store.importers import LeftOut, Row, Selection, public_rows, take
from foretell.units import BytesPerSecond
from foretell_bench.graphs import Model, named
from foretell_bench.sources.question import Ask, Measure, Question, nodes_of, part_of

SOURCE: Final = "ddp_step_times"
MEASURES: Final = (
    Measure(name="step time, unseen placements, mean error", of="seconds", statistic="mean", bar=0.10),
    Measure(name="sync time, unseen placements, median error", of="communication", statistic="median", bar=0.20),
)
_CLUSTERS: Final[dict[str, tuple[str, BytesPerSecond | None]]] = {
    "aws": ("t4", 50e9 / 8),  # g4dn.12xlarge
    "rtx": ("rtx-2080-ti", None),
}
_KNOWN: Final = "part 1 of 2"  # placements that profiles are fitted on
_OWN: Final = "foretell_bench.workloads"
_JOBS: Final[dict[str, tuple[str, dict[str, str]]]] = {
    "cifar10": (f"{_OWN}:cifar_resnet18", {}),
    "imagenet": ("torchvision/resnet50", {"precision": "fp32", "optimizer": "sgd-momentum"}),
    "bert": ("hf/bert-base", {"seq": "384", "precision": "fp32"}),
    "yolov3": (f"{_OWN}:yolov3", {}),
    "deepspeech2": (f"{_OWN}:deepspeech2", {}),
    "ncf": (f"{_OWN}:ncf", {}),
}


def questions(data: Path) -> Selection[Question]:
    return take(public_rows(data, SOURCE), _question)


def _question(row: Row) -> Question:
    if not row["batch"] or not row["step_seconds"]:
        raise LeftOut("without a batch or a step time")
    if row["app"] not in _JOBS or row["cluster"] not in _CLUSTERS:
        raise LeftOut(f"of a job {row['app']!r} on {row['cluster']!r}, which the source does not describe")
    counts, (device, port) = placement_of(row), _CLUSTERS[row["cluster"]]
    placement = "-".join(map(str, counts))
    known = sum(counts) == 1 or part_of(placement, 2) == _KNOWN
    return Question(
        ask=Ask(
            model=job(row["app"], row["batch"]), plan=Plan(dp=sum(counts)),
            cluster=nodes_of(device, counts, port if len(counts) > 1 else None),
        ),
        domain=f"{row['app']} on {row['cluster']}", part="known" if known else "unseen", tested=not known,
        seconds=row["step_seconds"], communication=row["sync_seconds"] or None,
    )  # fmt: skip


def job(app: str, batch: int) -> Model:
    source, settings = _JOBS[app]
    return named(source, settings, batch)


def placement_of(row: Row) -> tuple[int, ...]:
    """`44` is 4 + 4 replicas; without a placement they are spread evenly."""
    if row["placement"]:
        return tuple(sorted(map(int, row["placement"]), reverse=True))
    nodes, replicas = row["nodes"], row["replicas"]
    return tuple(replicas // nodes + (i < replicas % nodes) for i in range(nodes))
