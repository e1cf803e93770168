"""Selective scans and short convolutions of Mamba: kernels that cannot be looked into, and the block that is made of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from foretell.declared import opaque

_PER_STATE: Final = 9.0  # operations for each number of the state at each position


def _scan_outputs(u: Tensor, delta: Tensor, A: Tensor, *rest: Any, **how: Any) -> Any:
    out = torch.empty_like(u)
    return (out, u.new_empty(u.shape[0], u.shape[1], A.shape[1])) if how.get("return_last_state") else out


selective_scan: Final = opaque(
    lambda *args, **how: None,
    outputs=_scan_outputs,
    flops=lambda u, delta, A, *rest, **how: _PER_STATE * u.numel() * A.shape[1],
    name="selective_scan_fn",
)
short_convolution: Final = opaque(
    lambda *args, **how: None,
    outputs=lambda x, weight, *rest, **how: torch.empty_like(x),
    flops=lambda x, weight, *rest, **how: 2.0 * x.numel() * weight.shape[-1],
    name="causal_conv1d_fn",
)


class Mamba(nn.Module):
    """The block of the first version, as its paper has it."""

    def __init__(self, d_model: int, d_state: int = 16, d_conv: int = 4, expand: int = 2, dt_rank: int | str = "auto",
                 conv_bias: bool = True, bias: bool = False, layer_idx: Any = None, device: Any = None, dtype: Any = None,
                 **initial: Any) -> None:  # fmt: skip
        super().__init__()
        where = {"device": device, "dtype": dtype}
        self.inner, self.state = expand * d_model, d_state
        self.rank = math.ceil(d_model / 16) if isinstance(dt_rank, str) else dt_rank
        self.in_proj = nn.Linear(d_model, 2 * self.inner, bias=bias, **where)
        self.conv1d = nn.Conv1d(
            self.inner, self.inner, d_conv, groups=self.inner, padding=d_conv - 1, bias=conv_bias, **where
        )
        self.x_proj = nn.Linear(self.inner, self.rank + 2 * d_state, bias=False, **where)
        self.dt_proj = nn.Linear(self.rank, self.inner, bias=True, **where)
        self.A_log = nn.Parameter(torch.zeros(self.inner, d_state, device=device))
        self.D = nn.Parameter(torch.ones(self.inner, device=device))
        self.out_proj = nn.Linear(self.inner, d_model, bias=bias, **where)

    def forward(self, hidden_states: Tensor, inference_params: Any = None, **how: Any) -> Tensor:
        x, z = self.in_proj(hidden_states).transpose(1, 2).chunk(2, dim=1)
        x = short_convolution(x, self.conv1d.weight.squeeze(1), self.conv1d.bias)
        length = x.shape[-1]
        rates, b, c = self.x_proj(x.transpose(1, 2).reshape(-1, self.inner)).split(
            [self.rank, self.state, self.state], -1
        )
        delta = F.linear(rates, self.dt_proj.weight).view(-1, length, self.inner).transpose(1, 2)
        b, c = (t.view(-1, length, self.state).transpose(1, 2).contiguous() for t in (b, c))
        y = selective_scan(x, delta, -torch.exp(self.A_log.float()), b, c, self.D, z, self.dt_proj.bias)
        return self.out_proj(y.transpose(1, 2))  # type: ignore[no-any-return]


KNOWN: Final[Mapping[str, Any]] = {
    "causal_conv1d.causal_conv1d_fn": short_convolution,
    "mamba_ssm.Mamba": Mamba,
    "mamba_ssm.modules.mamba_simple.Mamba": Mamba,
    "mamba_ssm.ops.selective_scan_interface.selective_scan_fn": selective_scan,
    "selective_scan_cuda_oflex.selective_scan_fn": selective_scan,
}
