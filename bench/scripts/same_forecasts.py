"""Whether two versions of Foretell forecast the same: many graphs on several devices under several plans.

    python bench/scripts/same_forecasts.py run GRAPHS --save before.jsonl     with one version
    python bench/scripts/same_forecasts.py run GRAPHS --save after.jsonl      with the other
    python bench/scripts/same_forecasts.py compare before.jsonl after.jsonl

GRAPHS is a folder of .graph files; `python bench/scripts/same_forecasts.py graphs STORE GRAPHS` takes 200 from a store.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import foretell
from foretell.errors import InputError

DEVICES = ("h200", "a100-80g-sxm", "l4", "rtx-3090", "mi300x")
PLANS = ("dp=1", "dp=8,zero=3", "dp=2,tp=2,pp=2,grad_accumulation=4")
NUMBERS = ("step_time", "device_time", "host_time", "exposed_communication", "bubble")
MEMORY = ("allocated", "reserved", "total")
TOLERANCE = 1e-6


def graphs(store: str, folder: str, count: int = 200) -> None:
    """Save `count` different graphs of a store, drawn by their hash."""
    from foretell.store.store import Store

    opened = Store(store)
    hashes = {s.graph for s in opened.steps("kind = 'step' AND outcome = 'ok' AND world_size = 1") if s.graph}
    drawn = sorted(hashes, key=lambda text: hashlib.sha256(text.encode()).hexdigest())[:count]
    Path(folder).mkdir(parents=True, exist_ok=True)
    for name, graph in opened.graphs(drawn).items():
        graph.save(Path(folder) / f"{name[:16]}.graph")


def run(folder: str, save: str) -> None:
    files = sorted(Path(folder).glob("*.graph"))
    began = time.monotonic()
    done = {graph for graph, _, _ in _read(save)} if Path(save).exists() else set()
    with open(save, "a") as out:
        for number, path in enumerate(files, start=1):
            if path.stem in done:
                continue
            graph = foretell.Graph.load(path)
            for device in DEVICES:
                for plan in PLANS:
                    row = {"graph": path.stem, "workload": graph.name, "device": device, "plan": plan}
                    out.write(json.dumps(row | _forecast(graph, device, plan)) + "\n")
            out.flush()
            print(f"{number} of {len(files)} graphs, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)


def _forecast(graph: foretell.Graph, device: str, plan: str) -> dict[str, Any]:
    devices = foretell.Plan.parse(plan).devices
    try:
        answer = foretell.forecast(graph, on=f"{devices}x{device}", plan=plan).to_dict()
    except InputError as error:
        return {"refused": type(error).__name__}
    except Exception as error:  # a fault of that version, which the comparison must outlive
        return {"failed": type(error).__name__}
    values = {name: answer[name]["seconds"] for name in NUMBERS}
    values |= {f"{name}_{end}": answer[name][end] for name in ("step_time", "device_time") for end in ("low", "high")}
    return values | {name: answer["memory"][name] for name in MEMORY} | {"sent": answer["network"]["sent_bytes"]}


def compare(before: str, after: str) -> int:
    old, new = (_read(path) for path in (before, after))
    differing: Counter[str] = Counter()
    shown = 0
    for key in sorted(old.keys() & new.keys()):
        unlike = [
            name
            for name in sorted(old[key].keys() | new[key].keys())
            if not _same(old[key].get(name), new[key].get(name))
        ]
        differing.update(unlike or ["the same"])
        if unlike and shown < 40:
            shown += 1
            values = ", ".join(f"{name} {old[key].get(name)} → {new[key].get(name)}" for name in unlike[:4])
            print(f"{old[key]['workload']} on {key[1]} with {key[2]}: {values}")
    missing = len(old.keys() ^ new.keys())
    print(
        f"{len(old.keys() & new.keys()):,} forecasts compared, {differing['the same']:,} the same; {missing} in one file alone"
    )
    for name, count in differing.most_common():
        if name != "the same":
            print(f"  {name}: {count:,} differ")
    return int(missing > 0 or set(differing) != {"the same"})


def _read(path: str) -> dict[tuple[str, str, str], dict[str, Any]]:
    rows = map(json.loads, Path(path).read_text().splitlines())
    return {(row["graph"], row["device"], row["plan"]): row for row in rows}


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, int | float):
        return abs(one - other) <= TOLERANCE * max(abs(one), abs(other), 1e-12)
    return bool(one == other)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["graphs", store, folder]:
            graphs(store, folder)
        case ["run", folder, "--save", save]:
            run(folder, save)
        case ["compare", before, after]:
            sys.exit(compare(before, after))
        case _:
            sys.exit(__doc__)
