"""The service under load, beside a plain FastAPI app on the same machine.

GRAPH is a .graph file, such as `foretell inspect hf/llama-3-8b --set precision=bf16 --save llama.graph` writes. Sixteen
clients ask over connections that stay open: a plain app, the service for an answer that it has, and the service for answers
it has not, each of them another question. Memory is that of all processes of the service; `foretell bench speed soak` looks at it for long.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import psutil

HELLO: Final = """
import sys
import uvicorn
from fastapi import FastAPI

app = FastAPI()


@app.post("/")
async def hello() -> dict[str, str]:
    return {"hello": "world"}


uvicorn.run(app, port=int(sys.argv[1]), log_level="critical", access_log=False)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Who asks, for how long."""

    clients: int = 16
    seconds: float = 10.0


def run(graph: Path, on: str, plan: str, asking: Load, workers: int = 2, save_to: Path | None = None) -> None:
    found: dict[str, object] = {"load before": os.getloadavg()[0], "clients": asking.clients, "on": on, "plan": plan}
    with hello_world() as address:
        found["hello world"] = asyncio.run(load(address, "/", lambda: b"{}", asking))
    with service(workers) as (process, address):
        question = {"graph": send(address, graph.read_bytes()), "on": on, "plan": plan}
        found["MiB before"] = mebibytes(process)
        known = json.dumps(question).encode()
        found["cached"] = with_cpu(process, lambda: asyncio.run(load(address, "/v1/forecasts", lambda: known, asking)))
        numbers = count(1)

        def another() -> bytes:  # a jitter that nobody has asked about
            return json.dumps(question | {"conditions": {"jitter": 1e-3 + 1e-9 * next(numbers)}}).encode()

        found["uncached"] = with_cpu(process, lambda: asyncio.run(load(address, "/v1/forecasts", another, asking)))
        found["MiB after"] = mebibytes(process)
    print(json.dumps(found, indent=2))
    if save_to:
        save(save_to, "load", found)


def save(path: Path, part: str, found: Mapping[str, object]) -> None:
    """Beside the other parts of the file, with the command that made it."""
    command = " ".join(["foretell", *sys.argv[1:]])
    whole = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps(whole | {part: {"command": command, **found}}, indent=2) + "\n")


async def load(address: str, path: str, body: Callable[[], bytes], asking: Load) -> dict[str, float]:
    """Requests per second, and milliseconds that a share of them took at most."""
    warm = time.perf_counter() + 1.0  # every worker, not the first alone
    await asyncio.gather(*(client(address, path, body, warm) for _ in range(asking.clients)))
    began = time.perf_counter()
    ends = began + asking.seconds
    took = sorted(chain(*await asyncio.gather(*(client(address, path, body, ends) for _ in range(asking.clients)))))
    lasted = time.perf_counter() - began
    return {"requests": len(took), "per second": round(len(took) / lasted, 1)} | {
        f"p{share} ms": round(1e3 * took[min(len(took) * share // 100, len(took) - 1)], 2) for share in (50, 95, 99)
    }


async def client(address: str, path: str, body: Callable[[], bytes], ends: float) -> list[float]:
    """One connection that asks again as soon as it has an answer."""
    where = urlsplit(address)
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    took = []
    while (began := time.perf_counter()) < ends:
        data = body()
        head = f"POST {path} HTTP/1.1\r\nHost: {where.netloc}\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        answer = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = re.search(r"content-length: (\d+)", answer)
        assert length is not None
        text = await reader.readexactly(int(length[1]))
        if not answer.startswith("HTTP/1.1 200"):
            raise SystemExit(f"{answer}{text.decode()}")
        took.append(time.perf_counter() - began)
    writer.close()
    return took


@contextmanager
def hello_world() -> Iterator[str]:
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([sys.executable, "-c", HELLO, str(port)])
    try:
        for _ in range(300):
            with socket.socket() as trial:
                if trial.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


@contextmanager
def service(workers: int) -> Iterator[tuple[subprocess.Popen[str], str]]:
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/service.sqlite"
        command = [
            sys.executable,
            "-m",
            "foretell.cli",
            "serve",
            "--port",
            "0",
            "--workers",
            str(workers),
            "--database",
            url,
        ]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            address = re.search(r"http://\S+", process.stdout.readline())
            assert address is not None
            yield process, address[0]
        finally:
            process.terminate()
            process.wait(60)


def send(address: str, data: bytes) -> str:
    from foretell.graph import Graph
    from foretell.serve.client import Client

    with Client(address) as asks:
        return asks.send_graph(Graph.from_bytes(data))


def with_cpu(process: subprocess.Popen[str], ask: Callable[[], dict[str, float]]) -> dict[str, float]:
    """With the processors' time that the service took for each answer: it says the same on a busy machine."""
    before = processor_seconds(process)
    found = ask()
    return found | {"cpu ms of each": round(1e3 * (processor_seconds(process) - before) / max(found["requests"], 1), 2)}


def processor_seconds(process: subprocess.Popen[str]) -> float:
    whole = psutil.Process(process.pid)
    times = [each.cpu_times() for each in (whole, *whole.children(recursive=True))]
    return float(sum(time.user + time.system for time in times))


def mebibytes(process: subprocess.Popen[str] | psutil.Process) -> int:
    """What all processes of the service have in memory."""
    whole, total = psutil.Process(process.pid), 0
    for each in (whole, *whole.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):  # a job that has just ended
            total += each.memory_info().rss
    return total >> 20
