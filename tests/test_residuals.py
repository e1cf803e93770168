"""Files of arrays beside a profile, of strangers: read whole or refused in words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from foretell.errors import ProfileError
from foretell.profile.operators import Operators
from foretell.profile.residuals import Residuals, write_arrays

GOOD = Residuals(columns=("kernel",), scales=(1.0,), points=((0.0,),), weights=(0.5,), low=-1.0, high=1.0)


def _text(text: str) -> Any:
    return np.frombuffer(text.encode(), dtype=np.uint8)


@pytest.mark.parametrize(
    "change",
    [
        lambda arrays: arrays.update(offset=np.zeros(0)),
        lambda arrays: arrays.update(offset=np.zeros(2)),
        lambda arrays: arrays.update(bounds=np.array([-1.0, 800.0])),
        lambda arrays: arrays.update(bounds=np.array([2.0, 1.0])),
        lambda arrays: arrays.update(columns=_text("[" * 100_000)),
        lambda arrays: arrays.update(columns=_text("7")),
        lambda arrays: arrays.pop("weights"),
    ],
    ids=["no offset", "two offsets", "far", "crossed", "deep", "no names", "no weights"],
)
def test_arrays_that_hold_no_model_are_refused(change: Callable[[dict[str, Any]], Any], tmp_path: Path) -> None:
    GOOD.save(tmp_path / "a.safetensors")
    assert Residuals.load(tmp_path / "a.safetensors") == GOOD
    arrays = dict(GOOD.arrays())
    change(arrays)
    write_arrays(arrays, tmp_path / "a.safetensors")
    with pytest.raises(ProfileError, match="again"):
        Residuals.load(tmp_path / "a.safetensors")


@pytest.mark.parametrize("names", ["[" * 100_000, "7", '["mm", "add", "mul"]'])
def test_names_of_operators_that_are_none_are_refused(names: str, tmp_path: Path) -> None:
    Operators(curves={"matmul": GOOD}).save(tmp_path / "a.safetensors")
    write_arrays(
        {f"0.{name}": a for name, a in GOOD.arrays().items()} | {"names": _text(names)}, tmp_path / "a.safetensors"
    )
    with pytest.raises(ProfileError, match="Make the profile again"):
        Operators.load(tmp_path / "a.safetensors")
