"""Runs training scripts for real, unmodified, and measures their steps: seconds between updates, peak memory.

Needs torch and the libraries of the scripts, and nothing of Foretell: `python -m foretell_bench.studies.scripts.on_device
OUT.json [NAME …]` runs where it is not installed; with `--checkouts FOLDER` it measures public scripts, not our examples.
Each script runs in a process of its own with small data made here, until so many steps are measured, and is then ended.
The device is waited for before the first and after the last of them only, as the script itself would. `host` measures what
the host needs to make numbers and to copy them. `foretell bench scripts compare` compares them with forecasts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from foretell_bench.checkout import EXAMPLES
from foretell_bench.studies.scripts import small_data
from foretell_bench.studies.scripts.jobs import JOBS
from foretell_bench.studies.scripts.public_jobs import PUBLIC_JOBS, PublicJob

LIMIT: Final = 45.0  # seconds per script, its start included
_PUBLIC_LIMIT: Final = 100.0

HOST: Final = "host"


def run(out: Path, names: Sequence[str] = ()) -> None:
    """Measure our examples."""
    with tempfile.TemporaryDirectory() as folder:
        make_data(Path(folder))
        _keep(out, names or [*JOBS, HOST], lambda name: _measured(_example(name), Path(folder), os.environ, LIMIT))


def run_public(out: Path, checkouts: Path, names: Sequence[str] = ()) -> None:
    """Measure public scripts, in checkouts that are named `owner+name`."""
    with tempfile.TemporaryDirectory() as folder:
        jobs = {name: PUBLIC_JOBS[name] for name in names or PUBLIC_JOBS}
        small_data.make(Path(folder), {kind for job in jobs.values() for kind in job.data.values()})
        _keep(out, list(jobs), lambda name: _measured_public(jobs[name], checkouts.absolute(), Path(folder)))


def make_data(folder: Path) -> None:
    """For our examples."""
    small_data.make(folder, {"tokens", "pictures"})
    (folder / "data").mkdir()
    (folder / "tokens").rename(folder / "data" / "shakespeare")
    (folder / "pictures").rename(folder / "imagenet")


def _keep(out: Path, names: Sequence[str], measure: Callable[[str], dict[str, object]]) -> None:
    """Write each result as it comes, and go on where an earlier run stopped."""
    results: dict[str, dict[str, object]] = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
    for name in names:
        if "step" in results.get(name, {}):
            continue
        results[name] = measure(name)
        print(name, json.dumps(results[name]), flush=True)
        out.write_text(json.dumps(results, indent=1), encoding="utf-8")


def _example(name: str) -> list[str]:
    if name == HOST:
        return []
    script, arguments = JOBS[name]
    return [str(EXAMPLES / "scripts" / script), *arguments]


def _measured_public(job: PublicJob, checkouts: Path, made: Path) -> dict[str, object]:
    root = checkouts / job.checkout
    folder = root / job.folder
    for path, kind in job.data.items():
        _place(made / kind, folder / path)
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(root / job.packages), os.environ.get("PYTHONPATH", "")]),
        "FORETELL_BENCH_STEPS": f"{job.warm_steps},{job.measured_steps}",
    }
    return _measured([str(folder / job.script), *job.arguments], folder, environment, _PUBLIC_LIMIT)


def _place(made: Path, wanted: Path) -> None:
    """Let a path lead to what was made, inside a folder that the repository may have."""
    if made.is_dir() and wanted.is_dir() and not wanted.is_symlink():
        for file in made.iterdir():
            _place(file, wanted / file.name)
        return
    wanted.parent.mkdir(parents=True, exist_ok=True)
    wanted.unlink(missing_ok=True)
    wanted.symlink_to(made)


def _measured(command: list[str], folder: Path, environment: Mapping[str, str], limit: float) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as place:
        answer = Path(place) / "answer.json"
        started = time.monotonic()
        runner = [sys.executable, "-m", "foretell_bench.studies.scripts.one_script", str(answer), *command]
        try:
            ended = subprocess.run(
                runner, cwd=folder, env=dict(environment), capture_output=True, text=True, timeout=limit, check=False
            )
            words = ended.stderr[-1500:]
        except subprocess.TimeoutExpired as late:
            words = f"took longer than {limit} s: {(late.stderr or b'')[-500:]!r}"
        found = json.loads(answer.read_text()) if answer.exists() else {"error": words}
        return {"wall": time.monotonic() - started, **found}


if __name__ == "__main__":
    if sys.argv[2:3] == ["--checkouts"]:
        run_public(Path(sys.argv[1]), Path(sys.argv[3]), sys.argv[4:])
    else:
        run(Path(sys.argv[1]), sys.argv[2:])
