"""Makes a CPU capture take the path a GPU would: the same casts, kernels and optimizer forms.

Some composite operators look at the device before they choose what to run. In the capturing process, and nowhere
else, those choices are replaced by the GPU's: attention goes to a fused kernel, batch norm and RNNs to cuDNN,
autocast follows the CUDA lists, optimizers default to their foreach form. The process ends after the capture, so
nothing is put back.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import sys
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _foreach_utils as foreach_utils

from foretell.errors import CaptureError

aten = torch.ops.aten
_OVERRIDES: list[torch.library.Library] = []  # a library unregisters its kernels when it is collected


def behave_as_gpu() -> None:
    """Replace the device-dependent choices of this process by a GPU's, once."""
    if _OVERRIDES:
        return
    if "allow_override" not in inspect.signature(torch.library.Library.impl).parameters:
        raise CaptureError(
            f"torch {torch.__version__} is too old to capture with. Upgrade with: pip install 'torch>=2.8'"
        )
    library = torch.library.Library("aten", "IMPL")
    _OVERRIDES.append(library)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that we override kernels is the point
        for name, kernel in _COMPOSITES.items():
            library.impl(name, kernel, "CompositeImplicitAutograd", allow_override=True)
        library.impl("_cudnn_rnn", _rnn_shapes, "Meta", allow_override=True)
        library.impl("_cudnn_rnn_backward", _rnn_backward_shapes, "Meta", allow_override=True)
        if hasattr(aten, "_grouped_mm"):
            library.impl("_grouped_mm", _grouped_mm_shapes, "Meta", allow_override=True)
        _follow_cuda_autocast(library)
    _default_to_foreach()
    _skip_conversions_that_change_nothing()
    # Nothing is compiled in this process; the guard against it is paid at every op.
    guarded = FakeTensorMode.__torch_dispatch__
    FakeTensorMode.__torch_dispatch__ = getattr(guarded, "_torchdynamo_orig_callable", guarded)  # type: ignore[method-assign]
    FakeTensor.__format__ = _formatted  # type: ignore[method-assign]
    torch.tensor = _tensor_of_numbers(torch.tensor)
    torch.backends.mha.set_fastpath_enabled(False)


def let_fake_tensors_pass_as_real() -> None:
    """Transformers takes another path for fake tensors than for a GPU's; ours carry the values it would ask for."""
    detection = sys.modules.get("transformers.utils.import_utils")
    if detection is not None:
        vars(detection)["is_fake_tensor"] = lambda value: False


# Attention: which kernel a CUDA build picks. Asked of a Hopper GPU (torch 2.11, cuDNN 9.19) for 1,350 kinds of call.


def attention_backend(
    *, dtype: torch.dtype, head_dim: int, value_dim: int, has_mask: bool, mask_needs_grad: bool, queries: int, keys: int,
    is_causal: bool, grouped: bool, dense_last_dim: bool,
) -> str:  # fmt: skip
    """`cudnn`, `flash`, `efficient` or `math`, with the default priorities."""
    if not dense_last_dim:
        return "math"
    if dtype in (torch.float16, torch.bfloat16):
        aligned = head_dim % 8 == 0 and value_dim % 8 == 0
        if aligned and max(head_dim, value_dim) <= 256 and not mask_needs_grad:
            return "cudnn"
        square_if_causal = not is_causal or queries == keys
        if not has_mask and head_dim <= 256 and head_dim == value_dim and square_if_causal:
            return "flash"
    else:
        aligned = head_dim % 4 == 0 and value_dim % 4 == 0 and dtype == torch.float32
    return "efficient" if aligned and not grouped else "math"


def _attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False,
) -> torch.Tensor:  # fmt: skip
    backend = "math" if query.dim() != 4 else attention_backend(
        dtype=query.dtype, head_dim=query.shape[-1], value_dim=value.shape[-1], has_mask=attn_mask is not None,
        mask_needs_grad=attn_mask is not None and attn_mask.requires_grad, queries=query.shape[-2], keys=key.shape[-2],
        is_causal=is_causal, grouped=query.shape[-3] != key.shape[-3],
        dense_last_dim=all(t.stride(-1) == 1 for t in (query, key, value, attn_mask) if t is not None),
    )  # fmt: skip
    needs_grad = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
    out: torch.Tensor
    if backend == "cudnn":
        bias = None if attn_mask is None else _as_bias(attn_mask, query)
        out = aten._scaled_dot_product_cudnn_attention(
            query, key, value, bias, needs_grad, dropout_p, is_causal, False, scale=scale
        )[0]
        return out
    if backend == "flash":
        return _flash(query, key, value, dropout_p, is_causal, scale)
    if backend == "efficient":
        bias = None if attn_mask is None else _padded_bias(_as_bias(attn_mask, query), query, key)
        out = aten._scaled_dot_product_efficient_attention(
            query, key, value, bias, needs_grad, dropout_p, is_causal, scale=scale
        )[0]
        return out
    out = aten._scaled_dot_product_attention_math(
        query, key, value, attn_mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
    )[0]
    return out


def _flash(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dropout: float, causal: bool, scale: float | None
) -> torch.Tensor:
    head_dim = q.shape[-1]
    if scale is None:
        scale = head_dim**-0.5
    if padding := -head_dim % 8:  # the kernel wants heads of a multiple of eight
        q, k, v = (torch.nn.functional.pad(t, (0, padding)) for t in (q, k, v))
    out: torch.Tensor = aten._scaled_dot_product_flash_attention(q, k, v, dropout, causal, False, scale=scale)[0]
    return out[..., :head_dim] if padding else out


def _as_bias(mask: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    if mask.dtype != torch.bool:
        return mask
    return torch.where(mask, torch.zeros((), dtype=query.dtype), torch.full((), float("-inf"), dtype=query.dtype))


def _padded_bias(bias: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    keys = key.shape[-2]
    if padding := -keys % 8:  # rows of the bias must start at a multiple of eight elements
        bias = torch.nn.functional.pad(bias, (0, padding))[..., :keys]
    return bias.expand(query.shape[0], query.shape[1], query.shape[2], keys)


def _dropout(input: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    if train and 0 < p < 1 and input.numel():
        out: torch.Tensor = aten.native_dropout(input, p, train)[0]
        return out
    return input * torch.zeros(()) if train and p == 1 else input


def _group_norm(
    input: torch.Tensor, num_groups: int, weight: torch.Tensor | None = None, bias: torch.Tensor | None = None,
    eps: float = 1e-5, cudnn_enabled: bool = True,
) -> torch.Tensor:  # fmt: skip
    # Only the CPU kernel reads channels-last; a GPU copies first.
    samples, channels = input.shape[:2]
    area = input.numel() // max(samples * channels, 1)
    dense = (t.contiguous() if t is not None else None for t in (input, weight, bias))
    out: torch.Tensor = aten.native_group_norm(*dense, samples, channels, area, num_groups, eps)[0]
    return out


def _softmax(kernel: Any, input: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    # A GPU's kernel reads fp16 and writes fp32 by itself; anything else is converted first.
    converts = input.dtype == torch.float16 and dtype == torch.float32
    out: torch.Tensor = kernel(input if converts or dtype is None else input.to(dtype), dim, converts)
    return out


# Batch norm goes to cuDNN when it has weights and running statistics or is training.


def _batch_norm(
    input: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, mean: torch.Tensor | None,
    variance: torch.Tensor | None, training: bool, momentum: float, eps: float, cudnn_enabled: bool,
) -> torch.Tensor:  # fmt: skip
    has_statistics = mean is not None and variance is not None
    has_weights = weight is not None and bias is not None and weight.dtype == torch.float32
    fits_kernel = input.dtype != torch.bfloat16 and input.dim() >= 2 and input.numel() // max(input.shape[1], 1) < 2**31
    wanted = (training or (has_statistics and input.dim() > 2)) and eps >= 1e-5
    by_cudnn = cudnn_enabled and has_weights and fits_kernel and wanted
    kernel = aten.cudnn_batch_norm if by_cudnn else aten.native_batch_norm
    out: torch.Tensor = kernel(input, weight, bias, mean, variance, training, momentum, eps)[0]
    return out


# RNNs run layer by layer in one cuDNN call. Modes as cuDNN numbers them.

_RNN_RELU, _RNN_TANH, _LSTM, _GRU = 0, 1, 2, 3


def _rnn(
    mode: int,
    x: torch.Tensor,
    hx: Any,
    params: list[torch.Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, ...]:
    h, c = (hx[0], hx[1]) if mode == _LSTM else (hx, None)
    return _cudnn(mode, x, h, c, params, has_biases, num_layers, dropout, train, bidirectional, batch_first, [])


def _packed_rnn(
    mode: int,
    data: torch.Tensor,
    batch_sizes: torch.Tensor,
    hx: Any,
    params: list[torch.Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
) -> tuple[torch.Tensor, ...]:
    h, c = (hx[0], hx[1]) if mode == _LSTM else (hx, None)
    sizes = [int(size) for size in batch_sizes.tolist()]
    return _cudnn(mode, data, h, c, params, has_biases, num_layers, dropout, train, bidirectional, False, sizes)


def _cudnn(
    mode: int,
    x: torch.Tensor,
    h: torch.Tensor,
    c: torch.Tensor | None,
    params: list[torch.Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
    sizes: list[int],
) -> tuple[torch.Tensor, ...]:
    gates = {_LSTM: 4, _GRU: 3}.get(mode, 1)
    hidden = params[0].shape[0] // gates
    projection = h.shape[-1] if h.shape[-1] != hidden else 0
    per_layer = len(params) // (num_layers * (2 if bidirectional else 1))
    # torch packs the weights into one buffer beforehand, save in bf16, where each call packs anew.
    packed = None if x.dtype == torch.bfloat16 else params[0].detach()
    out, h_n, c_n, _, _ = aten._cudnn_rnn(
        x, params, per_layer, packed, h, c, mode, hidden, projection, num_layers, batch_first, dropout, train,
        bidirectional, sizes, None,
    )  # fmt: skip
    return (out, h_n, c_n) if mode == _LSTM else (out, h_n)


def _rnn_shapes(
    x: torch.Tensor,
    weight: list[torch.Tensor],
    stride0: int,
    weight_buf: torch.Tensor | None,
    hx: torch.Tensor,
    cx: torch.Tensor | None,
    mode: int,
    hidden: int,
    projection: int,
    layers: int,
    batch_first: bool,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_sizes: list[int],
    dropout_state: torch.Tensor | None,
) -> tuple[Any, ...]:
    directions = 2 if bidirectional else 1
    width = (projection or hidden) * directions
    if batch_first and not batch_sizes:  # cuDNN writes time first
        out = x.new_empty(x.shape[1], x.shape[0], width).transpose(0, 1)
    else:
        out = x.new_empty(*x.shape[:-1], width)
    positions, batch = x.numel() // max(x.shape[-1], 1), hx.shape[1]
    reserve = 0
    if train:  # measured on an H200: gates and cell states of every step, what passes between layers, first states, dropout masks
        kept = {_LSTM: 5, _GRU: 6}.get(mode, 1)
        between = positions * hidden * directions * (layers - 1)
        reserve = x.element_size() * (
            kept * positions * hidden * directions * layers + between + 2 * batch * hidden * directions * layers
        )
        reserve += between // 8 if dropout else 0
    if weight_buf is None:
        weight_buf = x.new_empty(sum(w.numel() for w in weight))
    c_n = x.new_empty(0) if cx is None else torch.empty_like(cx)
    return out, torch.empty_like(hx), c_n, x.new_empty(reserve, dtype=torch.uint8), weight_buf


def _rnn_backward_shapes(
    x: torch.Tensor,
    weight: list[torch.Tensor],
    stride0: int,
    weight_buf: torch.Tensor,
    hx: torch.Tensor,
    cx: torch.Tensor | None,
    *rest: Any,
) -> tuple[Any, ...]:
    return (
        torch.empty_like(x), torch.empty_like(hx), None if cx is None else torch.empty_like(cx),
        [torch.empty_like(w) for w in weight],
    )  # fmt: skip


def _pad_packed_sequence(
    data: torch.Tensor, batch_sizes: torch.Tensor, batch_first: bool, padding_value: float, total_length: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """As torch does it, one copy for each run of equal sizes, but asking for the sizes where torch reads memory."""
    sizes = [int(size) for size in batch_sizes.tolist()]
    rest = data.shape[1:]
    out = data.new_full((max(len(sizes), total_length), sizes[0], *rest), padding_value)
    time, row = 0, 0
    for size, run in itertools.groupby(sizes):
        steps = len(list(run))
        block = data.narrow(0, row, steps * size).view(steps, size, *rest)
        out.narrow(0, time, steps).narrow(1, 0, size).copy_(block)
        time, row = time + steps, row + steps * size
    lengths = torch.tensor([sum(size > i for size in sizes) for i in range(sizes[0])])
    return (out.transpose(0, 1) if batch_first else out), lengths


# Grouped matrix products run in every precision on a GPU; the shape rule that comes with torch knows bf16 only.


def _grouped_mm_shapes(a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor | None = None,
                       bias: torch.Tensor | None = None, out_dtype: torch.dtype | None = None) -> torch.Tensor:  # fmt: skip
    if a.dim() == 2 and b.dim() == 2:
        assert offs is not None
        sizes = [offs.shape[0], a.shape[0], b.shape[1]]
    else:
        sizes = [*a.shape[:-2], a.shape[-2], b.shape[-1]] if b.dim() == 3 else [a.shape[1], b.shape[1]]
    dtype = out_dtype or a.dtype
    aligned = 16 // dtype.itemsize
    row = -(-sizes[-1] // aligned) * aligned  # rows start at a multiple of 16 bytes
    strides = [sizes[1] * row, row, 1] if len(sizes) == 3 else [row, 1]
    return torch.empty_strided(sizes, strides, dtype=dtype, device=a.device)


_COMPOSITES: dict[str, Callable[..., Any]] = {
    "scaled_dot_product_attention": _attention,
    "dropout": _dropout,
    "group_norm": _group_norm,
    "softmax.int": partial(_softmax, aten._softmax), "log_softmax.int": partial(_softmax, aten._log_softmax),
    "batch_norm": _batch_norm,
    "lstm.input": partial(_rnn, _LSTM), "lstm.data": partial(_packed_rnn, _LSTM),
    "gru.input": partial(_rnn, _GRU), "gru.data": partial(_packed_rnn, _GRU),
    "rnn_tanh.input": partial(_rnn, _RNN_TANH), "rnn_tanh.data": partial(_packed_rnn, _RNN_TANH),
    "rnn_relu.input": partial(_rnn, _RNN_RELU), "rnn_relu.data": partial(_packed_rnn, _RNN_RELU),
    "_pad_packed_sequence": _pad_packed_sequence,
}  # fmt: skip


# Autocast: the op lists of CUDA (aten/src/ATen/autocast_mode.h), installed where a CPU tensor will meet them.

_TO_HALF = """_convolution conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d.input conv_transpose3d.input
    convolution prelu addmm addmv addr matmul einsum mm mv linalg_vecdot linear addbmm baddbmm bmm chain_matmul
    linalg_multi_dot _thnn_fused_lstm_cell _thnn_fused_gru_cell lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell
    scaled_dot_product_attention""".split()
_TO_FP16 = "lstm gru rnn_tanh rnn_relu".split()  # cuDNN's, whatever half type is asked for
_TO_FULL = """acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar
    pow.Tensor_Tensor pow.Scalar softplus layer_norm native_layer_norm rms_norm group_norm frobenius_norm.dim
    nuclear_norm nuclear_norm.dim cosine_similarity poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d
    hinge_embedding_loss kl_div l1_loss smooth_l1_loss huber_loss mse_loss margin_ranking_loss multilabel_margin_loss
    soft_margin_loss triplet_margin_loss multi_margin_loss binary_cross_entropy_with_logits dist pdist cdist renorm
    logsumexp upsample_nearest1d _upsample_nearest_exact1d upsample_nearest2d _upsample_nearest_exact2d
    upsample_nearest3d _upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d _upsample_bilinear2d_aa
    upsample_trilinear3d upsample_bicubic2d _upsample_bicubic2d_aa""".split()
_TO_FULL_UNLESS_ASKED = """prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm
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


def _follow_cuda_autocast(library: torch.library.Library) -> None:
    policies: dict[str, Any] = dict.fromkeys(_CPU_ONLY, torch.library.fallthrough_kernel)
    policies |= dict.fromkeys(_TO_FULL, _in_full) | dict.fromkeys(_TO_FULL_UNLESS_ASKED, _in_full_unless_asked)
    policies |= dict.fromkeys(_TO_WIDEST, _in_widest) | dict.fromkeys(_TO_HALF, _in_half)
    policies |= {f"{name}.{form}": _in_fp16 for name in _TO_FP16 for form in ("input", "data")}
    for name, policy in policies.items():
        packet, _, overload = name.partition(".")
        op = getattr(getattr(aten, packet, None), overload or "default", None)
        if op is not None:  # lists differ a little between torch versions
            kernel = policy if policy is torch.library.fallthrough_kernel else partial(policy, op)
            library.impl(name, kernel, "AutocastCPU", allow_override=True)
    clear = torch.clear_autocast_cache

    def clear_both() -> None:
        _half_weights.clear()
        clear()

    torch.clear_autocast_cache = clear_both
    enter = torch.autocast.__init__

    def enter_on_cpu(self: torch.autocast, device_type: str, *args: Any, **kwargs: Any) -> None:
        # The user's own autocast("cuda") means the device we stand in for, and half means fp16 there.
        if device_type == "cuda":
            device_type = "cpu"
            if not args and kwargs.get("dtype") is None:
                kwargs["dtype"] = torch.float16
        enter(self, device_type, *args, **kwargs)

    torch.autocast.__init__ = enter_on_cpu  # type: ignore[method-assign]


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


def _in_full_unless_asked(op: Any, *args: Any, **kwargs: Any) -> Any:
    first = args[0]
    asked = kwargs.get("dtype") is not None or any(isinstance(a, torch.dtype) for a in args)
    if not asked and _is_castable(first) and first.dtype != torch.float32:
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


def _formatted(tensor: torch.Tensor, spec: str) -> str:
    """As a tensor of its own class does it: models look experts up by f"expert_{index}"."""
    return format(tensor.item(), spec) if tensor.dim() == 0 else object.__format__(tensor, spec)


def _tensor_of_numbers(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """`torch.tensor` that, as on a GPU, reads the numbers out of a list of one-element tensors."""

    def tensor(data: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        if isinstance(data, list | tuple) and any(isinstance(value, FakeTensor) for value in data):
            data = [value.item() if isinstance(value, FakeTensor) else value for value in data]
        return make(data, *args, **kwargs)

    return tensor


def _skip_conversions_that_change_nothing() -> None:
    """A module may call `.to(dtype)` on its parts as it runs; torch cannot swap fake parameters that are in use."""
    convert = torch.nn.Module._apply

    def apply(
        self: torch.nn.Module, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True
    ) -> torch.nn.Module:
        own = [t for t in (*self._parameters.values(), *self._buffers.values()) if t is not None]
        with torch.no_grad():
            if not all(isinstance(t, FakeTensor) and fn(t) is t for t in own):
                return convert(self, fn, recurse)  # type: ignore[no-untyped-call,no-any-return]
        for child in self.children() if recurse else ():
            child._apply(fn)
        return self

    torch.nn.Module._apply = apply  # type: ignore[method-assign]


def _default_to_foreach() -> None:
    """Optimizers and gradient clipping choose their foreach form for tensors on a GPU; do so for ours."""
    devices = [*foreach_utils._get_foreach_kernels_supported_devices(), "cpu"]
    optimizer, averaging = (importlib.import_module(f"torch.optim.{name}") for name in ("optimizer", "swa_utils"))
    for module in (foreach_utils, optimizer, averaging):
        vars(module)["_get_foreach_kernels_supported_devices"] = lambda: list(devices)
    for module in (foreach_utils, optimizer):
        module._foreach_supported_types.append(FakeTensor)  # the lists hold exact types
