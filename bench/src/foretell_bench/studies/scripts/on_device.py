"""Runs training scripts for real, unmodified, and measures their steps: seconds between updates, peak memory.

Needs torch and the libraries of the scripts, and nothing of Foretell: `python -m foretell_bench.studies.scripts.on_device
OUT.json [NAME …]` runs where it is not installed. Each script runs in a process of its own with small
data made here, until so many steps are measured, and is then ended. The device is waited for before the first and after
the last of them only, as the script itself would. `host` measures what the host needs to make numbers and to copy them.
`foretell bench scripts compare` compares them with forecasts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from foretell_bench.checkout import EXAMPLES
from foretell_bench.studies.scripts.jobs import JOBS

LIMIT: Final = 45.0  # seconds per script, its start included

HOST: Final = "host"


def run(out: Path, names: Sequence[str] = ()) -> None:
    with tempfile.TemporaryDirectory() as folder:
        make_data(Path(folder))
        results: dict[str, object] = {}
        for name in names or [*JOBS, HOST]:
            results[name] = measured(name, folder)
            print(name, json.dumps(results[name]), flush=True)
            out.write_text(json.dumps(results, indent=1), encoding="utf-8")


def make_data(folder: Path) -> None:
    import numpy as np
    from PIL import Image

    tokens = folder / "data" / "shakespeare"
    tokens.mkdir(parents=True)
    for split in ("train", "val"):
        np.random.default_rng(0).integers(0, 50000, 500_000).astype(np.uint16).tofile(tokens / f"{split}.bin")
    picture = folder / "picture.jpg"
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)).save(picture)
    for label in range(1000):
        pictures = folder / "imagenet" / "train" / f"n{label:08}"
        pictures.mkdir(parents=True)
        for i in range(6):  # the same picture again and again, as links
            os.link(picture, pictures / f"{i}.jpg")


def measured(name: str, folder: str) -> dict[str, object]:
    answer = Path(folder) / "answer.json"
    answer.unlink(missing_ok=True)
    started = time.monotonic()
    command = [sys.executable, "-m", "foretell_bench.studies.scripts.one_script", str(answer)]
    if name != HOST:
        script, arguments = JOBS[name]
        command += [str(EXAMPLES / "scripts" / script), *arguments]
    try:
        ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LIMIT, check=False)
        words = ended.stderr[-1500:]
    except subprocess.TimeoutExpired as late:
        words = f"took longer than {LIMIT} s: {(late.stderr or b'')[-500:]!r}"
    return {
        "wall": time.monotonic() - started,
        **(json.loads(answer.read_text()) if answer.exists() else {"error": words}),
    }


if __name__ == "__main__":
    run(Path(sys.argv[1]), sys.argv[2:])
