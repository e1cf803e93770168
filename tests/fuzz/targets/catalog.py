"""Catalog files: fields changed, left out and damaged; what is read is forecast on."""

from __future__ import annotations

import os
import random
import tempfile
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import foretell
from foretell import Graph
from foretell.hardware import catalog
from tests.fuzz.answers import check_forecast
from tests.fuzz.mutate import change, damaged, scale

SHIPPED = Path(foretell.__file__).parent / "hardware" / "catalog"
GRAPH = Path(__file__).parents[1] / "bases" / "experts.graph"
# What is changed, under a name of its own, and where it is then used.
FILES = {
    "devices/h200": "2xfuzzed",
    "links/ib-400g": "2x1xh200@fuzzed",
    "links/nvlink-4": "2xh100-sxm@fuzzed,ib-400g",
    "hosts/xeon-8481c": "2xd",
    "instances/aws/p5.48xlarge": "2xfuzzed:fuzzed",
    "fabrics/nvswitch": "2xh200@l",
}
QUANTITIES = (
    "inf GB/s", "1e999 GB/s", "-5 GB/s", "0 B", "1.2.3 TB/s", "1__0 GB", "nan s", "1e-320 us", "9" * 400 + " B", "1e29 TFLOP/s",
    "4.8 TB/s", "80 GiB", "", " ", "GB", "1 furlong", "1e30 s", "0.000001 us", "1_000 GB/s",
)  # fmt: skip


@cache
def text_of(name: str) -> str:
    return next(
        iter(sorted((SHIPPED / name).parent.glob("*.toml"), key=lambda p: p.stem != Path(name).name))
    ).read_text()


def written(data: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """As TOML, or near enough to be refused."""
    for key, value in data.items():
        if not isinstance(value, dict):
            yield f"{key} = {_value(value)}"
    for key, value in data.items():
        if isinstance(value, dict):
            yield f"[{prefix}{key}]"
            yield from written(value, f"{prefix}{key}.")


def _value(value: Any) -> str:
    if isinstance(value, str):
        return '"' + "".join(c if c.isprintable() and c not in '"\\' else "?" for c in value) + '"'
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    return {None: '""', True: "true", False: "false"}.get(value, str(value)) if not isinstance(value, dict) else "{}"


def make(rng: random.Random) -> bytes:
    name = rng.choice(list(FILES))
    text = text_of(name)
    if rng.random() < 0.2:
        return f"{name}\n".encode() + damaged(rng, text.encode())
    data = tomllib.loads(text)
    data.pop("aliases", None)
    for _ in range(rng.choice((1, 1, 2))):
        spoil(rng, data)
    if rng.random() < 0.02:
        return f"{name}\n".encode() + rng.choice(
            (b"a=" + b"[" * 100_000, b"a." * 50_000 + b"b=1", b'x="' + b"y" * 10**6)
        )
    return f"{name}\n{chr(10).join(written(data))}\n".encode("utf-8", "surrogateescape")


def spoil(rng: random.Random, data: dict[str, Any]) -> None:
    """Half the time what can be read and lies, else what hardly can."""
    kind, tables = rng.random(), [each for each in (data, *data.values()) if isinstance(each, dict) and each]
    if kind < 0.5:
        scale(rng, data)
    elif kind < 0.75 and tables:
        table = rng.choice(tables)
        table[rng.choice(list(table))] = rng.choice(QUANTITIES)
    else:
        change(rng, data)


def prepare() -> None:
    foretell.forecast(Graph.load(GRAPH), "2xh200", model="roofline")


def use(data: bytes, rng: random.Random) -> None:
    name, _, content = data.partition(b"\n")
    kind = name.decode().split("/")[0]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / kind / ("fuzzed/fuzzed.toml" if kind == "instances" else "fuzzed.toml")
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
        (Path(folder) / "devices").mkdir(exist_ok=True)
        (Path(folder) / "links").mkdir(exist_ok=True)
        device = text_of("devices/h200").replace("aliases", "#")
        (Path(folder) / "devices/d.toml").write_text(_with(device, "host", "fuzzed"))
        (Path(folder) / "links/l.toml").write_text(
            _with(text_of("links/nvlink-4").replace("aliases", "#"), "fabric", "fuzzed")
        )
        os.environ["FORETELL_CATALOG"] = folder
        try:
            cluster = foretell.Cluster.parse(FILES[name.decode()])
            check_forecast(foretell.forecast(Graph.load(GRAPH), cluster, model="roofline"))
        finally:
            del os.environ["FORETELL_CATALOG"]
            for files in (catalog._DEVICES, catalog._LINKS, catalog._HOSTS, catalog._INSTANCES, catalog._FABRICS):
                for known in (files._parsed, files._listed):
                    for key in [key for key in known if folder in str(key)]:
                        del known[key]  # type: ignore[arg-type]


def _with(text: str, key: str, value: str) -> str:
    """A file whose entry for a key is another."""
    lines = text.splitlines()
    if not any(line.startswith(f"{key} ") for line in lines):
        return f'{key} = "{value}"\n{text}'
    return "\n".join(f'{key} = "{value}"' if line.startswith(f"{key} ") else line for line in lines) + "\n"
