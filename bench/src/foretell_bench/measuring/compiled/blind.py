"""Which measured networks nothing is fitted on, drawn before any of them was looked at.

Of the first campaign a third of each family; of architectures measured later a quarter, by a hash of their names; of
generated and hand-written networks those that are blind everywhere. What was measured last is blind as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from typing import Any, Final

from foretell.design import blind as everywhere
from foretell.sources.former_names import stored_source
from foretell_bench.measuring.compiled.points import LATER
from foretell_bench.measuring.h200.kinds.points import family_of

BLIND: Final = frozenset(
    """
    hf/bert-base
    hf/mistral-7b
    hf/modernbert-base
    hf/patchtst-ett
    hf/siglip-base-patch16-224
    hf/stablelm-3b
    hf/wavlm-base
    timm/dpn68b
    timm/efficientvit_b1
    timm/eva02_small_patch14_224
    timm/regnety_032
    timm/starnet_s3
    torchvision/r3d_18
    torchvision/vgg16
    """.split()
)
_FITTED_BEFORE: Final = frozenset("hf/bloom-560m timm/vit_base_patch32_224 benchmarks/memory/workloads.py:moe".split())
_LATER: Final = 4  # one in so many


def drawn(rows: Iterable[dict[str, Any]]) -> frozenset[str]:
    """The draw itself, over what is measured: the list above is what it gave, and stays when more is measured."""
    families: dict[str, set[str]] = {}
    for row in rows:
        families.setdefault(row["family"], set()).add(row["source"])
    return frozenset(
        source for members in families.values() for source in sorted(members, key=_hash)[: round(len(members) / 3)]
    )


def is_blind(row: dict[str, Any]) -> bool:
    source = row["source"]
    if row.get("part") == LATER:
        return True
    if everywhere.is_generated(source) or family_of(source) is not None:
        return everywhere.is_blind(source)
    known = stored_source(source)
    return known in BLIND or (known not in _FITTED_BEFORE and int(_hash(known), 16) % _LATER == 0)


def _hash(source: str) -> str:
    return sha256(source.encode()).hexdigest()
