"""`%%foretell` in a notebook: a cell is run as a training script is, and its forecast shown."""

from __future__ import annotations

import shlex
import tempfile
from pathlib import Path
from typing import Any

from foretell.errors import InputError
from foretell.forecasting.forecast import forecast
from foretell.forecasting.result import Forecast
from foretell.sources.scripts import Script


def register(ipython: Any) -> None:
    ipython.register_magic_function(cell_forecast, "cell", "foretell")


def cell_forecast(line: str, cell: str) -> Forecast:
    """`%%foretell h100-sxm [--fake-data]`, then a cell that trains; it knows nothing of other cells."""
    words = shlex.split(line)
    fake_data = "--fake-data" in words
    where = [word for word in words if word not in ("--fake-data", "--on")]
    if len(where) != 1:
        raise InputError(f"%%foretell takes one cluster, got {line!r}. Write it like %%foretell 8xh100-sxm.")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cell.py"
        path.write_text(cell, encoding="utf-8")
        return forecast(Script(path=str(path), fake_data=fake_data), where[0])
