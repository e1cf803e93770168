"""Rows of compiled steps, as the campaign leaves them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from foretell_bench.measuring.compiled.points import key


def rows(path: Path) -> Iterator[dict[str, Any]]:
    """Those of a file, or of all files of a folder, that were measured."""
    for file in sorted(path.glob("*.jsonl.gz")) if path.is_dir() else [path]:
        with gzip.open(file, "rt") as lines:
            for line in lines:
                row = json.loads(line)
                if "error" not in row:
                    yield row


def keys_of(path: Path) -> frozenset[str]:
    return frozenset(key(row) for row in rows(path))
