"""Measured steps as questions to Foretell: the graph of a configuration, and some of many rows."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import islice, zip_longest
from typing import Any

from foretell.graph import Graph
from foretell_bench.sources.rows import Row, Say

_TWO_BATCHES = (2, 4)  # a batch of one takes short cuts


class Models:
    """Graphs of language models by their Hugging Face configuration, captured at two batches and extended to others."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._captured: dict[str, tuple[Graph, Graph]] = {}

    def graph(self, config: Mapping[str, Any], settings: Mapping[str, str], batch: int) -> Graph:
        from foretell.graph.rescale import extend

        key = json.dumps([dict(config), dict(settings)], sort_keys=True)
        if key not in self._captured:
            self._captured[key] = self._capture(config, settings)
        return extend(*self._captured[key], sizes=_TWO_BATCHES, to=batch)

    def _capture(self, config: Mapping[str, Any], settings: Mapping[str, str]) -> tuple[Graph, Graph]:
        from foretell.capture.cache import folder

        text = json.dumps(dict(config), sort_keys=True)
        path = folder() / "configurations" / hashlib.sha256(text.encode()).hexdigest()[:12] / "config.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        graphs = []
        for batch in _TWO_BATCHES:
            self._say(f"capturing a {config['model_type']} at batch {batch}")
            graphs.append(_captured(str(path), {**settings, "batch": str(batch)}))
        return graphs[0], graphs[1]


def _captured(source: str, settings: Mapping[str, str]) -> Graph:
    """As `capture` does, but by a fork of this process: libraries load once, not for each of a hundred captures."""
    from foretell.capture import cache, capture
    from foretell.sources.files import load_workload

    key = cache.key(source, settings)
    if (known := cache.get(key)) is not None:
        return known
    graph = capture(load_workload(source, settings))
    cache.put(key, graph, read=())
    return graph


def sample(rows: Sequence[Row], most: int, by: Sequence[str]) -> list[Row]:
    """Some of many rows, as many of each kind where there are enough; it does not hang on their order."""
    kinds: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: hashlib.sha256(json.dumps(row).encode()).digest()):
        kinds[tuple(row[column] for column in by)].append(row)
    turns = zip_longest(*kinds.values())
    return list(islice((row for turn in turns for row in turn if row is not None), most))
