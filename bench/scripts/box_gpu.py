"""Real jobs of two workers that share one GPU and a network of a limited rate, so that a row has targets of both.

    python bench/scripts/box_gpu.py --state FOLDER --seconds 540 [--device cuda] [--cores 0,1,2,3] [--loopback] [--most N]
    python bench/scripts/box_gpu.py --collect FOLDER      # rows of bench/data/box-gpu from what was measured
    python bench/scripts/box_gpu.py --graphs              # their graphs; needs no device

Ranks are processes in network namespaces with links of a limited rate, where root and iproute2 are; else on the loopback,
with paced sockets. They stay alive from network to network. FOLDER/raw.jsonl has a line for every network and setting that
was done: those are not run again. bench/data/README.md says what comes of it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import socket
import sys
import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import zip_longest
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / folder) for folder in ("", "src", "bench/src", "bench/scripts")]

from box_gpu_counters import count
from box_gpu_links import Reading, connections, ports, sampled, why_no_namespaces
from box_gpu_rank import WORKERS, Intervals, Place, Task, be_rank, merged
from box_models import ON_A_DEVICE, network

from tests.measure import netns

RANKS: Final = WORKERS + 1  # the last one is the server
BATCHES: Final = 8
PATIENCE: Final = 45.0  # seconds for a network in a setting
RESTARTS: Final = 5
SPAWN: Final = get_context("spawn")  # a process that asked for CUDA once can not be forked
BIN: Final = 10**6  # nanoseconds
MARGIN: Final = 10**7  # nanoseconds of readings kept around a row


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    plan: str
    servers: int
    mbit: int

    @property
    def name(self) -> str:
        return f"{self.plan}@{self.mbit}"

    @property
    def bytes_per_second(self) -> float:
        return self.mbit * 1e6 / 8


SETTINGS: Final = (
    Setting(plan="dp=2", servers=0, mbit=2000),
    Setting(plan="dp=2", servers=0, mbit=500),
    Setting(plan="dp=2,servers=1", servers=1, mbit=2000),
)


def in_turn() -> list[str]:
    """A network of every family, then another: whenever it ends, families have had as many."""
    families: dict[str, list[str]] = {}
    for name in ON_A_DEVICE:
        families.setdefault(name.split("-")[0], []).append(name)
    return [name for some in zip_longest(*families.values()) for name in some if name is not None]


def batches(name: str) -> tuple[int, ...]:
    smallest = ON_A_DEVICE[name][1]
    return tuple(smallest * 2**i for i in range(BATCHES))


class Broken(Exception):
    """A rank failed or did not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """Processes that do tasks, what their links carry meanwhile, and how they are joined."""

    processes: Sequence[Any]
    orders: Sequence[Connection]
    readings: list[Reading]
    joined: str
    links: netns.Cluster | None

    def limit(self, setting: Setting) -> None:
        if self.links is not None:
            self.links.limit(setting.mbit * 1e6)

    def do(self, task: Task) -> list[dict[str, Any]]:
        asked = self.orders if task.servers else self.orders[:WORKERS]
        for order in asked:
            order.send(task)
        return [answer(order, PATIENCE) for order in asked]


def answer(order: Connection, patience: float) -> dict[str, Any]:
    try:
        if not order.poll(patience):
            raise Broken(f"no answer in {patience:.0f} s")
        found: dict[str, Any] = order.recv()
    except (EOFError, OSError) as error:
        raise Broken(f"a rank ended: {error!r}") from error
    if "error" in found:
        raise Broken(found["error"])
    return found


@contextmanager
def ranks(device: str, cores: Sequence[int], *, loopback: bool) -> Iterator[Ranks]:
    with ExitStack() as stack:
        links = None if loopback else stack.enter_context(netns.cluster(RANKS, bits_per_second=SETTINGS[0].mbit * 1e6))
        processes, orders = [], []
        stack.callback(lambda: [(p.kill(), p.join()) for p in processes])
        port = free_port()
        for rank in range(RANKS):
            place = Place(
                rank=rank, size=RANKS, port=port, device=device, cores=tuple(cores[:-1] or cores),
                master="127.0.0.1" if links is None else links.address(0),
                namespace="" if links is None else links.hosts[rank],
                interface="lo" if links is None else netns.INTERFACE,
            )  # fmt: skip
            here, there = SPAWN.Pipe()
            processes.append(SPAWN.Process(target=be_rank, args=(place, there), daemon=True))
            processes[-1].start()
            there.close()
            orders.append(here)
        started = [answer(order, 180.0)["ready"] for order in orders]
        if links is None:
            readings = stack.enter_context(sampled(stack.enter_context(connections(started))))
        else:
            readings = stack.enter_context(sampled(lambda: ports(RANKS), links.switch))
        joined = "loopback, paced" if links is None else "namespaces, tbf"
        yield Ranks(processes=processes, orders=orders, readings=readings, joined=joined, links=links)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def campaign(options: argparse.Namespace) -> None:
    end = time.monotonic() + options.seconds
    os.sched_setaffinity(0, options.cores[-1:])
    raw = options.state / "raw.jsonl"
    options.state.mkdir(parents=True, exist_ok=True)
    reason = "asked for" if options.loopback else why_no_namespaces()
    print(f"links: {f'loopback ({reason})' if reason else 'namespaces'}", flush=True)
    counting = SPAWN.Process(target=count, args=(options.state / "device.jsonl", options.cores[-1:]), daemon=True)
    if options.device == "cuda":
        counting.start()
    for _ in range(RESTARTS):
        try:
            with ranks(options.device, options.cores, loopback=bool(reason)) as started:
                if all_done(started, raw, end, options):
                    return
        except Broken as broken:
            print(f"again: {broken}", flush=True)


def all_done(started: Ranks, raw: Path, end: float, options: argparse.Namespace) -> bool:
    """False: never; it ends or is broken."""
    done = {(line["network"], line["setting"]) for line in lines(raw)}
    for name in in_turn()[: options.most]:
        for setting in SETTINGS:
            if (name, setting.name) in done:
                continue
            if time.monotonic() > end:
                return True
            began = time.monotonic()
            started.limit(setting)
            task = Task(
                network=name, batches=batches(name)[: options.batches], servers=setting.servers,
                bytes_per_second=setting.bytes_per_second,
            )  # fmt: skip
            line: dict[str, Any] = {"network": name, "setting": setting.name}
            try:
                told = started.do(task)[:WORKERS]
                line |= {"rows": with_readings(told, started.readings), "trace": [t["error_of_trace"] for t in told]}
            except Broken as broken:
                line["error"] = str(broken)
                raise
            finally:
                line |= about(setting, started.joined, options)
                started.readings.clear()
                with raw.open("a") as file:
                    file.write(json.dumps(line, separators=(",", ":")) + "\n")
            print(f"{setting.name} {name}: {time.monotonic() - began:.1f} s, {line['trace']}", flush=True)
    return True


def about(setting: Setting, joined: str, options: argparse.Namespace) -> dict[str, Any]:
    return {
        "plan": setting.plan, "mbit": setting.mbit, "servers": setting.servers, "joined": joined, "device": options.device,
        "date": datetime.now(UTC).isoformat(timespec="seconds"), "torch": version("torch"),
        "python": platform.python_version(), "machine": platform.machine(), "cores": len(options.cores),
    }  # fmt: skip


def with_readings(told: Sequence[dict[str, Any]], readings: Sequence[Reading]) -> list[dict[str, Any]]:
    """A row of every batch: what each worker told, and the counters from just before it to just after."""
    rows = []
    for own in zip(*(t["rows"] for t in told), strict=True):
        begin, end = min(r["begin"] for r in own) - MARGIN, max(r["ends"][-1] for r in own) + MARGIN
        first, last = bisect_left(readings, [begin]), bisect_right(readings, [end])
        zero = readings[first] if first < last else []
        seen = [[a - b for a, b in zip(reading, zero, strict=True)] for reading in readings[first:last]]
        rows.append({"workers": own, "zero": zero[:1], "readings": seen, **device_of(own)})
    return rows


def device_of(told: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """When the device ran anybody's kernels: nanoseconds in all, and of every millisecond from the first step on."""
    spans = [one.pop("busy", None) for one in told]
    if None in spans:
        return {}
    begin, end = min(one["begin"] for one in told), max(one["ends"][-1] for one in told)
    for one, span in zip(told, spans, strict=True):
        one["active_ns"] = sum(length for _, length in span)
    offsets = [one["begin"] - begin for one in told]
    shifted = [(at + o, at + o + n) for o, span in zip(offsets, spans, strict=True) for at, n in span]
    busy = merged([(a, min(b, end - begin)) for a, b in shifted])
    return {
        "device": {
            "begin": begin,
            "end": end,
            "active_ns": sum(n for _, n in busy),
            "busy_us": binned(busy, end - begin),
        }
    }


def binned(busy: Intervals, length: int) -> list[int]:
    """Microseconds in use of each bin."""
    bins = [0] * -(-length // BIN)
    for at, span in busy:
        while span > 0:
            here = min(span, BIN - at % BIN)
            bins[at // BIN] += here
            at, span = at + here, span - here
    return [round(n / 1e3) for n in bins]


def lines(path: Path) -> list[Any]:
    """Those that were written to their end."""
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]] if path.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--state", type=Path, help="where what was measured is kept")
    parser.add_argument("--seconds", type=float, default=540.0, help="start nothing after these")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument(
        "--cores", type=lambda text: [int(n) for n in text.split(",")], default=sorted(os.sched_getaffinity(0))
    )
    parser.add_argument("--loopback", action="store_true", help="even where namespaces can be made")
    parser.add_argument("--most", type=int, help="networks")
    parser.add_argument("--batches", type=int, default=BATCHES)
    parser.add_argument("--collect", type=Path, metavar="FOLDER")
    parser.add_argument("--graphs", action="store_true")
    options = parser.parse_args()
    if options.collect or options.graphs:
        import box_gpu_collect
        from box_graphs import save_graphs

        if options.graphs:  # at the two smallest batches, from which the others are continued
            smallest = [(name, batch) for name in ON_A_DEVICE for batch in batches(name)[:2]]
            save_graphs(box_gpu_collect.FOLDER, network, smallest)
        if options.collect:
            box_gpu_collect.collect(lines(options.collect / "raw.jsonl"), lines(options.collect / "device.jsonl"))
    else:
        with suppress(KeyboardInterrupt):
            campaign(options)


if __name__ == "__main__":
    main()
