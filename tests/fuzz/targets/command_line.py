"""Command lines over all verbs: options that exist with values that make no sense, in a folder of files to name."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, chdir, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import patch

import typer
from typer.testing import CliRunner

from foretell import cli
from foretell.errors import InputError
from foretell.sources.resolve import load_workload
from tests.fuzz.answers import check_finite
from tests.fuzz.harness import Nonsense

QUICK_WEIGHT = 0.25  # a case takes a while
TESTS = Path(__file__).parents[2]
VERBS = (
    ("predict",) * 5 + ("inspect", "scale") * 2 + ("devices", "measure", "design", "fit", "store", "bench", "nosuch")
)
NUMBERS = (
    "0", "1", "2", "3", "-1", "1.5", "1e3", "1e308", "1e999", "inf", "-inf", "nan", "1_000", "_", "9" * 5000, "0x10", "١٢",
    "2147483648", "4294967297", "1e-320", "", " ", "1 2", "1,5", "1.2.3", "..", "1__0",
)  # fmt: skip
WORDS = (
    "x", "", "\x1b[31mred", "\x9b31m", "a\rb", "a\nb", "\u202eevil", "\ud800", "🦆", "../../etc/passwd", "/dev/null", "/", ".", "~",
    "<script>alert(1)</script>", "%s%n{0}", "[bold]", "a" * 300, "b" * 100_000, "--json", "-", "--", "=", ",", ":", "x=y", "null",
)  # fmt: skip
CLUSTERS = (
    "h200", "8xh100-sxm", "2x8xh100-sxm@ib-400g", "l4", "2xt4", "0xh200", "99999999xh200", "h200xh200", "8xl40s@pcie-4,eth-100g",
    "4xt4+2xt4", "2xaws:p5.48xlarge", "h200@", "h200@ib-400g/0", "h200/", "1048576xh200", "tpu-v4", "+".join(["h200"] * 3000),
)  # fmt: skip
PLANS = (
    "dp=1", "dp=2", "tp=2", "pp=2", "cp=2", "dp=2,zero=3", "servers=1", "dp=2,servers=1", "dp=2,data_parallel=dp", "zero=9", "dp=0",
    "checkpointing=full", "checkpointing=nan", "checkpointing=inf", "checkpointing=0.5", "stages=1-1,pp=2", "stages=-,pp=2",
    "grad_accumulation=7", "pp=2,schedule=interleaved,virtual_stages=2,grad_accumulation=4", "bucket_bytes=1", "dp=99999999999999999999",
    "virtual_stages=5", "hybrid_shard=3,dp=2,zero=3", "overlap=false", "asynchronous=true", "ep=2,dp=2", "sequence_parallel=1,tp=2",
)  # fmt: skip
QUESTIONS = tuple(
    ("--on", f"{devices}xh200", "--plan", plan)
    for devices, plans in ((1, ("dp=1", "checkpointing=full", "grad_accumulation=7")),
                           (2, ("dp=2,zero=3", "tp=2", "pp=2", "cp=2", "dp=2,ep=2", "dp=2,servers=1", "dp=2,data_parallel=dp")))
    for plan in plans
)  # fmt: skip
TIMES = (
    "1s",
    "10min",
    "1h",
    "0",
    "1e400 s",
    "1..2s",
    "_s",
    "5 parsecs",
    "-3s",
    "nans",
    "inf",
    "1000:45s",
    "0:1s",
    "1:inf",
    "1:",
    ":1",
)
BY_OPTION = {
    "--on": CLUSTERS,
    "--plan": PLANS,
    "--budget": TIMES,
    "--limit": TIMES,
    "--seconds": TIMES,
    "--evaluate": TIMES,
}
BY_OPTION |= {
    "--checkpoint": TIMES,
    "--model": ("roofline", "h200-2026.11", "version-1.model"),
    "--pool": ("r.jsonl", "nosuch"),
}
BY_OPTION |= {
    "--store": ("version-1.store", "nosuch", "r.jsonl", "/dev/null"),
    "--set": ("batch=0", "batch=2", "a=b", "batch="),
}
BY_OPTION |= {
    "--sql": ("SELECT 1", "SELECT * FROM steps", "DROP TABLE steps", "SELECT 'nan'::DOUBLE AS x"),
    "--where": ("1=1", "x"),
}
BY_OPTION |= {
    "--vendor": ("nvidia", "amd"),
    "--method": ("random", "d-optimal"),
    "--html": ("a.html", "no/a.html", "/dev/full"),
}
BY_OPTION |= {
    "--trace": ("a.json", "a.et", "no/a.json"),
    "--save": ("a.graph", "a"),
    "--out": ("b.jsonl", "no/b.jsonl"),
}
FILES = (
    "llama.graph",
    "vit.graph",
    "experts.graph",
    "inference.graph",
    "empty.graph",
    "r.jsonl",
    "version-1.store",
    "config.json",
)
SOURCES = (
    *FILES[:4],
    *FILES,
    "nosuch.graph",
    "nosuch.py:f",
    "hf/nosuch",
    "timm/",
    "nosuch",
    "x.y:z",
    "f.py:",
    "config.json:f",
)
# What a terminal would obey.
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


@cache
def everything() -> Any:
    """All of the command line, as click has it: making it takes longer than most cases."""
    return typer.main.get_command(cli.app)


def command_of(*path: str) -> Any:
    command = everything()
    for name in path:
        command = command.commands.get(name, command)
    return command


def make_line(rng: random.Random) -> list[str]:
    verb = [rng.choice(VERBS)]
    if verb == ["store"]:
        verb.append(rng.choice(("ls", "show", "merge", "export", "import", "nosuch")))
    line = list(verb)
    if verb == ["predict"] and rng.random() < 0.4:  # that fit together
        line += rng.choice(QUESTIONS)
    for parameter in command_of(*verb).params:
        required = parameter.required and rng.random() < 0.95 and not set(parameter.opts) & set(line)
        if parameter.param_type_name == "argument":
            count = rng.choice((0, 1, 1, 2)) if parameter.nargs == -1 else 1
            line += [_value(rng, SOURCES) for _ in range(count if required or rng.random() < 0.7 else 0)]
        elif required or rng.random() < 1.5 / len(command_of(*verb).params):
            name = rng.choice(parameter.opts)
            takes = [] if parameter.is_flag else [_value(rng, BY_OPTION.get(name, NUMBERS))]
            line += [name, *takes] * rng.choice((1, 1, 1, 2) if parameter.multiple else (1,))
    if rng.random() < 0.1:
        line.insert(rng.randint(0, len(line)), rng.choice((*WORDS, "--nosuch", "-h", "--debug", "--version")))
    return [argument.replace("\0", "") for argument in line]


def _value(rng: random.Random, usual: tuple[str, ...]) -> str:
    if rng.random() < 0.9:
        return rng.choice(usual[:4] if rng.random() < 0.7 else usual)
    return rng.choice(rng.choice((NUMBERS, WORDS, CLUSTERS)))


def prepare() -> None:
    run(["predict", str(TESTS / "fuzz/bases/llama.graph"), "--on", "h200"])


@contextmanager
def _nothing_long() -> Iterator[None]:
    """No process is started, nothing measured or learned: that takes longer than a case may. Names are looked up here."""

    def refuse(*args: Any, **settings: Any) -> NoReturn:
        raise InputError("a fuzzed command line measures and learns nothing.")

    def look_up(source: str, settings: dict[str, str], *how: Any) -> NoReturn:
        if not source.startswith(("hf/", "timm/", "torchvision/")):  # those load libraries
            load_workload(source, settings)
        refuse()

    with ExitStack() as patched:
        patched.enter_context(patch("foretell.capture.capture_source", look_up))
        patched.enter_context(patch("foretell.campaign.worker.accelerators", list))
        for name in ("campaign.driver.run", "learn.fit.fit", "measure.host_speed.host_speed"):
            patched.enter_context(patch(f"foretell.{name}", refuse))
        yield


def run(line: list[str]) -> Any:
    columns = random.Random(str(line)).choice(("0", "-1", "1", "80", "x"))
    with patch("typer.testing._get_command", lambda app: everything()):
        return CliRunner().invoke(cli.app, line, env={"COLUMNS": columns, "FORETELL_DEBUG": "0"})


def case(rng: random.Random) -> None:
    line = make_line(rng)
    with tempfile.TemporaryDirectory() as folder, chdir(folder), _nothing_long():
        _lay_out(Path(folder), line)
        check(line, run(line))


def _lay_out(folder: Path, line: list[str]) -> None:
    for name in FILES[:4]:
        os.symlink(TESTS / "fuzz/bases" / name, folder / name)
    (folder / "empty.graph").touch()
    (folder / "config.json").write_text("{}")
    shutil.copy(TESTS / "data/version-1.records.jsonl", folder / "r.jsonl")
    if "version-1.store" in line:
        shutil.copytree(TESTS / "data/version-1.store", folder / "version-1.store")
    os.symlink(TESTS / "data/version-1.model", folder / "version-1.model")


def check(line: list[str], ended: Any) -> None:
    if ended.exit_code not in (0, 2, 3) or (ended.exception and not isinstance(ended.exception, SystemExit)):
        cause = ended.exception.__context__ or ended.exception
        raise RuntimeError(f"{line} ends with {ended.exit_code}: {ended.output[-500:]}") from cause
    if found := OBEYED.search(ended.output):
        raise Nonsense(f"{line} prints {found[0]!r}")
    if ended.exit_code == 2:
        if (
            not ended.stderr.strip()
            or len(ended.stderr) > 20_000
            or ("Traceback" in ended.stderr and "--debug" not in line)
        ):
            raise Nonsense(f"{line} is refused with {len(ended.stderr):,} characters: {ended.stderr[:500]}")
        raise InputError(ended.stderr)
    if ended.exit_code == 0 and "--json" in line and "-h" not in line and ended.stdout.startswith(("{", "[")):
        check_finite(json.loads(ended.stdout, parse_constant=_refuse_constant))


def _refuse_constant(name: str) -> NoReturn:
    raise Nonsense(f"{name} in JSON")
