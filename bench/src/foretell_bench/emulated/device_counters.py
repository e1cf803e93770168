"""Counters of a GPU while jobs run: share of time in use, and share of its memory bandwidth (NVML's GPM)."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

INTERVAL: Final = 0.005  # seconds between readings
IN_USE, BANDWIDTH = 1, 10  # NVML_GPM_METRIC_GRAPHICS_UTIL and _DRAM_BW_UTIL, percent


def count(path: Path, cores: Sequence[int]) -> None:
    """Lines of [nanoseconds since the epoch, share in use, share of bandwidth since the line before], until it is killed."""
    os.sched_setaffinity(0, cores)
    try:
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        before, now = pynvml.nvmlGpmSampleAlloc(), pynvml.nvmlGpmSampleAlloc()
        pynvml.nvmlGpmSampleGet(handle, before)
    except Exception as error:
        print(f"no counters of the device: {error!r}", flush=True)
        return
    with path.open("a", buffering=1 << 14) as file:
        while True:
            time.sleep(INTERVAL)
            try:
                pynvml.nvmlGpmSampleGet(handle, now)
                file.write(json.dumps([time.time_ns(), *_between(pynvml, before, now)]) + "\n")
            except Exception as error:
                print(f"a reading of the device failed: {error!r}", flush=True)
                time.sleep(1)
            before, now = now, before


def _between(nvml: Any, before: Any, now: Any) -> list[float]:
    metrics = nvml.c_nvmlGpmMetricsGet_t()
    metrics.version, metrics.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, 2
    metrics.sample1, metrics.sample2 = before, now
    metrics.metrics[0].metricId, metrics.metrics[1].metricId = IN_USE, BANDWIDTH
    nvml.nvmlGpmMetricsGet(metrics)
    return [round(metrics.metrics[i].value / 100, 4) if not metrics.metrics[i].nvmlReturn else -1.0 for i in (0, 1)]
