"""Whether the service's memory stays bounded.

Clients ask all the time, each in its way: for what is known, for new questions about many graphs on many clusters by many
plans, for pages, for graphs that are malformed, and for long work. Every ten seconds the memory of all processes of the
service is read: the second half of the soak may take little more than the first.
"""

from __future__ import annotations

import asyncio
import io
import itertools
import json
import random
import statistics
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import httpx
import psutil

from foretell_bench.checkout import ROOT
from foretell_bench.speed.service_load import mebibytes, save, service

BASES: Final = ROOT / "tests" / "fuzz" / "bases"
CLUSTERS: Final = [f"{n}x8x{device}" for n in (1, 2, 4) for device in ("h100-sxm", "h200", "a100-80g-sxm", "l40s")]
PLANS: Final = ("", "dp={n}", "dp={n},zero=1", "dp={n},zero=3", "tp=2,dp={half}", "dp={n},zero=2")
PAGES: Final = (
    "/",
    "/planner",
    "/history",
    "/devices?compare=h200&compare=l40s",
    "/accuracy",
    "/metrics",
    "/v1/forecasts",
)
EVERY: Final = 10.0  # seconds between two looks
GROWTH: Final = 1.10  # of the second half's median against the first's


def run(minutes: float = 10.0, workers: int = 2, save_to: Path | None = None) -> None:
    with service(workers) as (process, address):
        found, mebibytes_seen = asyncio.run(soak(address, process.pid, 60 * minutes))
    first, second = (statistics.median(half) for half in halves(mebibytes_seen))
    found |= {"MiB, first half": first, "MiB, second half": second, "bounded": second <= GROWTH * first}
    print(json.dumps(found, indent=2))
    if save_to:
        save(save_to, "soak", found)
    if not found["bounded"] or found["answers 5xx"]:
        raise SystemExit("memory grew, or a request failed")


def halves(values: list[int]) -> tuple[list[int], list[int]]:
    """Without the first fifth, in which caches fill."""
    settled = values[len(values) // 5 :]
    return settled[: len(settled) // 2] or values, settled[len(settled) // 2 :]


async def soak(address: str, pid: int, seconds: float) -> tuple[dict[str, object], list[int]]:
    statuses: Counter[tuple[str, int]] = Counter()
    seen: list[int] = []
    ends = time.monotonic() + seconds
    async with httpx.AsyncClient(base_url=address, timeout=120, follow_redirects=True) as http:
        graphs = [await sent(http, data) for data in files()]
        ways = (known, new, new, pages, malformed, long_work)
        asking = [one(http, way, graphs, random.Random(n), ends, statuses) for n, way in enumerate(ways)]
        await asyncio.gather(look(pid, ends, seen), *asking)
    failed = sum(n for (_, status), n in statuses.items() if status >= 500)
    answers = {f"{way}: {status}": n for (way, status), n in sorted(statuses.items())}
    return {
        "minutes": round(seconds / 60, 1), "requests": statuses.total(), "answers 5xx": failed, "answers": answers,
        "MiB every 10 s": seen,
    }, seen  # fmt: skip


Request = tuple[str, str, dict[str, object]]  # method, address, and what httpx sends
Way = Callable[[list[str], random.Random], Iterator[Request]]


async def one(
    http: httpx.AsyncClient,
    way: Way,
    graphs: list[str],
    rng: random.Random,
    ends: float,
    statuses: Counter[tuple[str, int]],
) -> None:
    for method, where, what in way(graphs, rng):
        if time.monotonic() > ends:
            return
        answer = await http.request(method, where, **what)  # type: ignore[arg-type]
        statuses[way.__name__, answer.status_code] += 1
        if answer.status_code in (429, 503):
            await asyncio.sleep(1)


async def look(pid: int, ends: float, seen: list[int]) -> None:
    while time.monotonic() < ends:
        seen.append(mebibytes(psutil.Process(pid)))
        await asyncio.sleep(EVERY)


def files() -> Iterator[bytes]:
    """More graphs than a worker remembers: each base in a few widths would be a capture, so the samples of one differ."""
    for path in sorted(BASES.glob("*.graph")):
        for samples in (1, 2, 3):
            yield changed(path.read_bytes(), samples=samples)


def changed(graph: bytes, **fields: object) -> bytes:
    """The same file with another header."""
    new = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(graph)) as old, zipfile.ZipFile(new, "w") as made:
        for member in old.namelist():
            data = old.read(member)
            made.writestr(member, json.dumps(json.loads(data) | fields) if member == "header.json" else data)
    return new.getvalue()


async def sent(http: httpx.AsyncClient, data: bytes) -> str:
    answer = await http.post("/v1/graphs", content=data)
    return str(answer.raise_for_status().json()["hash"])


def question(graph: str, rng: random.Random) -> dict[str, object]:
    on = rng.choice(CLUSTERS)
    devices = 8 * int(on.partition("x")[0])
    plan = rng.choice(PLANS).format(n=devices, half=devices // 2)
    return {"graph": graph, "on": on, **({"plan": plan} if plan else {})}


def known(graphs: list[str], rng: random.Random) -> Iterator[Request]:
    while True:
        yield "POST", "/v1/forecasts", {"json": {"graph": graphs[0], "on": "8xh100-sxm"}}


def new(graphs: list[str], rng: random.Random) -> Iterator[Request]:
    while True:
        conditions = {"jitter": 1e-3 + 1e-2 * rng.random()}
        yield "POST", "/v1/forecasts", {"json": question(rng.choice(graphs), rng) | {"conditions": conditions}}


def pages(graphs: list[str], rng: random.Random) -> Iterator[Request]:
    for place in itertools.cycle(PAGES):
        yield "GET", place, {}
        if place == "/history":  # a new report, drawn anew
            yield "GET", "/ask", {"params": question(rng.choice(graphs), rng)}


def malformed(graphs: list[str], rng: random.Random) -> Iterator[Request]:
    whole = [path.read_bytes() for path in sorted(BASES.glob("*.graph"))]
    while True:
        data = bytearray(rng.choice(whole))
        for _ in range(rng.randint(1, 20)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        yield "POST", "/v1/graphs", {"content": bytes(data[: rng.randint(1, len(data))])}


def long_work(graphs: list[str], rng: random.Random) -> Iterator[Request]:
    """Jobs; while they wait, their states."""
    while True:
        yield "POST", "/v1/scales", {"json": {"graph": rng.choice(graphs), "on": "h200", "up_to": 4}}
        for _ in range(200):
            yield "GET", "/v1/jobs", {}
