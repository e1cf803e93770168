"""How long a forecast takes from a captured graph, on one core: new to the model, and with its ops priced before.

CPU time, best of five; libraries and the model are loaded. Graphs are captured first, which is not counted.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Final

from foretell import Graph, capture_graph, forecast
from foretell.cost.model import CostModel, load_model

GRAPHS: Final = {
    "ResNet-50": ("torchvision/resnet50", {"batch": "64"}),
    "Llama 8 B": ("hf/llama-3-8b", {"batch": "1", "seq": "2048", "precision": "bf16"}),
}


def run() -> None:
    model = load_model()
    for name, (source, settings) in GRAPHS.items():
        graph = capture_graph(source, settings)
        forecast(graph, on="h200")
        # A copy of the model remembers nothing, and has its trees loaded.
        fresh, known = best(lambda: dataclasses.replace(model), graph), best(lambda: model, graph)
        print(f"{name}: {len(graph.ops):,} ops; new {fresh * 1e3:.0f} ms, known {known * 1e3:.0f} ms")


def best(model: Callable[[], CostModel], graph: Graph) -> float:
    seconds = []
    for _ in range(5):
        prices_by = model()
        began = time.process_time()
        forecast(graph, on="h200", model=prices_by)
        seconds.append(time.process_time() - began)
    return min(seconds)
