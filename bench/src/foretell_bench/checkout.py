"""Where things lie in a checkout of the repository: data, results and examples are not installed with the package."""

from __future__ import annotations

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[3]
DATA: Final = ROOT / "bench" / "data"
RESULTS: Final = ROOT / "bench" / "results"
EXAMPLES: Final = ROOT / "examples"
