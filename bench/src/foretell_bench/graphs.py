"""What ran, as a model at a batch and a length, and its graph: captured at two sizes and continued to others."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from foretell.graph import Graph

Say = Callable[[str], None]  # progress, for a person

_LENGTHS: Final = (512, 1024)  # at which a model that is asked for at many lengths is captured
_KEPT: Final = 12  # graphs that a process keeps: rows are asked in the order of their models


def quiet(text: str) -> None:
    """Says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Model:
    """A SOURCE, or the text of a Hugging Face configuration, with settings; batch is one replica's micro-batch."""

    source: str
    settings: tuple[tuple[str, str], ...] = ()
    batch: int
    length: int | None = None  # continued from shorter ones; None where the settings say it
    sizes: tuple[int, int] = (2, 4)  # batches that are captured; one of a single sample takes short cuts

    @property
    def key(self) -> str:
        return json.dumps([self.source, self.settings, self.batch, self.length])

    def captures(self) -> list[tuple[str, dict[str, str]]]:
        """The sources and settings that its graph is made of."""
        lengths = [{}] if self.length is None else [{"seq": str(length)} for length in _LENGTHS]
        return [
            (self.source, {**dict(self.settings), **length, "batch": str(size)})
            for length in lengths
            for size in self.sizes
        ]


def named(source: str, settings: Mapping[str, str], batch: int, *, sizes: tuple[int, int] = (8, 16)) -> Model:
    return Model(source=source, settings=tuple(sorted(settings.items())), batch=batch, sizes=sizes)


def configured(
    config: Mapping[str, Any], settings: Mapping[str, str], batch: int, *, length: int | None = None
) -> Model:
    text = json.dumps(dict(config), sort_keys=True)
    return Model(source=text, settings=tuple(sorted(settings.items())), batch=batch, length=length)


@lru_cache(maxsize=_KEPT)
def graph_of(model: Model) -> Graph:
    """By batch at each length that is captured, then by length."""
    from foretell.graph.rescale import extend

    found = [_captured_once(source, tuple(settings.items())) for source, settings in model.captures()]
    by_batch = [_continued(model, pair) for pair in zip(found[::2], found[1::2], strict=True)]
    if model.length is None:
        return by_batch[0]
    return extend(by_batch[0], by_batch[1], sizes=_LENGTHS, to=model.length)


def _continued(model: Model, pair: tuple[Graph, Graph]) -> Graph:
    from foretell.graph.rescale import extend, same_path

    if model.batch in model.sizes:
        return pair[model.sizes.index(model.batch)]
    if model.length is None and not same_path(*pair):
        return captured(model.source, {**dict(model.settings), "batch": str(model.batch)})
    return extend(*pair, sizes=model.sizes, to=model.batch)


@lru_cache(maxsize=4)
def _captured_once(source: str, settings: tuple[tuple[str, str], ...]) -> Graph:
    """What all batches and lengths of a model are continued from."""
    return captured(source, dict(settings))


def captured(source: str, settings: Mapping[str, str]) -> Graph:
    """As `capture` does, but by a fork of this process: libraries load once, not for each of a hundred captures."""
    from foretell.capture import cache, capture
    from foretell.sources.resolve import load_workload

    if source.startswith("{"):
        source = _config_file(source)
    key = cache.key(source, settings)
    if (known := cache.get(key)) is not None:
        return known
    graph = capture(load_workload(source, settings))
    cache.put(key, graph, read={})
    return graph


def _config_file(text: str) -> str:
    from foretell.capture.cache import folder

    path = folder() / "configurations" / hashlib.sha256(text.encode()).hexdigest()[:12] / "config.json"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(path)
