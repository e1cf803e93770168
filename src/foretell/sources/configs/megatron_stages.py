"""Layers of each pipeline stage, as Megatron deals them: evenly to the chunks of all ranks, or as its arguments say."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from foretell.errors import SourceError
from foretell.sources.configs.keys import Keys

LAYOUT: Final = "pipeline_model_parallel_layout"
_LONGEST: Final = 100_000  # characters of a layout that is written out
_LAYERS: Final = ("t", "m", "decoder", "mtp")


def stages(keys: Keys, layers: int, pp: int) -> dict[str, Any]:
    """Settings of the plan: blocks of each stage, chunks per rank, and the schedule."""
    cut, chunks = _cut(keys, layers, pp)
    made: dict[str, Any] = {"stages": cut}
    if keys.flag("enable_zbh1_pipeline") or keys.flag("enable_zero_bubble"):
        made["schedule"] = "zero-bubble"
    if chunks > 1:
        made.update(virtual_stages=chunks, schedule="interleaved")
    return made


def _cut(keys: Keys, layers: int, pp: int) -> tuple[list[int], int]:
    first, last = keys.count("decoder_first_pipeline_num_layers"), keys.count("decoder_last_pipeline_num_layers")
    ends = (
        keys.flag("account_for_embedding_in_pipeline_split"),
        keys.flag("account_for_loss_in_pipeline_split"),
    )
    alone = keys.flag("standalone_embedding_stage")
    chunks = _chunks(keys, layers + sum(ends), pp - alone)
    if layout := keys.take(LAYOUT):
        return _laid_out(keys, layout, pp)
    if alone and chunks > 1:
        keys.say(
            "standalone_embedding_stage", "with several chunks per rank: the embedding is taken to lie with layers"
        )
        alone = False
    if alone:
        each, rest = divmod(layers, max(pp - 1, 1))
        found = [] if rest else [0, *[each] * (pp - 1)]
    elif any(ends):  # the embedding and the loss count as a layer each
        each, rest = divmod(layers + sum(ends), pp * chunks)
        found = [] if rest else [each - ends[0], *[each] * (pp * chunks - 2), each - ends[1]]
    else:
        found = _by_ranks(layers, pp, chunks, first, last)
    if not found:
        raise SourceError(
            f"{keys.file} has {layers} layers, which do not divide into {pp} × {chunks} = {pp * chunks} stages. Give "
            "--decoder-first-pipeline-num-layers or --decoder-last-pipeline-num-layers as Megatron asks for."
        )
    return found, chunks


def _chunks(keys: Keys, layers: int, pp: int) -> int:
    """Of each rank: given as such, or by the layers that each has."""
    each = keys.count("num_layers_per_virtual_pipeline_stage")
    per_rank = keys.count("num_virtual_stages_per_pipeline_rank", 1)
    chunks = keys.count("virtual_pipeline_model_parallel_size", per_rank)
    return max(layers // max(pp, 1) // each, 1) if each else chunks


def _by_ranks(layers: int, pp: int, chunks: int, first: int | None, last: int | None) -> list[int]:
    """Layers of each chunk, where the first rank or the last has another number; empty where they do not divide."""
    middle = pp - (first is not None) - (last is not None)
    each, rest = divmod(layers - (first or 0) - (last or 0), middle) if middle else (0, 0)
    ranks = [*([first] if first is not None else []), *[each] * middle, *([last] if last is not None else [])]
    if rest or any(own % chunks for own in ranks):
        return []
    return [own // chunks for own in ranks] * chunks


def _laid_out(keys: Keys, layout: Any, pp: int) -> tuple[list[int], int]:
    """A layout like `Ettt|(tt|)*29,m|L`, or its list: chunks in the order in which they run."""
    parts: Sequence[Any] = _written_out(keys, layout) if isinstance(layout, str) else layout
    found = [sum(str(layer).strip().lower() in _LAYERS for layer in part) for part in parts]
    if not found or len(found) % pp:
        raise keys.wrong(LAYOUT, layout, f"stages between |, as many as a multiple of the {pp} pipeline ranks")
    return found, len(found) // pp


def _written_out(keys: Keys, layout: str) -> list[str]:
    text = layout.strip("\"'").replace(",", "").replace(" ", "")
    for repeated in (r"\(([^()]+)\)\*(\d{1,4})", r"(\w)\*(\d{1,4})"):
        text = re.sub(repeated, lambda m: m[1] * min(int(m[2]), _LONGEST // len(m[1])), text[:_LONGEST])
    if set(text) - set("EtmL|"):
        raise keys.wrong(LAYOUT, layout, "E, t, m, L and |, with repetitions like (tt|)*29")
    return text.split("|")
