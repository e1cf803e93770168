"""Kill at random moments: `python tests/soak/run.py --kills 200`; exits with 1 where anything was lost, doubled or left running.

A target is a file in `targets/` with two functions. `work(folder, number, say)` runs in a process of its own until it is
killed, and says a line whenever something is promised to be there; `verify(folder, said)` raises AssertionError unless it
is, and returns a line of figures. SIDE_BY_SIDE processes work at once, SECONDS is how long one lives at most, SIGNALS are
what ends it.
`--only store` runs one target, `--seed 1` other moments.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pkgutil
import random
import signal
import sys
import tempfile
import time
import traceback
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]
sys.path[0] = str(ROOT)
if (ROOT / "src").is_dir():
    sys.path.insert(1, str(ROOT / "src"))

from tests.soak import targets  # noqa: E402

MARK = "FORETELL_SOAK"
GRACE = 10.0  # seconds until all that a killed process started has ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    pid: int
    mark: str
    said: Path  # a file: what is written to it survives the writer

    def lives(self) -> bool:
        return os.waitpid(self.pid, os.WNOHANG) == (0, 0)


def start(work: Callable[[Path, int, Callable[[str], None]], None], folder: Path, number: int, said: Path) -> Process:
    mark = uuid.uuid4().hex
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setsid()
            os.environ[MARK] = mark  # whatever it starts has it too
            line = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            work(folder, number, lambda text: os.write(line, f"{text}\n".encode()) and None)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return Process(pid=pid, mark=mark, said=said)


def left_running(mark: str) -> list[int]:
    """Processes that a killed one started and that live on."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:
                continue  # ended meanwhile, or not ours
    return found


def soak(target: ModuleType, kills: int, rng: random.Random, folder: Path) -> tuple[list[str], dict[str, int]]:
    """What was found, and figures, which it prints."""
    found: list[str] = []
    running: list[Process] = []
    number, began = 0, time.monotonic()
    (folder / "work").mkdir()
    for kill in range(kills):
        while len(running) < getattr(target, "SIDE_BY_SIDE", 1):
            running.append(start(target.work, folder / "work", number, folder / f"said-{number}"))
            number += 1
        time.sleep(rng.uniform(0, target.SECONDS))
        victim = running.pop(rng.randrange(len(running)))
        if victim.lives():
            os.kill(victim.pid, rng.choice(getattr(target, "SIGNALS", (signal.SIGKILL,))))
            os.waitpid(victim.pid, 0)
        else:
            found.append(f"{target.__name__}: process {kill} ended by itself; see its traceback above")
        deadline = time.monotonic() + GRACE
        while (left := left_running(victim.mark)) and time.monotonic() < deadline:
            time.sleep(0.05)
        if left:
            found.append(f"{target.__name__}: kill {kill} left {len(left)} processes running: {left}")
    for process in running:
        os.kill(process.pid, signal.SIGKILL)
        os.waitpid(process.pid, 0)
    said = [line for path in sorted(folder.glob("said-*")) for line in path.read_text().splitlines()]
    checker = start(
        lambda *_: print(f"  {target.verify(folder / 'work', said)}", flush=True), folder, 0, folder / "checked"
    )
    if os.waitpid(checker.pid, 0)[1]:
        found.append(f"{target.__name__}: something was lost or doubled; see above")
    lasted = round(time.monotonic() - began)
    print(f"{target.__name__}: {kills} kills in {lasted} s, {len(said)} promises, {len(found)} found")
    return found, {"kills": kills, "seconds": lasted, "promises": len(said), "found": len(found)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--only", default="")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", type=Path, help="A JSON file of results, of which each target is a part.")
    asked = parser.parse_args()
    names = [entry.name for entry in pkgutil.iter_modules(targets.__path__) if asked.only in ("", entry.name)]
    found: list[str] = []
    for name in names:
        module = importlib.import_module(f"{targets.__name__}.{name}")
        with tempfile.TemporaryDirectory(prefix="foretell-soak-") as folder:
            lost, figures = soak(module, asked.kills, random.Random(f"{name} {asked.seed}"), Path(folder))
        found += lost
        if asked.save:
            command = f"make soak SOAK='--only {name} --kills {asked.kills}'"
            kept = json.loads(asked.save.read_text()) if asked.save.is_file() else {}
            kept[f"kills: {name}"] = {"command": command, **figures}
            asked.save.write_text(json.dumps(kept, indent=2) + "\n")
    print("\n".join(found) or "nothing was lost, doubled or left running")
    return 1 if found or not names else 0


if __name__ == "__main__":
    sys.exit(main())
