"""`foretell predict` of sources that answer, spin, print without end or leave helpers, killed by every signal that ends it."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from unittest.mock import patch

from foretell import cli
from foretell.capture import cache

SECONDS = 12.0
SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)
FUNCTIONS = ("plain", "spins", "lingers", "prints")
SOURCE = """
import os
import subprocess
import threading

import torch

import foretell

subprocess.Popen(["sleep", "1000"])


def plain():
    return foretell.Workload(
        name="plain", model=lambda: torch.nn.Linear(8, 8), batch=lambda: torch.randn(2, 8),
        loss=lambda model, x: model(x).mean(), optimizer=torch.optim.SGD,
    )


def spins():
    while True:
        pass


def prints():
    while True:
        os.write(1, b"x" * 65536)


def lingers():
    threading.Thread(target=spins).start()
    return plain()
"""


def work(folder: Path, number: int, say: Callable[[str], None]) -> None:
    for name in SIGNALS[:2]:
        signal.signal(name, signal.SIG_DFL)  # nohup ignores one of them
    (folder / "tmp").mkdir(exist_ok=True)
    source = folder / f"source{number}.py"
    source.write_text(SOURCE)
    os.environ |= {  # torch makes an empty folder for its own cache
        "TMPDIR": str(folder / "tmp"), "FORETELL_CACHE": str(folder / "cache"), "TORCHINDUCTOR_CACHE_DIR": str(folder / "torch"),
    }  # fmt: skip
    tempfile.tempdir = None
    with open(os.devnull, "w") as nothing, contextlib.redirect_stdout(nothing), contextlib.redirect_stderr(nothing):
        for turn in itertools.count(number):
            function = FUNCTIONS[turn % len(FUNCTIONS)]
            command = ["foretell", "predict", f"{source}:{function}", "--on", "h100-sxm"]
            with patch.object(sys, "argv", command), contextlib.suppress(SystemExit):
                cli.main()
            say(function)


def verify(folder: Path, said: Sequence[str]) -> str:
    assert not set(said) - {"plain", "lingers"}, f"these never answer: {set(said)}"
    left = [str(path) for path in (folder / "tmp").iterdir()]
    assert not left, f"left behind: {left}"
    os.environ["FORETELL_CACHE"] = str(folder / "cache")
    entries = [path.stem for path in (folder / "cache").glob("*.json")]
    broken = [key for key in entries if cache.get(key) is None]
    assert not broken, f"broken: {broken}"
    return f"{len(said)} answers, {len(entries)} graphs kept, all whole; no file left"
