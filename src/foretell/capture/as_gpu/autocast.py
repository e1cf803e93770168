"""Autocast as CUDA does it: its op lists (aten/src/ATen/autocast_mode.h), installed where a CPU tensor meets them."""

from __future__ import annotations

from functools import partial, wraps
from typing import Any

import torch

from foretell.capture.as_gpu.patches import replace

aten = torch.ops.aten

_TO_HALF = """_convolution conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d.input conv_transpose3d.input
    convolution prelu addmm addmv addr matmul einsum mm mv linalg_vecdot linear addbmm baddbmm bmm chain_matmul
    linalg_multi_dot _thnn_fused_lstm_cell _thnn_fused_gru_cell lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell
    scaled_dot_product_attention""".split()
_TO_FP16 = "lstm gru rnn_tanh rnn_relu".split()  # cuDNN's, whatever half type is wanted
_TO_FULL = """acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar
    pow.Tensor_Tensor pow.Scalar softplus layer_norm native_layer_norm rms_norm group_norm frobenius_norm.dim
    nuclear_norm nuclear_norm.dim cosine_similarity poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d
    hinge_embedding_loss kl_div l1_loss smooth_l1_loss huber_loss mse_loss margin_ranking_loss multilabel_margin_loss
    soft_margin_loss triplet_margin_loss multi_margin_loss binary_cross_entropy_with_logits dist pdist cdist renorm
    logsumexp upsample_nearest1d _upsample_nearest_exact1d upsample_nearest2d _upsample_nearest_exact2d
    upsample_nearest3d _upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d _upsample_bilinear2d_aa
    upsample_trilinear3d upsample_bicubic2d _upsample_bicubic2d_aa""".split()
_TO_FULL_UNLESS_DTYPE = """prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm
    linalg_matrix_norm linalg_matrix_norm.str_ord sum sum.dim_IntList norm.Scalar norm.ScalarOpt_dim""".split()
_TO_WIDEST = "addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add".split()
# What CPU autocast casts and CUDA does not; these must do nothing.
_CPU_ONLY = """avg_pool3d binary_cross_entropy grid_sampler polar prod.dim_Dimname quantile quantile.scalar nanquantile
    nanquantile.scalar stft stft.center cdist _cdist_forward _cdist_backward trace view_as_complex cholesky cholesky_inverse
    cholesky_solve inverse lu_solve orgqr ormqr pinverse max_pool3d max_unpool2d max_unpool3d adaptive_avg_pool3d
    reflection_pad1d reflection_pad2d replication_pad1d replication_pad2d replication_pad3d mse_loss cosine_embedding_loss
    nll_loss nll_loss2d hinge_embedding_loss poisson_nll_loss smooth_l1_loss cross_entropy_loss l1_loss huber_loss
    margin_ranking_loss soft_margin_loss triplet_margin_loss multi_margin_loss ctc_loss.IntList ctc_loss.Tensor kl_div
    multilabel_margin_loss binary_cross_entropy_with_logits fft_fft fft_ifft fft_fft2 fft_ifft2 fft_fftn fft_ifftn
    fft_rfft fft_irfft fft_rfft2 fft_irfft2 fft_rfftn fft_irfftn fft_hfft fft_ihfft linalg_cond linalg_cond.p_str
    linalg_matrix_rank linalg_matrix_rank.tol_tensor linalg_matrix_rank.atol_rtol_tensor linalg_matrix_rank.atol_rtol_float
    linalg_solve linalg_cholesky linalg_svdvals linalg_eigvals linalg_eigvalsh linalg_inv linalg_householder_product
    linalg_tensorinv linalg_tensorsolve fake_quantize_per_tensor_affine geqrf _lu_with_info qr svd triangular_solve
    fractional_max_pool2d fractional_max_pool3d adaptive_max_pool3d multilabel_margin_loss_forward linalg_qr
    linalg_cholesky_ex linalg_svd linalg_eig linalg_eigh linalg_lstsq linalg_inv_ex stack cat index_copy
    index_copy.dimname""".split()

_without_autocast = partial(
    torch._C._ExcludeDispatchKeyGuard, torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
)
# Autocast casts a parameter once until it is left.
_half_weights: dict[tuple[int, torch.dtype], tuple[torch.Tensor, torch.Tensor]] = {}


def follow_cuda(library: torch.library.Library) -> None:
    policies: dict[str, Any] = dict.fromkeys(_CPU_ONLY, torch.library.fallthrough_kernel)
    policies |= dict.fromkeys(_TO_FULL, _in_full) | dict.fromkeys(_TO_FULL_UNLESS_DTYPE, _in_full_unless_dtype)
    policies |= dict.fromkeys(_TO_WIDEST, _in_widest) | dict.fromkeys(_TO_HALF, _in_half)
    policies |= {f"{name}.{form}": _in_fp16 for name in _TO_FP16 for form in ("input", "data")}
    for name, policy in policies.items():
        packet, _, overload = name.partition(".")
        op = getattr(getattr(aten, packet, None), overload or "default", None)
        if op is not None:  # lists differ a little between torch versions
            ignored = policy is torch.library.fallthrough_kernel or not casts_on_cuda(op)
            kernel = torch.library.fallthrough_kernel if ignored else partial(policy, op)
            library.impl(name, kernel, "AutocastCPU", allow_override=True)
    clear = torch.clear_autocast_cache

    def clear_both() -> None:
        _half_weights.clear()
        clear()

    replace(torch, "clear_autocast_cache", clear_both)
    enter = torch.autocast.__init__

    @wraps(enter)  # torch's compiler binds its arguments by name
    def enter_on_cpu(self: torch.autocast, device_type: str, *args: Any, **kwargs: Any) -> None:
        # The user's own autocast("cuda") means the device we stand in for, and half means fp16 there.
        if device_type == "cuda":
            device_type = "cpu"
            if not args and kwargs.get("dtype") is None:
                kwargs["dtype"] = torch.float16
        enter(self, device_type, *args, **kwargs)

    replace(torch.autocast, "__init__", enter_on_cpu)


def casts_on_cuda(op: Any) -> bool:
    """Whether this version of torch casts for it; recurrent layers it casts inside."""
    name = op._schema.name.removeprefix("aten::")
    return name in _TO_FP16 or torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "AutocastCUDA")


def _is_castable(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point() and value.dtype != torch.float64


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if _is_castable(value):
        if value.dtype == dtype:
            return value
        if dtype != torch.float32 and value.is_leaf and value.requires_grad and value.dtype == torch.float32:
            known = _half_weights.get((id(value), dtype))
            if known is None:
                known = _half_weights[id(value), dtype] = (value, value.to(dtype))
            return known[1]
        return value.to(dtype)
    if isinstance(value, list | tuple):
        return type(value)(_cast(item, dtype) for item in value)
    return value


def _call(op: Any, dtype: torch.dtype | None, args: Any, kwargs: Any) -> Any:
    with _without_autocast():
        if dtype is not None:
            args, kwargs = _cast(args, dtype), {name: _cast(value, dtype) for name, value in kwargs.items()}
        return op(*args, **kwargs)


def _in_half(op: Any, *args: Any, **kwargs: Any) -> Any:
    return _call(op, torch.get_autocast_dtype("cpu"), args, kwargs)


def _in_fp16(op: Any, *args: Any, **kwargs: Any) -> Any:
    return _call(op, torch.float16, args, kwargs)


def _in_full(op: Any, *args: Any, **kwargs: Any) -> Any:
    return _call(op, torch.float32, args, kwargs)


def _in_full_unless_dtype(op: Any, *args: Any, **kwargs: Any) -> Any:
    first = args[0]
    has_dtype = kwargs.get("dtype") is not None or any(isinstance(a, torch.dtype) for a in args)
    if not has_dtype and _is_castable(first) and first.dtype != torch.float32:
        if op._schema.name == "aten::norm":
            return _call(op, torch.float32, args, kwargs)
        kwargs = {**kwargs, "dtype": torch.float32}
    if kwargs.get("dtype") is not None and len(args) == len(op._schema.arguments):
        args = tuple(a for a, s in zip(args, op._schema.arguments, strict=False) if s.name != "dtype")
    return _call(op, None, args, kwargs)


def _in_widest(op: Any, *args: Any, **kwargs: Any) -> Any:
    floats = [a for a in (*args, *kwargs.values()) if _is_castable(a)]
    widest = torch.float32 if any(a.dtype == torch.float32 for a in floats) else torch.get_autocast_dtype("cpu")
    return _call(op, widest, args, kwargs)
