"""Public scripts as published, each through Foretell's command line in a process of its own, in a checkout of its repository.

What a run gave is written as it comes; a later run goes on where it stopped. Checkouts lie in one folder, named `owner+name`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil

import foretell
from foretell_bench.studies.scripts.outcomes import brief, outcome_of, refusal, summary, table
from foretell_bench.studies.scripts.public_list import DRAWS, PublicScript

LIMIT: Final = 300.0  # seconds per script, of the processor: a busy machine makes all of them slow
_PATIENCE: Final = 5  # times as long may pass
_POLL: Final = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """Where checkouts lie, and the interpreter that the libraries of the scripts are installed for."""

    checkouts: Path
    python: Path | None = None  # else this one
    limit: float = LIMIT

    def run(self, scripts: Sequence[PublicScript], out: Path, jobs: int = 1) -> dict[str, dict[str, Any]]:
        """Examine those that `out` has no result of, and write each result into it."""
        results = read_results(out)
        todo = [script for script in scripts if script.name not in results]
        for script, why in list(self._unusable(todo)):
            print(f"left out: {script.name}: {why}", flush=True)
            todo.remove(script)
        with ThreadPoolExecutor(jobs) as pool:
            running = {pool.submit(self.result, script): script for script in todo}
            for done in as_completed(running):
                name, found = running[done].name, done.result()
                results[name] = found
                print(f"{found['outcome']:14} {found['cpu_seconds']:4.0f} s  {brief(name, 100)}", flush=True)
                write_results(out, results)
        return results

    def result(self, script: PublicScript) -> dict[str, Any]:
        """What the command line says of a script."""
        folder = (self.checkouts / script.checkout / script.folder).resolve()
        with tempfile.TemporaryFile("w+") as answer, tempfile.TemporaryFile("w+") as message:
            started = time.monotonic()
            running = subprocess.Popen(
                self.command(script), cwd=folder, env=self._environment(script, folder), stdin=subprocess.DEVNULL,
                stdout=answer, stderr=message, start_new_session=True,
            )  # fmt: skip
            code, cpu = _end_of(running, self.limit)
            wall = time.monotonic() - started
            answer.seek(0)
            message.seek(0)
            words = self._anywhere(message.read())
            if code is None:
                words = f"no answer in {self.limit:g} s. {words}"
            found = outcome_of(script, code, self._anywhere(answer.read()), words)
        about = {"repository": script.repository, "commit": script.commit, "drawn": script.drawn, "on": script.on}
        return {**about, "cpu_seconds": round(cpu, 1), "seconds": round(wall, 1), **found}

    def command(self, script: PublicScript) -> list[str]:
        """The command line, as a user would type it."""
        what = ["--launch", script.launch] if script.launch else [script.script]
        after = ["--", *script.arguments] if script.arguments else []
        options = ["--on", script.on, "--fake-data", "--json", "--no-cache"]
        return [str(self.python or sys.executable), "-m", "foretell.cli", "predict", *what, *options, *after]

    def _anywhere(self, text: str) -> str:
        """A text without this machine's folders: results are published."""
        python = (self.python or Path(sys.executable)).absolute()
        places = {
            str(self.checkouts.resolve()): "CHECKOUTS",
            str(python.parents[1]): "VENV",
            sys.prefix: "VENV",
            str(Path(foretell.__file__).parents[2]): "FORETELL",
            str(Path.home()): "~",
        }
        for place, name in places.items():
            text = text.replace(place, name)
        return text

    def _environment(self, script: PublicScript, folder: Path) -> dict[str, str]:
        """This Foretell comes first, then what an installation of the repository would put on the path."""
        own = str(Path(foretell.__file__).parents[1])
        paths = [own, *([str((folder / script.path).resolve())] if script.path else [])]
        return os.environ | {"PYTHONPATH": os.pathsep.join(paths)}

    def _unusable(self, scripts: Sequence[PublicScript]) -> Iterator[tuple[PublicScript, str]]:
        for script in scripts:
            root = self.checkouts / script.checkout
            head = _head(root) if root.is_dir() else "no checkout"
            if head != script.commit:
                yield script, f"{root} has {head}, the list has {script.commit}"


def read_results(path: Path) -> dict[str, dict[str, Any]]:
    """What earlier runs gave, by the script's name."""
    if not path.exists():
        return {}
    found: dict[str, dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["scripts"]
    return found


def write_results(path: Path, results: Mapping[str, Mapping[str, Any]]) -> None:
    """Write all results, whole or not at all."""
    about = "Public scripts through Foretell's command line, by `foretell bench scripts public`."
    beginning = path.with_suffix(".part")
    text = json.dumps({"about": about, "foretell": foretell.__version__, "scripts": results}, indent=1)
    beginning.write_text(text + "\n", encoding="utf-8")
    beginning.replace(path)


def sets(
    results: Mapping[str, Mapping[str, Any]], later: Mapping[str, Mapping[str, Any]], scripts: Sequence[PublicScript]
) -> dict[str, dict[str, Mapping[str, Any]]]:
    """Results by set: each draw as it was when nobody had seen it, and all that was run later, as it is now."""
    draws = {f"{title} drawn": number for number, title in enumerate(DRAWS, 1)}
    found = {
        title: {s.name: results[s.name] for s in scripts if s.drawn == n and s.name in results}
        for title, n in draws.items()
    }
    found["open"] = {s.name: later[s.name] for s in scripts if s.name in later}
    return {title: those for title, those in found.items() if those}


def judged_anew(results: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Earlier refusals, by the words that they are judged by now."""
    return {
        name: {**found, "outcome": refusal(found["exit_code"], found["message"])} if "message" in found else dict(found)
        for name, found in results.items()
    }


def show(by_set: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """The scripts that there are results of, as tables, and the messages of those without a forecast."""
    parts: list[str] = []
    for title, those in by_set.items():
        failed = [f"- {brief(n, 120)}: {brief(r['message'], 600)}" for n, r in those.items() if "message" in r]
        differ = [f"- {brief(n, 120)}: {r['differs']}" for n, r in those.items() if "differs" in r]
        parts += [summary(title, list(those.values())), table(those), *failed, *differ]
    return "\n\n".join(parts)


def _head(root: Path) -> str:
    ended = subprocess.run(["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return ended.stdout.strip() or "no commit"


class _Work:
    """Seconds of CPU of a process and all that it started: a child that nobody waits for is in no usage of its parent."""

    def __init__(self, pid: int) -> None:
        self._root = pid
        self._of: dict[tuple[int, float], float] = {}  # by pid and time of start, which tell processes apart

    def now(self) -> float:
        for each in self._alive():
            with contextlib.suppress(psutil.Error):  # it has just ended
                self._of[each.pid, each.create_time()] = sum(each.cpu_times()[:2])
        return sum(self._of.values())

    def _alive(self) -> Sequence[psutil.Process]:
        try:
            first = psutil.Process(self._root)
            return [first, *first.children(recursive=True)]
        except psutil.Error:
            return []


def _end_of(running: subprocess.Popen[bytes], limit: float) -> tuple[int | None, float]:
    """(exit code, seconds of CPU with its children); no code where it was ended for taking too long."""
    late = time.monotonic() + _PATIENCE * limit
    ended = False
    work = _Work(running.pid)
    while True:
        worked = work.now()
        pid, status, usage = os.wait4(running.pid, os.WNOHANG)
        if pid:
            running.returncode = os.waitstatus_to_exitcode(status)  # it is waited for: Popen must not
            return None if ended else running.returncode, max(worked, usage.ru_utime + usage.ru_stime)
        if not ended and (time.monotonic() > late or worked > limit):
            os.killpg(running.pid, signal.SIGKILL)
            ended = True
        time.sleep(_POLL)
