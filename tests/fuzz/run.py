"""The long run of the fuzzer: `python tests/fuzz/run.py --cases 20000 --workers 8`; exits with 1 where anything was found.

`--only graph` runs one target, `--only graph --case 123` one case in this process, with its traceback. `--keep FOLDER`
writes what broke something, to be made small and put into `corpus/`.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import multiprocessing
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from multiprocessing.connection import Connection, wait
from pathlib import Path

ROOT = Path(__file__).parents[2]
for _threads in ("OMP", "OPENBLAS", "MKL"):
    os.environ.setdefault(f"{_threads}_NUM_THREADS", "1")  # a worker has a core of its own
sys.path[0] = str(ROOT)
if (ROOT / "src").is_dir():
    sys.path.insert(1, str(ROOT / "src"))

from tests.fuzz.harness import (  # noqa: E402
    BAD,
    FINE,
    SECONDS,
    WAITS,
    Outcome,
    Target,
    find_targets,
    limit_memory,
    numbers,
    run_case,
)

GRACE = 5.0  # beyond a case's own limit, for code that no signal interrupts
EVERY = 10.0  # seconds between two lines of progress
Case = tuple[str, int]


class Worker:
    """A process that runs one case after another; a new one takes its place when it dies or hangs."""

    def __init__(self, seed: int, targets: Mapping[str, Target]) -> None:
        self.ours, theirs = multiprocessing.Pipe()
        fork = multiprocessing.get_context("fork")
        self.process = fork.Process(target=_serve, args=(theirs, seed, targets), daemon=True)
        self.process.start()
        theirs.close()
        self.case: Case | None = None
        self.began = 0.0

    def get_ready(self) -> None:
        """Wait until every target is prepared, which is no part of a case."""
        try:
            self.ours.recv()
        except EOFError:
            sys.exit("a target could not be prepared; try it alone: --only TARGET --case 0")

    def give(self, case: Case) -> None:
        self.get_ready()
        self.case, self.began = case, time.monotonic()
        self.ours.send(case)

    def outcome(self) -> Outcome | None:
        """What became of its case; None while it runs."""
        assert self.case is not None
        target, number = self.case
        took = time.monotonic() - self.began
        if self.ours.poll():
            try:
                found: Outcome = self.ours.recv()
                return found
            except EOFError:
                self.process.join()
                code = self.process.exitcode
                return Outcome(target=target, number=number, category="crash", text=f"died: {code}", seconds=took)
        if took > WAITS * SECONDS + GRACE:
            self.stop()
            return Outcome(target=target, number=number, category="hang", text="had to be killed", seconds=took)
        return None

    def stop(self) -> None:
        self.process.kill()
        self.process.join()


def _serve(cases: Connection, seed: int, targets: Mapping[str, Target]) -> None:
    with tempfile.TemporaryDirectory() as home:
        os.environ["HOME"] = home
        for name in [name for name in os.environ if name.startswith(("FORETELL_", "XDG_"))]:
            del os.environ[name]
        os.environ["FORETELL_CACHE"] = f"{home}/cache"
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
            for target in targets.values():
                target.prepare()
            limit_memory()
            with contextlib.suppress(EOFError):
                while True:
                    cases.send("ready")
                    name, number = cases.recv()
                    cases.send(run_case(targets[name], number, seed))


def run(asked: argparse.Namespace) -> list[Outcome]:
    targets, missing = find_targets()
    for name, library in missing.items():
        print(f"{name}: left out, there is no {library} here")
    targets = {name: target for name, target in targets.items() if asked.only in (None, name)}
    queue = numbers(targets, asked.cases)
    total = sum(1 for _ in numbers(targets, asked.cases))
    done: list[Outcome] = []
    began = told = time.monotonic()
    workers = [Worker(asked.seed, targets) for _ in range(asked.workers)]
    for worker, case in zip(workers, itertools.islice(queue, len(workers)), strict=False):
        worker.give(case)
    while busy := [worker for worker in workers if worker.case]:
        wait([worker.ours for worker in busy], timeout=0.5)
        for i, worker in enumerate(workers):
            if worker.case is None or (outcome := worker.outcome()) is None:
                continue
            done.append(outcome)
            if outcome.category in BAD:
                print(f"{outcome.category}: {outcome.target} {outcome.number}: {outcome.text}\n", flush=True)
                _keep(asked, outcome)
            worker.case = None
            if (case := next(queue, None)) is None:
                continue
            if not worker.process.is_alive():
                worker = workers[i] = Worker(asked.seed, targets)
            worker.give(case)
        if time.monotonic() - told > EVERY:
            told = time.monotonic()
            bad = sum(o.category in BAD for o in done)
            print(f"{len(done):,} of {total:,} cases in {told - began:.0f} s, {bad} bad", flush=True)
    for worker in workers:
        worker.stop()
    print(f"{len(done):,} cases with seed {asked.seed} in {time.monotonic() - began:.0f} s")
    return done


def _keep(asked: argparse.Namespace, outcome: Outcome) -> None:
    if asked.keep is None or outcome.number < 0:
        return
    data = find_targets()[0][outcome.target].input(outcome.number, asked.seed)
    if data is not None:
        asked.keep.mkdir(parents=True, exist_ok=True)
        (asked.keep / f"{outcome.target}-{outcome.category}-{asked.seed}-{outcome.number}").write_bytes(data)


def summary(done: list[Outcome]) -> str:
    lines = [
        f"{'target':12}" + "".join(f"{name:>10}" for name in ("cases", *FINE, *BAD)) + f"{'slowest':>10}{'peak':>10}"
    ]
    for name in sorted({o.target for o in done}):
        own = [o for o in done if o.target == name]
        count = Counter(o.category for o in own)
        lines.append(
            f"{name:12}{len(own):>10}" + "".join(f"{count[c]:>10}" for c in (*FINE, *BAD))
            + f"{max(o.seconds for o in own):>8.2f} s{max(o.peak for o in own) / 2**20:>6.0f} MiB"
        )  # fmt: skip
    return "\n".join(lines)


def one(asked: argparse.Namespace) -> None:
    target = find_targets()[0][asked.only]
    target.prepare()
    target.case(asked.case, asked.seed)()
    print("answered")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="one target")
    parser.add_argument("--case", type=int, help="one case of it, in this process")
    parser.add_argument("--keep", type=Path, help="a folder for what broke something")
    asked = parser.parse_args()
    if asked.case is not None:
        one(asked)
        return 0
    done = run(asked)
    print(summary(done))
    return int(any(o.category in BAD for o in done))


if __name__ == "__main__":
    sys.exit(main())
