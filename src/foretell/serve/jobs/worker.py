"""A process that does one job: it says how far it is, then its result."""

from __future__ import annotations

from multiprocessing.connection import Connection

from foretell.errors import ForetellError
from foretell.graph import Graph
from foretell.serve.jobs.kinds import made
from foretell.serve.worker import pack, unpack


def serve(link: Connection) -> None:
    head, data = unpack(link.recv_bytes())
    try:
        graph = Graph.from_bytes(data, "the graph")
        result = made(head["kind"], head["question"]).do(graph, lambda text: link.send_bytes(pack({"message": text})))
        link.send_bytes(pack({"done": True}, result.encode()))
    except ForetellError as error:
        link.send_bytes(pack({"error": str(error)}))
