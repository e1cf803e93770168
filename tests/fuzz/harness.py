"""What every fuzz target shares: finding targets, running one case under limits, and saying what became of it.

A target is a file in `targets/` with a function `case(rng)`: it makes something hostile of `rng` and uses it as a user
would. Returning is an answer, an InputError a refusal; any other exception is a crash, `Nonsense` an answer that cannot be.
Where what is made is a file, write `make(rng) -> bytes` and `use(data, rng)` instead: then `corpus/TARGET/` can keep files
that once broke something, and every run begins with them. Optional: `prepare()`, once per process and not timed, and
`WEIGHT`, how many cases of a run a target gets beside the others (1); a slow one has a `QUICK_WEIGHT` for the suite too.
"""

from __future__ import annotations

import importlib
import math
import pkgutil
import random
import resource
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from foretell.errors import ForetellError, InputError, RequirementNotMet
from tests.fuzz import targets as folder_of_targets

CORPUS = Path(__file__).parent / "corpus"
SECONDS, BYTES = 5.0, 2 * 2**30  # that a case may take: of a core, as a machine may be busy with other things,
WAITS = 6  # and so many times as long on the clock
FINE = ("answered", "refused")
BAD = ("crash", "hang", "memory", "nonsense")


class Nonsense(AssertionError):
    """An answer that cannot be: a negative time, a number that is none."""


class _TooLong(BaseException):
    """Not an Exception, so that no reader of broken files takes it for a broken file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    target: str
    number: int  # of the case; files of the corpus have negative ones
    category: str  # one of FINE or BAD
    text: str = ""
    seconds: float = 0.0
    peak: int = 0  # bytes above what the process had before


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    name: str
    module: ModuleType

    def weight(self, *, quick: bool) -> float:
        weight = float(getattr(self.module, "WEIGHT", 1))
        return float(getattr(self.module, "QUICK_WEIGHT", weight)) if quick else weight

    @property
    def corpus(self) -> list[Path]:
        return sorted(p for p in (CORPUS / self.name).glob("*") if p.is_file())

    def prepare(self) -> None:
        getattr(self.module, "prepare", lambda: None)()

    def case(self, number: int, seed: int) -> Callable[[], Any]:
        """What runs a case, its file made already; `-1` is the first file of the corpus."""
        module, rng = self.module, random.Random(f"{self.name} {number} {seed}")
        if number < 0 or hasattr(module, "make"):
            data = self.corpus[-1 - number].read_bytes() if number < 0 else module.make(rng)
            return lambda: module.use(data, rng)
        return lambda: module.case(rng)

    def input(self, number: int, seed: int) -> bytes | None:
        """The file that a case is about, where it is about one."""
        if number < 0 or not hasattr(self.module, "make"):
            return None
        data: bytes = self.module.make(random.Random(f"{self.name} {number} {seed}"))
        return data


def find_targets() -> tuple[dict[str, Target], dict[str, str]]:
    """By name; and those that miss a library here, with which."""
    found, missing = {}, {}
    for entry in pkgutil.iter_modules(folder_of_targets.__path__):
        try:
            module = importlib.import_module(f"{folder_of_targets.__name__}.{entry.name}")
            found[entry.name] = Target(name=entry.name, module=module)
        except ModuleNotFoundError as error:
            missing[entry.name] = str(error.name)
    return found, missing


def numbers(targets: dict[str, Target], cases: int, *, quick: bool = False) -> Iterator[tuple[str, int]]:
    """Which cases a run of so many has: every corpus file, then the targets by their weights, mixed."""
    for target in targets.values():
        yield from ((target.name, -1 - i) for i in range(len(target.corpus)))
    weights = {name: target.weight(quick=quick) for name, target in targets.items()}
    shares = {name: math.ceil(cases * weight / sum(weights.values())) for name, weight in weights.items()}
    for number in range(max(shares.values(), default=0)):
        yield from ((name, number) for name, share in shares.items() if number < share)


def run_case(target: Target, number: int, seed: int, *, seconds: float = SECONDS) -> Outcome:
    """One case; never raises."""
    case, category, text = target.case(number, seed), "answered", ""
    before, began = _reset_peak(), time.process_time()
    try:
        with _limited(seconds):
            case()
    except (InputError, RequirementNotMet) as error:
        category, text = ("refused", str(error)) if str(error).strip() else ("nonsense", "an error without a word")
    except Nonsense as error:
        category, text = "nonsense", str(error)
    except MemoryError:
        category, text = "memory", _where()
    except _TooLong:
        category, text = "hang", _where()
    except (Exception, SystemExit) as error:
        ours = "ours: " if isinstance(error, ForetellError) else ""
        category, text = "crash", f"{ours}{_where()}"
    took, peak = time.process_time() - began, _peak() - before
    if category in FINE and peak > BYTES:
        category = "memory"
    if category in FINE and took > seconds:
        category = "hang"
    return Outcome(target=target.name, number=number, category=category, text=text[-2000:], seconds=took, peak=peak)


def limit_memory() -> None:
    """So that a case that wants the whole machine is told, and the machine lives."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2 * BYTES, resource.RLIM_INFINITY))


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    def too_long(signum: int, frame: FrameType | None) -> None:
        raise _TooLong

    timers = ((signal.ITIMER_PROF, signal.SIGPROF, seconds), (signal.ITIMER_REAL, signal.SIGALRM, WAITS * seconds))
    before = [signal.signal(sent, too_long) for _, sent, _ in timers]
    try:
        for timer, _, limit in timers:
            signal.setitimer(timer, limit, 0.5)  # again, should something swallow it
        yield
    finally:
        for (timer, sent, _), handler in zip(timers, before, strict=True):
            signal.setitimer(timer, 0)
            signal.signal(sent, handler)


def _where() -> str:
    return traceback.format_exc(limit=-6).strip()


def _reset_peak() -> int:
    with suppress(OSError):  # not everywhere allowed; then the peak is that of all cases so far
        Path("/proc/self/clear_refs").write_text("5")
    return _peak()


def _peak() -> int:
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) * 1024
    return 0
