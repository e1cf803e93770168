"""Numbers as results files hold them."""

from __future__ import annotations

from typing import Any


def short(value: Any, digits: int = 4) -> Any:
    """With every float in it, however deep, rounded to so many digits: more would say nothing."""
    if isinstance(value, float):
        return float(f"{value:.{digits}g}")
    if isinstance(value, dict):
        return {name: short(v, digits) for name, v in value.items()}
    return [short(v, digits) for v in value] if isinstance(value, list | tuple) else value
