"""A forecast's memory as the snapshot of torch's allocator, in the pickle that torch's own tools read."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from foretell.cost.workspace import kept_workspaces, temporary_bytes
from foretell.forecasting.retained_memory import retained_memory
from foretell.hardware import Device
from foretell.program import Role
from foretell.simulate.snapshot import Recorder, snapshot
from foretell.units import Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStep:
    """What one kind of rank runs, on which device, and for how long each op."""

    role: Role
    device: Device
    seconds: Sequence[Seconds]
    streams_hold: bool = False


def memory_snapshot(ranks: Sequence[RankStep]) -> dict[str, Any]:
    """Plain dicts and lists, as `torch.cuda.memory._snapshot()` gives them; each kind of rank is a device."""
    recorders = []
    for rank in ranks:
        graph = rank.role.graph
        recorder = Recorder(
            graph,
            temporary_bytes(graph, rank.device),
            kept_workspaces(graph, rank.device),
            rank.role.persistent,
            retained_memory(rank.role) if rank.streams_hold else (),
            list(accumulate(map(float, rank.seconds))),
        )
        recorder.settle()
        recorders.append(recorder)
    return snapshot(recorders)


def write_snapshot(ranks: Sequence[RankStep], path: Path) -> None:
    path.write_bytes(pickle.dumps(memory_snapshot(ranks), protocol=4))
