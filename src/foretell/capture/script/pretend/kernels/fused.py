"""Norms, losses, products and optimizers of Apex, Liger, Transformer Engine and flash-attn, fused there, as torch's own."""

from __future__ import annotations

import contextlib
import inspect
import types
from collections.abc import Iterator, Mapping
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from foretell.capture.script.pretend.kernels.notes import note, scaled
from foretell.declared import opaque
from foretell.precision import Recipe


def _keywords(package: str, given: Mapping[str, Any], harmless: str) -> None:
    """Keywords that change no op are dropped; of others the user hears."""
    for name in given.keys() - set(harmless.split()):
        note(f"{package}: {name}={given[name]!r} is not modelled")


# Optimizers, one kernel for all parameters


class _FusedAdam(torch.optim.AdamW):
    def __init__(self, params: Any, lr: float = 1e-3, bias_correction: bool = True, betas: Any = (0.9, 0.999),
                 eps: float = 1e-8, adam_w_mode: bool = True, weight_decay: float = 0.0, **how: Any) -> None:  # fmt: skip
        _keywords("FusedAdam", how, "amsgrad set_grad_none capturable eps_inside_sqrt max_grad_norm")
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, fused=True)


class _FusedSGD(torch.optim.SGD):
    def __init__(self, params: Any, lr: float = 1e-3, momentum: float = 0.0, dampening: float = 0.0,
                 weight_decay: float = 0.0, nesterov: bool = False, **how: Any) -> None:  # fmt: skip
        _keywords("FusedSGD", how, "wd_after_momentum materialize_master_grads set_grad_none")
        super().__init__(params, lr, momentum, dampening, weight_decay, nesterov, fused=True)


class _FusedLamb(_FusedAdam):
    """Two moments and the norms of each parameter; the norms are not counted."""

    def __init__(self, params: Any, lr: float = 1e-3, bias_correction: bool = True, betas: Any = (0.9, 0.999),
                 eps: float = 1e-6, weight_decay: float = 0.01, **how: Any) -> None:  # fmt: skip
        _keywords("FusedLAMB", how, "amsgrad adam_w_mode grad_averaging set_grad_none max_grad_norm use_nvlamb")
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)


class _Larc:
    """Apex's wrapper of an optimizer, which scales its gradients by their norms first."""

    def __init__(self, optimizer: Any, trust_coefficient: float = 0.02, clip: bool = True, eps: float = 1e-8) -> None:
        self.__dict__["optim"] = optimizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["optim"], name)

    @torch.no_grad()
    def step(self, *args: Any, **kwargs: Any) -> Any:
        for p in (p for group in self.optim.param_groups for p in group["params"] if p.grad is not None):
            p.grad.mul_(p.norm() / (p.grad.norm() + 1e-8))
        return self.optim.step(*args, **kwargs)


# Losses


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
        _keywords(
            "LigerFusedLinearCrossEntropyLoss", how, "ignore_index label_smoothing reduction lse_square_scale softcap"
        )

    def forward(self, lin_weight: Tensor, _input: Tensor, target: Tensor, bias: Tensor | None = None) -> Tensor:
        out: Tensor = _LinearCrossEntropy.apply(_input, lin_weight, target, bias)  # type: ignore[no-untyped-call]
        return out


def _cross_entropy(
    ignore_index: int = -100, label_smoothing: float = 0.0, reduction: str = "mean", **how: Any
) -> nn.Module:
    _keywords(
        "fused cross entropy", how, "inplace_backward process_group lse_square_scale logit_scale return_z_loss softcap"
    )
    return nn.CrossEntropyLoss(ignore_index=ignore_index, label_smoothing=label_smoothing, reduction=reduction)


def _silu_mul(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


# Norms


class _Norm:
    """Makes torch's own norm, whatever else the fused one takes."""

    def __init__(self, kind: type[nn.Module], harmless: str) -> None:
        self.kind, self.harmless = kind, harmless

    def __call__(self, shape: Any = None, *args: Any, **how: Any) -> nn.Module:
        shape = how.pop("hidden_size", how.pop("normalized_shape", shape))
        known = inspect.signature(self.kind.__init__).parameters
        eps = how.pop("eps", args[0] if args and isinstance(args[0], float) else 1e-5)
        kept = {name: how.pop(name) for name in list(how) if name in known}
        _keywords(self.kind.__name__, how, self.harmless)
        return self.kind(shape, eps=eps, **kept)

    def __instancecheck__(self, value: Any) -> bool:
        return isinstance(value, self.kind)

    def __mro_entries__(self, bases: Any) -> tuple[type, ...]:
        return (self.kind,)  # a class of the script's derives from it


_LAYER: Final = _Norm(
    nn.LayerNorm, "memory_efficient sequence_parallel params_dtype zero_centered_gamma init_fn in_place"
)
_RMS: Final = _Norm(nn.RMSNorm, "memory_efficient sequence_parallel params_dtype zero_centered_gamma offset casting_mode "
                                "init_fn in_place row_mode dropout_p")  # fmt: skip


class _ActivatedNorm(nn.BatchNorm2d):
    """In-place activated batch norm: its activation writes over what the norm made."""

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float = 0.1, affine: bool = True,
                 activation: str = "leaky_relu", activation_param: float = 0.01, group: Any = None) -> None:  # fmt: skip
        super().__init__(num_features, eps, momentum, affine)
        self.activation, self.activation_param = activation, activation_param

    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x)
        if self.activation in ("leaky_relu", "relu"):
            return F.leaky_relu_(out, self.activation_param if self.activation == "leaky_relu" else 0.0)
        return F.elu_(out) if self.activation == "elu" else out


# Transformer Engine


def _te_linear(in_features: int, out_features: int, bias: bool = True, **how: Any) -> nn.Module:
    _keywords("transformer_engine.pytorch.Linear", how, "device params_dtype init_method name sequence_parallel")
    placed = {"device": how.get("device"), "dtype": how.get("params_dtype")}
    return nn.Linear(in_features, out_features, bias=bias, **placed)


class _NormLinear(nn.Sequential):
    def __init__(self, in_features: int, out_features: int, eps: float = 1e-5, bias: bool = True,
                 normalization: str = "LayerNorm", **how: Any) -> None:  # fmt: skip
        _keywords(
            "transformer_engine.pytorch.LayerNormLinear", how, "device params_dtype init_method sequence_parallel"
        )
        kind = nn.RMSNorm if normalization == "RMSNorm" else nn.LayerNorm
        super().__init__(kind(in_features, eps=eps), nn.Linear(in_features, out_features, bias=bias))


class _Scaling:
    """A recipe of Transformer Engine, whatever it is made with."""

    recipe: Recipe = "delayed"

    def __init__(self, *args: Any, **how: Any) -> None:
        pass


class _CurrentScaling(_Scaling):
    recipe = "current"


class _BlockScaling(_Scaling):
    recipe = "blockwise"


class _MicroScaling(_Scaling):
    recipe = "mx"


_SCALINGS: Final = {
    "DelayedScaling": _Scaling, "Float8CurrentScaling": _CurrentScaling, "Float8BlockScaling": _BlockScaling,
    "MXFP8BlockScaling": _MicroScaling,
}  # fmt: skip


@contextlib.contextmanager
def _fp8(
    enabled: bool = True, calibrating: bool = False, fp8_recipe: Any = None, *args: Any, **how: Any
) -> Iterator[None]:
    given = fp8_recipe if fp8_recipe is not None else how.get("recipe")
    if enabled and not calibrating:
        scaled(given.recipe if isinstance(given, _Scaling) else "delayed")
    yield


def patched(*args: Any, **how: Any) -> None:
    note("Liger's kernels in place of a model's own are not modelled: this is the model without them")


KNOWN: Final[Mapping[str, Any]] = {
    **{
        f"apex.normalization{part}.{name}": norm
        for part in ("", ".fused_layer_norm")
        for name, norm in {"FusedLayerNorm": _LAYER, "FusedRMSNorm": _RMS, "MixedFusedLayerNorm": _LAYER,
                           "MixedFusedRMSNorm": _RMS}.items()
    },
    "apex.contrib.layer_norm.FastLayerNorm": _LAYER,
    "apex.optimizers.FusedAdam": _FusedAdam,
    "apex.optimizers.FusedSGD": _FusedSGD,
    "apex.optimizers.FusedLAMB": _FusedLamb,
    "apex.parallel.LARC": _Larc,
    "apex.parallel.LARC.LARC": _Larc,
    "flash_attn.losses.cross_entropy.CrossEntropyLoss": _cross_entropy,
    "flash_attn.ops.rms_norm.RMSNorm": _RMS,
    "flash_attn.ops.layer_norm.DropoutAddLayerNorm": _LAYER,
    "inplace_abn.InPlaceABN": _ActivatedNorm,
    "inplace_abn.InPlaceABNSync": _ActivatedNorm,
    "inplace_abn.ABN": _ActivatedNorm,
    "liger_kernel.transformers.LigerCrossEntropyLoss": _cross_entropy,
    "liger_kernel.transformers.LigerFusedLinearCrossEntropyLoss": _FusedLinearCrossEntropyLoss,
    "liger_kernel.transformers.LigerLayerNorm": _LAYER,
    "liger_kernel.transformers.LigerRMSNorm": _RMS,
    "liger_kernel.transformers.functional.liger_silu_mul": _silu_mul,
    "transformer_engine.pytorch.LayerNorm": _LAYER,
    "transformer_engine.pytorch.Linear": _te_linear,
    "transformer_engine.pytorch.LayerNormLinear": _NormLinear,
    "transformer_engine.pytorch.RMSNorm": _RMS,
    **{f"transformer_engine.pytorch.{name}": _fp8 for name in ("fp8_autocast", "autocast")},
    **{f"transformer_engine.common.recipe.{name}": scaling for name, scaling in _SCALINGS.items()},
    "transformer_engine.common.recipe.Format": types.SimpleNamespace(E4M3="e4m3", E5M2="e5m2", HYBRID="hybrid"),
}  # fmt: skip
