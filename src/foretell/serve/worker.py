"""A process that reads graphs and prices questions. What it is given and what it says are JSON and bytes, no objects.

A message is a line of JSON, then bytes: a graph's file on the way in, an answer on the way out.
"""

from __future__ import annotations

import functools
import json
from collections import OrderedDict
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from foretell.errors import ForetellError
from foretell.folders import Stamps, stamps
from foretell.hardware.of_a_team import laid_out, taken
from foretell.text import plain
from foretell.units import Bytes

if TYPE_CHECKING:
    from foretell.forecasting.result import Forecast
    from foretell.graph import Graph
    from foretell.methods import Method

MEMORY: Final[Bytes] = 4 * 2**30  # that a worker may allocate
KEPT: Final = 8  # graphs that a worker remembers, with what was computed of them
_FITTED: Final = 8  # methods that it remembers
MISSING: Final = "missing"  # the graph is not here: send it along
CHANGED: Final = "changed"  # what the answer rests on is not what the question was named by


class _GraphMissing(Exception):
    """It is not at hand and was not sent along."""


class _Changed(Exception):
    """A profile, the catalog or the engine is another here and now."""


def pack(head: dict[str, Any], body: bytes = b"") -> bytes:
    return json.dumps(head).encode() + b"\n" + body


def unpack(message: bytes) -> tuple[dict[str, Any], bytes]:
    head, _, body = message.partition(b"\n")
    return json.loads(head), body


def serve(link: Connection) -> None:
    """Answer until nobody asks any more."""
    from foretell.cost.model import load_model
    from foretell.forecasting.forecast import forecast  # noqa: F401  (loaded before the first question)

    load_model()
    link.send_bytes(b"ready")
    bench = Bench()
    while True:
        try:
            head, body = unpack(link.recv_bytes())
        except EOFError:
            return
        link.send_bytes(answer(bench, head, body))


def answer(bench: Bench, head: dict[str, Any], body: bytes) -> bytes:
    try:
        do = {
            "read": bench.read, "embed": bench.embed, "forecast": bench.forecast, "draw": bench.draw,
            "predict": bench.predict,
        }[head["do"]]  # fmt: skip
        with taken(laid_out(head.get("devices", {}))):
            return do(head, body)
    except _GraphMissing:
        return pack({MISSING: True})
    except _Changed:
        return pack({CHANGED: True})
    except ForetellError as error:
        return pack({"error": type(error).__name__, "text": str(error)})
    except MemoryError:
        return pack({"error": "GraphFileError", "text": "the graph takes more memory than a question may have."})


def about(graph: Graph) -> dict[str, Any]:
    """What is kept with a graph's file."""
    return {
        "hash": graph.content_hash,
        "name": plain(graph.name),
        "ops": len(graph.ops),
        "training": graph.training,
        "precision": graph.precision.arithmetic,
    }


class Bench:
    """The graphs that lie ready."""

    def __init__(self) -> None:
        self._graphs: OrderedDict[str, Graph] = OrderedDict()

    def read(self, head: dict[str, Any], data: bytes) -> bytes:
        """What a graph's file is about; everything in it is checked by the one reader of the format."""
        from foretell.graph import Graph

        graph = Graph.from_bytes(data, "the graph that was sent")
        self._keep(graph.content_hash, graph)
        return pack(about(graph))

    def forecast(self, head: dict[str, Any], data: bytes) -> bytes:
        answer = self._priced(head, data)
        facts = {name: getattr(answer, name) for name in ("cluster", "plan", "model")}
        facts["workload"] = plain(answer.workload)
        facts |= {"seconds": answer.step_time.seconds, "fits": answer.memory.fits}
        return pack(facts, answer.to_json().encode())

    def draw(self, head: dict[str, Any], data: bytes) -> bytes:
        """A forecast's report, or a part of its timeline, as HTML."""
        from foretell.report.html import chapter, timeline_part
        from foretell.report.timeline import Window, Zoom

        answer = self._priced(head, data)
        begin, end = head["window"]
        page = f"/forecasts/{head['id']}"
        zoom = Zoom(page=page, part=f"{page}/timeline", window=Window(begin=begin, end=end))
        drawn = chapter(answer, zoom) if head["whole"] else timeline_part(answer, zoom)
        return pack({}, plain(drawn).encode())

    def _priced(self, head: dict[str, Any], data: bytes) -> Forecast:
        from foretell.forecasting.forecast import forecast
        from foretell.serve.requests import ForecastRequest

        question = ForecastRequest.model_validate(head["question"])
        graph = self._graph(question.graph, data)
        profile = Path(head["profile"]) if head["profile"] else None
        found = forecast(graph, **question.arguments(profile))
        if question.key(profile) != head["key"]:
            raise _Changed
        return found

    def predict(self, head: dict[str, Any], data: bytes) -> bytes:
        """What a fitted method says of a step."""
        from foretell.methods import query_of
        from foretell.serve.requests import PredictionRequest, cluster_of

        question = PredictionRequest.model_validate(head["question"])
        graph = self._graph(question.graph, data)
        fitted = _fitted(head["folder"], stamps(head["folder"]))
        [found] = fitted.predict([query_of(graph, cluster_of(question.on), question.plan)])
        numbers = {name: {k: float(v) for k, v in getattr(found, name).items()} for name in ("values", "low", "high")}
        return pack(numbers | {"why": plain(found.why)})

    def embed(self, head: dict[str, Any], data: bytes) -> bytes:
        """PredictDDL's embedding of a network."""
        from foretell.graph import Graph
        from foretell.methods.predictddl.method import Embedder

        vector = Embedder().embed([Graph.from_bytes(data, "the graph")])[0]
        return pack({"vector": [float(x) for x in vector]})

    def _graph(self, name: str, data: bytes) -> Graph:
        """The one at hand, or that was sent along."""
        from foretell.graph import Graph

        graph = self._graphs.get(name)
        if graph is None and not data:
            raise _GraphMissing
        if graph is None:
            graph = Graph.from_bytes(data, "the graph")
        self._keep(name, graph)
        return graph

    def _keep(self, name: str, graph: Graph) -> None:
        self._graphs[name] = graph
        self._graphs.move_to_end(name)
        if len(self._graphs) > KEPT:
            self._graphs.popitem(last=False)


@functools.lru_cache(maxsize=_FITTED)
def _fitted(folder: str, files: Stamps) -> Method:
    """A fitted method, read again once its files have changed."""
    from foretell.methods import load

    return load(folder)
