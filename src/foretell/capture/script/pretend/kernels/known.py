"""Kernels that are known, by their paths, with what runs instead."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from foretell.capture.script.pretend.kernels import apex, attention, fused, graphs, scans, xformers

PACKAGES: Final = frozenset(
    """apex causal_conv1d flash_attn flash_attn_interface fla inplace_abn liger_kernel mamba_ssm torch_cluster torch_scatter
    torch_sparse torch_spline_conv transformer_engine triton xformers nvdiffrast pytorch3d MinkowskiEngine spconv
    tinycudann kaolin""".split()
)
KNOWN: Final[Mapping[str, Any]] = {
    **apex.KNOWN, **attention.KNOWN, **fused.KNOWN, **graphs.KNOWN, **scans.KNOWN, **xformers.KNOWN,
}  # fmt: skip

# Liger has a function for each family of models, and more of them with every version.
_OF_FAMILIES: Final = re.compile(r"liger_kernel\.transformers\.(monkey_patch\.)?_?apply_liger_kernel\w*$")


def known(path: str) -> Any | None:
    """What runs instead of a kernel; None where it is not known."""
    if _OF_FAMILIES.match(path):
        return fused.patched
    return KNOWN.get(path)
