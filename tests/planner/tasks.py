"""Questions for a search on a cluster whose nodes are lost: light to import, and telling who answers them."""

from __future__ import annotations

import os
import time
from pathlib import Path


def tell_and_wait(folder: str, number: int) -> int:
    """Says which process began it; the first two go on once they are told."""
    told = Path(folder)
    (told / f"{number}.{os.getpid()}").touch()
    until = time.monotonic() + 300
    while number < 2 and not (told / "go").exists() and time.monotonic() < until:
        time.sleep(0.05)
    return 10 * number
