"""Which measured architectures nothing is fitted on: of each family a third, by a hash of their names; drawn before any fit."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from typing import Any, Final

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


def drawn(rows: Iterable[dict[str, Any]]) -> frozenset[str]:
    """The draw itself, over what is measured: the list above is what it gave, and stays when more is measured."""
    families: dict[str, set[str]] = {}
    for row in rows:
        families.setdefault(row["family"], set()).add(row["source"])
    return frozenset(
        source for members in families.values() for source in sorted(members, key=_hash)[: round(len(members) / 3)]
    )


def is_blind(row: dict[str, Any]) -> bool:
    return row["source"] in BLIND


def _hash(source: str) -> str:
    return sha256(source.encode()).hexdigest()
