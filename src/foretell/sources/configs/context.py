"""How ranks that share a sequence meet its other parts, under the words that trainers have for it."""

from __future__ import annotations

from typing import Any

from foretell.sources.configs.keys import Keys
from foretell.units import whole_number


def megatron_context(keys: Keys) -> dict[str, Any]:
    """`--context-parallel-size` with `--cp-comm-type`, and Megatron-DeepSpeed's Ulysses."""
    cp, ulysses = keys.count("context_parallel_size", 1), keys.count("ds_sequence_parallel_size", 1)
    given = keys.take("cp_comm_type", "p2p")
    words = [str(word) for word in given] if isinstance(given, list | tuple) else str(given).split()
    sizes = keys.take("hierarchical_context_parallel_sizes")
    if len(set(words)) > 1:
        keys.say("cp_comm_type", f"{' '.join(words)}: all layers are taken to be as the first")
    if ulysses > 1:
        return {"cp": ulysses, "ulysses": ulysses}
    if cp == 1:
        return {"cp": 1}
    word = words[0] if words else "p2p"
    if word == "a2a":
        return {"cp": cp, "ulysses": cp}
    if word in ("all_gather", "allgather"):
        return {"cp": cp, "cp_gather": True}
    if word == "a2a+p2p":
        listed = [str(size) for size in sizes] if isinstance(sizes, list | tuple) else str(sizes or "").split()
        first = whole_number(listed[0]) if listed else None
        if first is None or cp % max(first, 1):
            raise keys.wrong(
                "hierarchical_context_parallel_sizes", sizes, f"two numbers whose product is {cp}, like 2 {cp // 2}"
            )
        return {"cp": cp, "ulysses": first}
    if word != "p2p":
        raise keys.wrong("cp_comm_type", word, "one of p2p, a2a, all_gather, a2a+p2p")
    return {"cp": cp}


def torch_context(keys: Keys, rotation: str, cp: int) -> dict[str, Any]:
    """torch's context parallelism gathers keys unless it is told to pass them on (`alltoall`)."""
    gathers = keys.chosen(rotation, {"allgather": True, "alltoall": False, "addtoall": False}, "allgather")
    return {"cp_gather": True} if gathers and cp > 1 else {}
