"""`megatron_memory`: peak allocated memory of Megatron-LM's own test runs, through the reader of Megatron's arguments.

Columns of a row that are arguments go to the reader as they are; the rank that reports its memory is the last one.
A run is named after the arguments it tests. Those that have no column are taken from its name, with the values of the
public recipe of that name.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from foretell.errors import InputError
from foretell.sources.configs import Configuration, read_configuration
from foretell.store.importers import LeftOut, Row, Selection, formats, public_rows, take
from foretell_bench.graphs import configured
from foretell_bench.sources.question import Ask, Measure, Question, nodes_of

SOURCE: Final = "megatron_memory"
MEASURES: Final = (
    Measure(name="peak allocated, median error", of="allocated", statistic="median", bar=0.03),
    Measure(name="peak allocated, mean error", of="allocated", statistic="mean", bar=0.07),
)
_DEVICES: Final = {"a100": "a100-80g-sxm", "h100": "h100-sxm", "gb200": "gb200"}
_OF_THE_RUN: Final = frozenset(
    """
    date commit model_family test_case device environment nodes gpus_per_node world_source step_seconds step_seconds_min
    step_seconds_p90 steps allocated_bytes peak_allocated_bytes test_type at_head
    """.split()
)
_SCRIPTS: Final = {
    "gpt": "pretrain_gpt.py",
    "moe": "pretrain_gpt.py",
    "bert": "pretrain_bert.py",
    "t5": "pretrain_t5.py",
}
_BY_NAME: Final[Mapping[str, Mapping[str, Any]]] = {
    "cross_entropy_loss_fusion": {"cross_entropy_loss_fusion": True},
    "defer_embedding_wgrad_compute": {"defer_embedding_wgrad_compute": True, "wgrad_deferral_limit": 2},
    "multi_dist_optimizer_instances": {"num_distributed_optimizer_instances": 2},
    "qk_layernorm": {"qk_layernorm": True},
    "uneven_pipeline": {"decoder_first_pipeline_num_layers": 2, "decoder_last_pipeline_num_layers": 2},
    "gdn": {"experimental_attention_variant": "gated_delta_net"},
}


def questions(data: Path) -> Selection[Question]:
    return take(public_rows(data, SOURCE), _question)


def _question(row: Row) -> Question:
    if row["world_source"] != "recipe_at_HEAD":
        raise LeftOut("whose number of devices is not known")
    if not row["peak_allocated_bytes"]:
        raise LeftOut("without a peak")
    if row["model_family"] not in _SCRIPTS:
        raise LeftOut(f"of {row['model_family']}, which has no training script of its own")
    found = _read(row)
    assert isinstance(found.model, Mapping)
    try:
        plan = found.template().plan_for(row["nodes"] * row["gpus_per_node"], row["nodes"])
    except InputError as error:
        raise LeftOut(f"whose plan is not possible: {type(error).__name__}") from None
    settings = {name: str(value) for name, value in found.settings.items() if name != "batch"}
    return Question(
        ask=Ask(
            model=configured(found.model, settings, row["micro_batch"]), plan=plan,
            cluster=nodes_of(_DEVICES[row["device"]], [row["gpus_per_node"]] * row["nodes"]),
        ),
        domain=SOURCE, part=row["test_case"], allocated=row["peak_allocated_bytes"], reports=-1,
    )  # fmt: skip


def _read(row: Row) -> Configuration:
    try:
        found = read_configuration(arguments_of(row), Path("arguments.yaml"))
    except InputError as error:
        raise LeftOut(f"that the reader refuses: {error}") from None
    if notes := [caveat.text for caveat in found.caveats]:
        raise LeftOut(f"with what is not modelled: {'; '.join(notes)}")
    return found


def arguments_of(row: Row) -> dict[str, Any]:
    """Megatron's arguments, by their own names, and the script they are for."""
    given = {c.theirs: row[c.ours] for c in formats()[SOURCE].columns if c.ours not in _OF_THE_RUN}
    known = {name: value for name, value in given.items() if value is not None}
    for word, arguments in _BY_NAME.items():
        if word in row["test_case"]:
            known |= arguments
    return known | {"script": _SCRIPTS[row["model_family"]]}
