"""Columns that a script itself describes to the library `datasets` (`features=…`): values of just those types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from foretell.capture.script.pretend.sets.columns import Column, png, spread, suggested, text

_TURNS: Final = 4
_ROLES: Final = {"role": ("user", "assistant"), "from": ("human", "gpt")}
_LETTERS: Final = 400


def described(features: Mapping[str, Any]) -> dict[str, Column]:
    """Each column with the feature that the script gives it."""
    return {name: _column(name, feature) for name, feature in features.items()}


def _column(name: str, feature: Any) -> Column:
    return Column(
        feature=feature, value=lambda row: _value(name, feature, row), heavy=type(feature).__name__ == "Image"
    )


def _value(name: str, feature: Any, row: int) -> Any:
    kind = type(feature).__name__
    if isinstance(feature, Mapping):
        return {key: _value(key, part, row) for key, part in feature.items()}
    if isinstance(feature, list) or kind in ("Sequence", "List", "LargeList"):
        inner = feature[0] if isinstance(feature, list) else feature.feature
        return [_value(name, inner, i) for i in range(_TURNS)]
    if kind == "ClassLabel":
        return row % feature.num_classes
    if kind == "Image":
        return {"bytes": png("512x512", "RGB"), "path": None}
    return _plain(name, str(getattr(feature, "dtype", "string")), row)


def _plain(name: str, dtype: str, row: int) -> Any:
    if name in _ROLES:
        return _ROLES[name][row % 2]
    if "string" in dtype:
        spec = suggested(name)
        if spec is None:
            return ""  # a part that few rows have
        letters = int(spec.split(":")[1]) if isinstance(spec, str) and spec.startswith("text:") else _LETTERS
        return text(spread(letters, row), row)
    return bool(row % 2) if dtype == "bool" else float(row) if "float" in dtype else row
