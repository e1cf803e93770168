"""How long a forecast takes from a captured graph, on one core: new to the model, and with its ops priced before.

    python bench/scripts/speed.py

CPU time, best of five; libraries and the model are loaded. Graphs are captured first, which is not counted.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2] / "src")]

from foretell import forecast
from foretell.capture import capture
from foretell.cost.model import CostModel, load_model

GRAPHS = {
    "ResNet-50": ("torchvision/resnet50", {"batch": "64"}),
    "Llama 8 B": ("hf/llama-3-8b", {"batch": "1", "seq": "2048", "precision": "bf16"}),
}


def best(model: Callable[[], CostModel], graph: object) -> float:
    taken = []
    for _ in range(5):
        asked = model()
        began = time.process_time()
        forecast(graph, on="h200", model=asked)  # type: ignore[arg-type]
        taken.append(time.process_time() - began)
    return min(taken)


def main() -> None:
    model = load_model()
    for name, (source, settings) in GRAPHS.items():
        graph = capture(source, settings)
        forecast(graph, on="h200")
        # A copy of the model remembers nothing, and has its trees loaded.
        fresh, known = best(lambda: dataclasses.replace(model), graph), best(lambda: model, graph)
        print(f"{name}: {len(graph.ops):,} ops; new {fresh * 1e3:.0f} ms, known {known * 1e3:.0f} ms")


if __name__ == "__main__":
    main()
