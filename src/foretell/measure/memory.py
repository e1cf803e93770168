"""What a step holds of the device's memory: its peaks, and the allocator's own history of it."""

from __future__ import annotations

from typing import Any

import torch

from foretell.capture.step import Step
from foretell.measure.record import AllocationRow


def memory_columns() -> dict[str, Any]:
    """Of a `StepRow`: peaks since they were last reset, and what is allocated now."""
    free, total = torch.cuda.mem_get_info()
    return {
        "peak_allocated": torch.cuda.max_memory_allocated(),
        "peak_reserved": torch.cuda.max_memory_reserved(),
        "resting_allocated": torch.cuda.memory_allocated(),
        "used_outside": total - free - torch.cuda.memory_reserved(),
    }


def peak_memory(step: Step) -> dict[str, Any]:
    """Of one step."""
    torch.cuda.reset_peak_memory_stats()
    step.run()
    torch.cuda.synchronize()
    return memory_columns()


def record_memory(step: Step) -> tuple[dict[str, Any], AllocationRow]:
    """Of one step. Addresses are offsets from the lowest."""
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.memory._record_memory_history(enabled="all", context=None, max_entries=1_000_000)
    try:
        step.run()
        torch.cuda.synchronize()
        traces = torch.cuda.memory._snapshot()["device_traces"]
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
    columns = memory_columns()
    events = [e for trace in traces for e in trace if e["action"] != "snapshot"]
    lowest = min((e["addr"] for e in events), default=0)
    actions, addresses, sizes = (tuple(e[key] for e in events) for key in ("action", "addr", "size"))
    return columns, AllocationRow(action=actions, address=tuple(a - lowest for a in addresses), bytes=sizes)
