"""Packages of CUDA and Triton kernels, which cannot run here: the few that are known, and what is said of all others.

A package that is not installed is stood in for where the script imports it. What the table below has is run as torch's own
op of the same kind; what a user has declared with `foretell.opaque` as declared; anything else says how to declare it.
"""

from __future__ import annotations

import functools
import importlib
import types
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from foretell.capture.as_gpu.attention import flash
from foretell.capture.as_gpu.patches import replace
from foretell.capture.opaque import run as run_declared
from foretell.capture.script.imports import once_imported, provide
from foretell.capture.script.session import Session
from foretell.declared import DECLARED, Opaque, opaque
from foretell.errors import WorkloadError

PACKAGES: Final = (
    "apex", "causal_conv1d", "flash_attn", "flash_attn_interface", "fla", "liger_kernel", "mamba_ssm", "transformer_engine",
    "triton", "xformers",
)  # fmt: skip
_HOW: Final = (
    "foretell.opaque({path!r}, outputs=lambda …: torch.empty(…), flops=…) declares what it costs and what it returns: see "
    "docs/guide/scripts.md, or give such a file with --opaque"
)


# What is known. Sequences are (batch, length, heads, width) here, and (batch, heads, length, width) in torch.


def _flash(
    q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0, softmax_scale: float | None = None, causal: bool = False,
    **how: Any,
) -> Tensor:  # fmt: skip
    out = flash(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), dropout_p, causal, softmax_scale)
    return out.transpose(1, 2)


def _flash_packed(qkv: Tensor, *args: Any, **how: Any) -> Tensor:
    q, k, v = qkv.unbind(2)
    return _flash(q, k, v, *args, **how)


def _varlen_flops(
    q: Any, k: Any, v: Any, starts_q: Any, starts_k: Any, longest_q: Any, longest_k: Any, **how: Any
) -> float:
    return 4.0 * int(q.numel()) * int(longest_k) * (0.5 if how.get("causal") else 1.0)


def _varlen(*args: Any, **how: Any) -> Any:
    """Sequences of many lengths in one: taken to be as long as the longest."""
    known = Opaque(name="flash_attn_varlen_func", outputs=None, flops=_varlen_flops, traffic=None,
                   backward_flops=lambda *a, **k: 2.5 * _varlen_flops(*a, **k))  # fmt: skip
    return run_declared(known, args, how)


class _LowerTriangularMask:
    """xFormers' name of causal attention."""


def _memory_efficient(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Any = None,
    p: float = 0.0,
    scale: float | None = None,
    **how: Any,
) -> Tensor:
    causal = isinstance(attn_bias, _LowerTriangularMask)
    bias = attn_bias if isinstance(attn_bias, Tensor) else None
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    made = torch.ops.aten._scaled_dot_product_efficient_attention(q, k, v, bias, True, p, causal, scale=scale)
    out: Tensor = made[0]
    return out.transpose(1, 2)


class _FusedAdam(torch.optim.AdamW):
    def __init__(self, params: Any, lr: float = 1e-3, bias_correction: bool = True, betas: Any = (0.9, 0.999),
                 eps: float = 1e-8, adam_w_mode: bool = True, weight_decay: float = 0.0, **how: Any) -> None:  # fmt: skip
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, fused=True)


class _FusedSGD(torch.optim.SGD):
    def __init__(self, params: Any, lr: float = 1e-3, momentum: float = 0.0, dampening: float = 0.0,
                 weight_decay: float = 0.0, nesterov: bool = False, **how: Any) -> None:  # fmt: skip
        super().__init__(params, lr, momentum, dampening, weight_decay, nesterov, fused=True)


class _LinearCrossEntropy(torch.autograd.Function):
    """Logits and their gradients piece by piece, so that they are never there as a whole."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None) -> Tensor:
        pieces = max(weight.shape[0] // x.shape[1], 1)  # a piece of logits takes no more than the input
        rows = max(-(-x.shape[0] // pieces), 1)
        gradient_x, gradient_weight = torch.empty_like(x), torch.zeros_like(weight)
        for start in range(0, x.shape[0], rows):
            part = x[start : start + rows]
            logits = part @ weight.t() if bias is None else torch.addmm(bias, part, weight.t())
            _cross_entropy_in_place(logits, target[start : start + rows])
            gradient_x[start : start + rows] = logits @ weight
            gradient_weight.addmm_(logits.t(), part)
        ctx.save_for_backward(gradient_x, gradient_weight)
        return x.new_zeros((), dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> tuple[Tensor | None, ...]:
        gradient_x, gradient_weight = ctx.saved_tensors
        return gradient_x.mul_(gradient), gradient_weight.mul_(gradient), None, None


# One kernel: it reads logits and writes their gradients in their place.
_cross_entropy_in_place: Final = opaque(
    lambda logits, target: logits,
    outputs=lambda logits, target: logits,
    traffic=lambda logits, target: 2.0 * logits.numel() * logits.element_size(),
    name="liger_cross_entropy",
)


class _FusedLinearCrossEntropyLoss(nn.Module):
    def __init__(self, *args: Any, **how: Any) -> None:
        super().__init__()

    def forward(self, lin_weight: Tensor, _input: Tensor, target: Tensor, bias: Tensor | None = None) -> Tensor:
        out: Tensor = _LinearCrossEntropy.apply(_input, lin_weight, target, bias)  # type: ignore[no-untyped-call]
        return out


def _cross_entropy(
    ignore_index: int = -100, label_smoothing: float = 0.0, reduction: str = "mean", **how: Any
) -> nn.Module:
    return nn.CrossEntropyLoss(ignore_index=ignore_index, label_smoothing=label_smoothing, reduction=reduction)


def _silu_mul(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


KNOWN: Final[Mapping[str, Any]] = {
    "apex.normalization.FusedLayerNorm": nn.LayerNorm,
    "apex.normalization.FusedRMSNorm": nn.RMSNorm,
    "apex.normalization.MixedFusedLayerNorm": nn.LayerNorm,
    "apex.normalization.MixedFusedRMSNorm": nn.RMSNorm,
    "apex.optimizers.FusedAdam": _FusedAdam,
    "apex.optimizers.FusedSGD": _FusedSGD,
    "flash_attn.flash_attn_func": _flash,
    "flash_attn.flash_attn_qkvpacked_func": _flash_packed,
    "flash_attn.flash_attn_varlen_func": _varlen,
    "flash_attn.flash_attn_interface.flash_attn_func": _flash,
    "flash_attn.flash_attn_interface.flash_attn_varlen_func": _varlen,
    "flash_attn_interface.flash_attn_func": _flash,
    "liger_kernel.transformers.LigerCrossEntropyLoss": _cross_entropy,
    "liger_kernel.transformers.LigerFusedLinearCrossEntropyLoss": _FusedLinearCrossEntropyLoss,
    "liger_kernel.transformers.LigerLayerNorm": nn.LayerNorm,
    "liger_kernel.transformers.LigerRMSNorm": nn.RMSNorm,
    "liger_kernel.transformers.functional.liger_silu_mul": _silu_mul,
    "transformer_engine.pytorch.LayerNorm": nn.LayerNorm,
    "transformer_engine.pytorch.Linear": nn.Linear,
    "transformer_engine.pytorch.RMSNorm": nn.RMSNorm,
    "xformers.ops.LowerTriangularMask": _LowerTriangularMask,
    "xformers.ops.memory_efficient_attention": _memory_efficient,
}


# How they are put in place.


def install(session: Session) -> None:
    """Let kernels be those of the table, as declared, or an error that says how to declare them."""
    provide(_is_of_kernels, lambda name: (_Triton if name.partition(".")[0] == "triton" else _Package)(name, session))
    once_imported("torch.utils.cpp_extension", _extensions)
    once_imported("torch.nn.attention.flex_attention", _flexible)
    once_imported("triton", _installed_triton)
    for name in {path.rpartition(".")[0] for path in (*KNOWN, *DECLARED)}:
        once_imported(name, _put)


def _is_of_kernels(name: str) -> bool:
    package = name.partition(".")[0]
    return package in PACKAGES or any(path.startswith(f"{package}.") for path in DECLARED)


def _put(module: Any) -> None:
    """Into a module that is there, what runs instead of its functions."""
    declared = {path: _as_declared(cost) for path, cost in DECLARED.items()}
    for path, value in {**KNOWN, **declared}.items():
        package, _, name = path.rpartition(".")
        if package == module.__name__ and not isinstance(module, _Package):
            vars(module)[name] = value


def _as_declared(declared: Opaque) -> Callable[..., Any]:
    return lambda *args, **kwargs: run_declared(declared, args, kwargs)


class _Package(types.ModuleType):
    """Stands in for a package of kernels that is not installed, or a part of it."""

    __version__ = "0"

    def __init__(self, name: str, session: Session) -> None:
        super().__init__(name)
        self.__dict__["session"] = session

    def __getattr__(self, name: str) -> Any:
        path = f"{self.__name__}.{name}"
        if name.startswith("__"):
            raise AttributeError(name)
        if path in DECLARED:
            return _as_declared(DECLARED[path])
        if path in KNOWN:
            self.session.find_name("kernels", path)
            return KNOWN[path]
        if any(known.startswith(f"{path}.") for known in (*KNOWN, *DECLARED)):
            return importlib.import_module(path)
        return _Unknown(path)


class _Unknown:
    """Something of a package of kernels; whoever uses it is told what to do."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(self)(f"{self.path}.{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise WorkloadError(
            f"the script runs {self.path}, a kernel that needs a GPU and is not one that Foretell knows. "
            f"{_HOW.format(path=self.path)}."
        )


# Triton, CUDA that is compiled as the script runs, FlexAttention


class _Triton(_Package):
    """Enough of Triton for a script to define its kernels."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in ("jit", "autotune", "heuristics"):
            return _kernel if name == "jit" else lambda *args, **kwargs: lambda function: function
        if name == "cdiv":
            return lambda a, b: -(-a // b)
        if name == "next_power_of_2":
            return lambda n: 1 << max(n - 1, 0).bit_length()
        return _Anything(f"{self.__name__}.{name}")


class _Anything(_Unknown):
    """A name of Triton's, as a type or in a configuration: harmless until a kernel is launched."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self


class _Kernel:
    def __init__(self, function: Any) -> None:
        self.name = getattr(function, "__name__", "kernel")

    def __getitem__(self, grid: Any) -> Any:
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise WorkloadError(
            f"the script launches {self.name}, a Triton kernel, which needs a GPU. Put @foretell.opaque(outputs=lambda …: "
            "torch.empty(…), flops=…) on the function that launches it: outside of forecasts that changes nothing."
        )

    run = __call__


def _kernel(function: Any = None, **how: Any) -> Any:
    return _Kernel(function) if function is not None else _Kernel


def _installed_triton(module: Any) -> None:
    if isinstance(module, _Package):
        return
    importlib.import_module("triton.runtime.jit").JITFunction.run = lambda self, *args, **kwargs: _Kernel(self.fn)()


def _extensions(module: Any) -> None:
    def compiled(name: str, *args: Any, **kwargs: Any) -> Any:
        return _Unknown(name)

    for loader in ("load", "load_inline"):
        replace(module, loader, compiled)


def _flexible(module: Any) -> None:
    """FlexAttention, one kernel whose scores are changed on their way: its products, and the blocks that its mask leaves."""

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
