"""An instrument for tests of campaigns: it does what the point's settings say, and keeps a log of having done so.

`describe` takes the device's name from $STAND_IN_DEVICE, so that a test can have any device anywhere.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from foretell.errors import InputError
from foretell.measure.record import Point, Record, StepRow


def describe(device: str) -> dict[str, Any]:
    if device == "cuda:7":
        raise RuntimeError("CUDA-capable device(s) is/are busy or unavailable")
    name = os.environ.get("STAND_IN_DEVICE", "NVIDIA H200" if device.startswith("cuda") else "a plain CPU")
    return {"device": "h200" if "H200" in name else "", "device_name": name}


def log(point: Point, what: str) -> None:
    with open(os.environ["STAND_IN_LOG"], "a") as file:
        file.write(f"{what} {point.key} {os.getpid()} {time.monotonic()}\n")


def measure(point: Point, *, device: str) -> Record:
    log(point, "begin")
    do = point.settings.get("do", "sleep")
    marker = Path(os.environ["STAND_IN_LOG"]).with_name(f"crashed-{point.key}")
    if do == "print":
        print("record {}" * 100_000, flush=True)
        subprocess.run([sys.executable, "-c", "print('ready {}')"], check=True)
    elif do == "abort":
        sys.stderr.write("terminate called after throwing an instance of 'Woe'\n")
        sys.stderr.flush()
        os.abort()
    elif do == "abort once" and not marker.exists():
        marker.touch()
        os.abort()
    elif do == "hang":
        subprocess.Popen(["sleep", "1000"])  # a child that keeps what it inherits
        time.sleep(1000)
    elif do == "input error":
        raise InputError("the batch must be even, got 7. Give an even one.")
    elif do == "bug":
        {}["nothing"]
    elif do == "exit":
        sys.exit(3)
    elif do == "memory":
        raise MemoryError
    time.sleep(float(point.settings.get("seconds", 0)))
    outcome = "nan-loss" if do == "nan" else "ok"
    row = StepRow(point=point.key, kind=point.kind, source=point.source, settings=point.settings_text,
                  outcome=outcome, step_seconds=time.monotonic(), **describe(device))  # fmt: skip
    log(point, "end")
    return Record(step=row)
