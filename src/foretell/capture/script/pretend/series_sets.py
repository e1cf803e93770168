"""Time series that are not on this machine, as GluonTS reads them from files: long ones, without gaps."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from foretell.capture.script.imports import once_imported
from foretell.capture.script.pretend.reading import or_else
from foretell.capture.script.session import Session

_SERIES: Final = 256
_LENGTH: Final = 4096  # longer than what forecasters look back on, and ahead


def install(session: Session) -> None:
    if session.script.fake_data:
        once_imported("gluonts.dataset.common", lambda module: _stand_in(session, module))


def _stand_in(session: Session, module: Any) -> None:
    def made(path: Any, freq: str, one_dim_target: bool = True, *args: Any, **how: Any) -> Any:
        session.stand_in(f"time series in {path}", f"{_SERIES:,} of {_LENGTH:,} points")
        target = np.sin(np.arange(_LENGTH) / 12.0)
        rows = [{"start": "2000-01-01", "target": target, "item_id": str(row)} for row in range(_SERIES)]
        return module.ListDataset(rows, freq, one_dim_target)

    or_else(module, "FileDataset", made, (FileNotFoundError, AssertionError))
