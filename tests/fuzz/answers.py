"""Whether an answer can be: finite numbers, a time that passes, memory that is there."""

from __future__ import annotations

import math
from typing import Any

from foretell import Forecast
from tests.fuzz.harness import Nonsense


def check_forecast(forecast: Forecast) -> None:
    answer = forecast.to_dict()
    check_finite(answer)
    if not answer["step_time"]["seconds"] > 0:
        raise Nonsense(f"a step takes {answer['step_time']['seconds']!r} s")
    for key in ("step_time", "device_time", "host_time", "exposed_communication", "bubble", "throughput", "network"):
        _check_not_negative(key, answer[key])
    memory = answer["memory"]
    _check_not_negative("memory", {k: v for k, v in memory.items() if isinstance(v, int | float)})
    _check_not_negative("breakdown", memory["breakdown"])
    if sum(memory["breakdown"].values()) != memory["allocated"] or memory["allocated"] > memory["reserved"]:
        raise Nonsense(f"memory does not add up: {memory}")


def check_finite(answer: Any, where: str = "answer") -> None:
    if isinstance(answer, dict):
        for key, value in answer.items():
            check_finite(value, f"{where}.{key}")
    elif isinstance(answer, list | tuple):
        for i, value in enumerate(answer):
            check_finite(value, f"{where}[{i}]")
    elif isinstance(answer, float) and not math.isfinite(answer):
        raise Nonsense(f"{where} is {answer}")


def _check_not_negative(where: str, numbers: dict[str, Any]) -> None:
    for key, value in numbers.items():
        if isinstance(value, int | float) and value < 0:
            raise Nonsense(f"{where}.{key} is {value!r}")
