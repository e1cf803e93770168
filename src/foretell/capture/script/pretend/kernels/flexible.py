"""FlexAttention: one kernel whose scores are changed on their way."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from foretell.capture.as_gpu.patches import replace
from foretell.capture.opaque import run as run_declared
from foretell.declared import Opaque


def adapt(module: Any) -> None:
    """Price its products, in the blocks that its mask leaves."""

    def flops(query: Tensor, key: Tensor, value: Tensor, *rest: Any, block_mask: Any = None, **how: Any) -> float:
        pairs = query.numel() / query.shape[-1] * key.shape[-2]
        return 2.0 * pairs * (query.shape[-1] + value.shape[-1]) * _density(block_mask)

    def outputs(query: Tensor, key: Tensor, value: Tensor, *rest: Any, extra: int = 0, **how: Any) -> Any:
        out = query.new_empty(*query.shape[:-1], value.shape[-1])
        return (out, *[query.new_empty(query.shape[:-1], dtype=torch.float32) for _ in range(extra)])

    def attention(
        query: Tensor, key: Tensor, value: Tensor, score_mod: Any = None, block_mask: Any = None, *rest: Any,
        return_lse: bool = False, return_aux: Any = None, **how: Any,
    ) -> Any:  # fmt: skip
        names = (
            ["lse"] * return_lse
            if return_aux is None
            else [name for name in return_aux._fields if getattr(return_aux, name)]
        )
        known = Opaque(name="flex_attention", outputs=outputs, flops=flops, traffic=None,
                       backward_flops=lambda *a, **k: 2.5 * flops(*a, **k))  # fmt: skip
        out, *extra = run_declared(known, (query, key, value), {"block_mask": block_mask, "extra": len(names)})
        if return_aux is not None:
            return out, module.AuxOutput(**dict(zip(names, extra, strict=True)))
        return (out, *extra) if return_lse else out

    class Mask(_Mask, module.BlockMask):  # type: ignore[misc]
        """One that is asked for its class."""

    replace(module, "flex_attention", attention)
    replace(
        module,
        "create_block_mask",
        lambda mask_mod, B, H, Q_LEN, KV_LEN, *args, **kwargs: Mask(mask_mod, Q_LEN, KV_LEN),
    )


class _Mask:
    """Which pairs of positions a mask leaves, of a sample of them."""

    def __init__(self, rule: Any, queries: int, keys: int) -> None:
        self.rule, self.queries, self.keys = rule, queries, keys

    @functools.cached_property
    def density(self) -> float:
        q, k = (torch.linspace(0, n - 1, min(n, 64)).long() for n in (self.queries, self.keys))
        try:
            seen = self.rule(torch.tensor(0), torch.tensor(0), q[:, None], k[None, :])
            return float(seen.expand(len(q), len(k)).float().mean())
        except Exception:  # it asks for something that has no numbers here
            return 1.0


def _density(mask: Any) -> float:
    return 1.0 if mask is None else float(mask.density)
