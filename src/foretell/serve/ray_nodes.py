"""What a Ray cluster has, asked for by a process of its own: no process of the service has Ray in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from multiprocessing.connection import Connection
from typing import Any, Final

from foretell.errors import InputError
from foretell.ray_process import START, RayProcess, connect

_TYPE: Final = "accelerator_type:"  # how Ray names what the GPUs of a node are


def ask(address: str) -> list[dict[str, Any]]:
    """Kinds of things with how many there are and how many are free."""
    process = RayProcess("foretell.serve.ray_nodes:serve")
    try:
        process.link.send(address)
        if not process.link.poll(START):
            raise TimeoutError(f"the Ray cluster at {address} does not answer")
        reply: list[dict[str, Any]] | str = process.link.recv()
    finally:
        process.close()
    if isinstance(reply, str):
        raise InputError(reply)
    return reply


def serve(link: Connection) -> None:
    """In the process that Ray runs in."""
    try:
        ray = connect(link.recv())
    except InputError as error:
        link.send(str(error))
        return
    link.send(counted(ray.nodes(), ray.available_resources()))
    ray.shutdown()


def counted(nodes: Iterable[Mapping[str, Any]], free: Mapping[str, float]) -> list[dict[str, Any]]:
    """Cores of all nodes that live, and their GPUs by what they are. What is free Ray says of all GPUs together."""
    alive = [node["Resources"] for node in nodes if node["Alive"]]
    cores = int(sum(has.get("CPU", 0) for has in alive))
    memory = int(sum(has.get("memory", 0) for has in alive))
    found = [{"name": "cpu cores", "count": cores, "free": int(free.get("CPU", 0)), "memory_bytes": memory}]
    gpus: dict[str, int] = {}
    for has in alive:
        if has.get("GPU"):
            kind = next((name.removeprefix(_TYPE) for name in has if name.startswith(_TYPE)), "GPU")
            gpus[kind] = gpus.get(kind, 0) + int(has["GPU"])
    left = int(free.get("GPU", 0))
    for kind, count in gpus.items():
        found.append({"name": kind, "count": count, "free": min(count, left)})
        left -= min(count, left)
    return found
