"""Jobs of two workers that share one GPU and a network of a limited rate, so that a row has targets of both.

Ranks are processes in network namespaces with links of a limited rate, where root and iproute2 are; else on the loopback,
with paced sockets. They stay alive from network to network. `raw.jsonl` of the state's folder has a line for every network
and setting that was done: those are not run again. bench/data/README.md says what comes of it.
"""

from __future__ import annotations

import os
import socket
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import zip_longest
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final

from foretell_bench.emulated import namespaces
from foretell_bench.emulated.device_counters import count
from foretell_bench.emulated.gpu_rank import WORKERS, Intervals, Task, be_rank, merged
from foretell_bench.emulated.launch import join_all
from foretell_bench.emulated.links import Reading, connections, ports, sampled
from foretell_bench.emulated.models import ON_A_DEVICE
from foretell_bench.emulated.rank import Seat, Setting
from foretell_bench.emulated.readings import as_lines, read_lines, software

RANKS: Final = WORKERS + 1  # the last one is the server
BATCHES: Final = 8
MAX_TASK_SECONDS: Final = 45.0  # for a network in a setting
MAX_STARTS: Final = 5
SPAWN: Final = get_context("spawn")  # a process that has CUDA cannot be forked
BIN: Final = 10**6  # nanoseconds
MARGIN: Final = 10**7  # nanoseconds of readings kept around a row


SETTINGS: Final = (
    Setting(plan="dp=2", mbit=2000),
    Setting(plan="dp=2", mbit=500),
    Setting(plan="dp=2,servers=1", mbit=2000),
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

    orders: Sequence[Connection]
    readings: list[Reading]
    joined: str
    links: namespaces.Cluster | None

    def limit(self, setting: Setting) -> None:
        if self.links is not None:
            self.links.limit(setting.bits_per_second)

    def do(self, task: Task) -> list[dict[str, Any]]:
        chosen = self.orders if task.servers else self.orders[:WORKERS]
        for order in chosen:
            order.send(task)
        return [answer(order, MAX_TASK_SECONDS) for order in chosen]


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
        links = None
        if not loopback:
            links = stack.enter_context(namespaces.cluster(RANKS, bits_per_second=SETTINGS[0].bits_per_second))
        processes: list[BaseProcess] = []
        orders: list[Connection] = []
        stack.callback(lambda: join_all(processes, time.monotonic()))
        port = free_port()
        for rank in range(RANKS):
            master = "127.0.0.1" if links is None else links.address(0)
            seat = Seat(
                rank=rank, size=RANKS, meets=f"tcp://{master}:{port}", cores=tuple(cores[:-1] or cores),
                namespace="" if links is None else links.hosts[rank],
                interface="lo" if links is None else namespaces.INTERFACE,
            )  # fmt: skip
            here, there = SPAWN.Pipe()
            processes.append(SPAWN.Process(target=be_rank, args=(seat, device, there), daemon=True))
            processes[-1].start()
            there.close()
            orders.append(here)
        started = [answer(order, 180.0)["ready"] for order in orders]
        if links is None:
            readings = stack.enter_context(sampled(stack.enter_context(connections(started))))
        else:
            readings = stack.enter_context(sampled(lambda: ports(RANKS), links.switch))
        joined = "loopback, paced" if links is None else "namespaces, tbf"
        yield Ranks(orders=orders, readings=readings, joined=joined, links=links)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Campaign:
    """What is to be done, and where it is kept."""

    state: Path
    device: str
    cores: Sequence[int]
    loopback: bool = False  # even where namespaces can be made
    networks: int | None = None  # the first ones only
    batches: int = BATCHES
    say: Callable[[str], None]

    def run(self, seconds: float) -> None:
        """Starts nothing after these."""
        end = time.monotonic() + seconds
        os.sched_setaffinity(0, self.cores[-1:])
        self.state.mkdir(parents=True, exist_ok=True)
        reason = "--loopback" if self.loopback else namespaces.why_not()
        self.say(f"links: {f'loopback ({reason})' if reason else 'namespaces'}")
        if self.device == "cuda":
            counting = SPAWN.Process(target=count, args=(self.state / "device.jsonl", self.cores[-1:]), daemon=True)
            counting.start()
        for _ in range(MAX_STARTS):
            try:
                with ranks(self.device, self.cores, loopback=bool(reason)) as started:
                    self._run_all(started, end)
                return
            except Broken as broken:
                self.say(f"again: {broken}")

    def _run_all(self, started: Ranks, end: float) -> None:
        done = {(line["network"], line["setting"]) for line in read_lines(self.state / "raw.jsonl")}
        for name in in_turn()[: self.networks]:
            for setting in SETTINGS:
                if time.monotonic() > end:
                    return
                if (name, setting.name) not in done:
                    self._run_one(started, name, setting)

    def _run_one(self, started: Ranks, name: str, setting: Setting) -> None:
        began = time.monotonic()
        started.limit(setting)
        servers = setting.hosts - WORKERS
        task = Task(
            network=name, batches=batches(name)[: self.batches], servers=servers,
            bytes_per_second=setting.bits_per_second / 8,
        )  # fmt: skip
        line: dict[str, Any] = {"network": name, "setting": setting.name}
        try:
            recorded = started.do(task)[:WORKERS]
            line |= {
                "rows": with_readings(recorded, started.readings),
                "trace": [r["error_of_trace"] for r in recorded],
            }
        except Broken as broken:
            line["error"] = str(broken)
            raise
        finally:
            line |= {
                "plan": setting.plan, "mbit": setting.mbit, "servers": servers, "joined": started.joined,
                "device": self.device, "date": datetime.now(UTC).isoformat(timespec="seconds"), **software(),
                "cores": len(self.cores),
            }  # fmt: skip
            started.readings.clear()
            with (self.state / "raw.jsonl").open("a") as file:
                file.write(as_lines([line]))
        self.say(f"{setting.name} {name}: {time.monotonic() - began:.1f} s, {line['trace']}")


def with_readings(recorded: Sequence[Mapping[str, Any]], readings: Sequence[Reading]) -> list[dict[str, Any]]:
    """A row of every batch: what each worker recorded, and the counters from just before it to just after."""
    rows = []
    for own in zip(*(r["rows"] for r in recorded), strict=True):
        begin, end = min(r["begin"] for r in own) - MARGIN, max(r["ends"][-1] for r in own) + MARGIN
        first, last = bisect_left(readings, [begin]), bisect_right(readings, [end])
        zero = readings[first] if first < last else []
        seen = [[a - b for a, b in zip(reading, zero, strict=True)] for reading in readings[first:last]]
        rows.append({"workers": own, "zero": zero[:1], "readings": seen, **device_of(own)})
    return rows


def device_of(workers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """When the device ran anybody's kernels: nanoseconds in all, and of every millisecond from the first step on."""
    spans = [one.pop("busy", None) for one in workers]
    if None in spans:
        return {}
    begin, end = min(one["begin"] for one in workers), max(one["ends"][-1] for one in workers)
    for one, span in zip(workers, spans, strict=True):
        one["active_ns"] = sum(length for _, length in span)
    offsets = [one["begin"] - begin for one in workers]
    shifted = [(at + o, at + o + n) for o, span in zip(offsets, spans, strict=True) for at, n in span]
    busy = merged([(a, min(b, end - begin)) for a, b in shifted])
    used = {"active_ns": sum(n for _, n in busy), "busy_us": binned(busy, end - begin)}
    return {"device": {"begin": begin, "end": end, **used}}


def binned(busy: Intervals, length: int) -> list[int]:
    """Microseconds in use of each bin."""
    bins = [0] * -(-length // BIN)
    for at, span in busy:
        while span > 0:
            here = min(span, BIN - at % BIN)
            bins[at // BIN] += here
            at, span = at + here, span - here
    return [round(n / 1e3) for n in bins]
