"""Settings of a plan as text, and back."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any, Final

from foretell.errors import PlanError

OPTIONAL_COUNTS: Final = ("etp", "hybrid_shard", "grad_accumulation", "bucket_bytes", "live_parameters")


def show_setting(value: Any) -> str:
    if isinstance(value, tuple):
        return show_stages(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def show_stages(stages: Sequence[int] | str) -> str:
    return "-".join(map(str, stages))


def read_stages(given: Sequence[int] | str) -> tuple[int, ...]:
    """`9-8-8-7`: repeated blocks per stage; only the first and the last stage can do without one."""
    try:
        stages = tuple(int(part) for part in given.split("-")) if isinstance(given, str) else tuple(map(index, given))
    except (TypeError, ValueError):
        stages = ()
    if not sum(stages) or min(stages) < 0 or 0 in stages[1:-1]:
        raise PlanError(
            f"stages={given!r} is not possible: it takes the blocks of each stage, like 9-8-8-7. Only the first stage "
            "(embedding) and the last (head) can have 0."
        )
    return stages


def read_setting(name: str, value: str, default: Any) -> Any:
    try:
        if isinstance(default, bool):
            return {"true": True, "1": True, "false": False, "0": False}[value.lower()]
        if isinstance(default, int) or name in OPTIONAL_COUNTS:
            return int(value)
        return _number_or_word(value) if name == "checkpointing" else value
    except (KeyError, ValueError):
        wanted = "true or false" if isinstance(default, bool) else "a number"
        raise PlanError(f"plan setting {name}={value!r} must be {wanted}.") from None


def _number_or_word(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        return text
