"""One table of operator facts: what an operator is and how it runs, looked up by its exact name.

Whoever wants to know what an operator is asks here: `operator_of("aten.mm")`. One that is not in the table is
elementwise: it launches a kernel, reads its inputs once and writes its outputs once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Generic, Literal, TypeVar

F = TypeVar("F", bound=Callable[..., object])

Family = Literal[
    "attention", "attention_backward", "convolution", "convolution_backward", "copy", "elementwise", "foreach", "index", "matmul",
    "norm", "norm_backward", "pooling", "reduction", "rnn", "fused",
]  # fmt: skip
Reads = Literal["inputs", "what it returns", "no tensor", "one per row", "as declared"]
OPAQUE: Final = "foretell.opaque"  # whose overloads are what users declared, by name
FUSED: Final = "foretell.fused"  # a kernel that torch's compiler writes; its overloads are kinds of kernels
ENTERED: Final = "foretell.compiled"  # a compiled function is called: its guards, its inputs; no kernel
LAUNCHED_BY: Final = "launched_by"  # argument of ops that compiled code runs: "code", or a CUDA "graph"
FIRST_VERSION: Final = "first_version"  # argument of attention by the first FlashAttention
PIECE_BY_PIECE: Final = "piece_by_piece"  # argument of attention that meets the keys of one rank after another
ATTENTION: Final = ("flash", "efficient", "cudnn")  # kinds that are one kernel for scores, softmax and values


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    name: str  # `aten.mm`, of all its overloads
    family: Family = "elementwise"  # operators whose cost follows from the same numbers
    kind: str = ""  # within its family, where that matters
    launches: bool = True  # False: the host alone has work
    waits: bool = False  # the host needs the result before it goes on
    reads: Reads = "inputs"  # "no tensor": it takes one for its shape alone; "one per row": of the values it is given
    by_cudnn: bool = False
    weighs: bool = False  # what it reads are parameters even where they are frozen, not buffers
    of_an_engine: bool = False  # a kernel of Transformer Engine or Apex, not torch's
    like: str = ""  # an operator that takes as long with the same tensors, for models that have not seen this one

    @property
    def walks_a_list(self) -> bool:
        """The tensors of a whole model: foreach operators and fused optimizers."""
        return self.family == "foreach"

    @property
    def is_attention(self) -> bool:
        """Forward or backward, without projections around it."""
        return self.kind in ATTENTION and self.family in ("attention", "attention_backward")


_TABLE: Final[dict[str, Operator]] = {}


def flash_can_run(*, head_dim: int, value_dim: int, queries: int, keys: int, is_causal: bool, has_mask: bool) -> bool:
    """What FlashAttention takes, by torch's `sdp_utils.cpp`: the one rule for captures and for devices."""
    square_if_causal = not is_causal or queries == keys
    return not has_mask and head_dim == value_dim <= 256 and square_if_causal


@lru_cache(maxsize=1 << 12)
def operator_of(name: str) -> Operator:
    """What is known of an operator, by the name of its signatures."""
    return _TABLE.get(name) or Operator(name=name)


def register(operator: Operator) -> None:
    """Add an operator to the table; one that is there already is an error."""
    if operator.name in _TABLE:
        raise ValueError(f"{operator.name} is registered already, as {_TABLE[operator.name].family}")
    _TABLE[operator.name] = operator
    operator_of.cache_clear()


def names_of(family: Family, *kinds: str) -> tuple[str, ...]:
    """The operators of a family, or of some kinds in it."""
    return tuple(op.name for op in _TABLE.values() if op.family == family and (not kinds or op.kind in kinds))


class Registry(Generic[F]):
    """Functions by the operator or family they are for, registered with a decorator; registering twice is an error."""

    def __init__(self, what: str) -> None:
        self.what = what  # `a FLOP formula`
        self.functions: dict[str, F] = {}

    def __call__(self, *names: str) -> Callable[[F], F]:
        def register(function: F) -> F:
            for name in names:
                if name in self.functions:
                    raise ValueError(f"{self.what} for {name} is registered already")
                self.functions[name] = function
            return function

        return register

    def get(self, name: str) -> F | None:
        return self.functions.get(name)


_FAMILIES: Final[tuple[tuple[Family, str, str], ...]] = (
    ("matmul", "product", "mm bmm _int_mm _scaled_mm mv dot"),
    ("matmul", "added", "addmm baddbmm addbmm _addmm_activation addmv"),  # to what comes first
    ("matmul", "grouped", "_grouped_mm _scaled_grouped_mm"),
    ("convolution", "", "convolution _convolution cudnn_convolution conv1d conv2d conv3d"),
    ("convolution_backward", "", "convolution_backward"),
    *(("attention", kind, f"_scaled_dot_product_{kind}_attention") for kind in ATTENTION),
    *(("attention_backward", kind, f"_scaled_dot_product_{kind}_attention_backward") for kind in ATTENTION),
    ("attention", "projected", "_native_multi_head_attention _transformer_encoder_layer_fwd"),
    ("rnn", "forward", "_cudnn_rnn"),
    ("rnn", "backward", "_cudnn_rnn_backward"),
    ("norm", "layer", "native_layer_norm"),
    ("norm", "group", "native_group_norm"),
    ("norm", "rms", "_fused_rms_norm"),
    ("norm", "batch", """native_batch_norm cudnn_batch_norm _native_batch_norm_legit batch_norm_with_update
        _batch_norm_with_update batch_norm_stats batch_norm_elemt batch_norm_backward_reduce batch_norm_backward_elemt"""),
    ("norm_backward", "layer", "native_layer_norm_backward"),
    ("norm_backward", "group", "native_group_norm_backward"),
    ("norm_backward", "rms", "_fused_rms_norm_backward"),
    ("norm_backward", "batch", "native_batch_norm_backward cudnn_batch_norm_backward batch_norm_backward"),
    ("reduction", "", """sum mean amax amin max min var var_mean std norm linalg_vector_norm prod argmax argmin any all logsumexp
        _softmax _log_softmax _safe_softmax _softmax_backward_data _log_softmax_backward_data nll_loss_forward
        nll_loss_backward nll_loss2d_forward nll_loss2d_backward sort topk median"""),
    ("reduction", "scan", "cumsum cumprod logcumsumexp"),  # along the innermost side by all threads, along another by one each
    ("index", "", """embedding embedding_dense_backward index index_put index_put_ _index_put_impl_ index_select index_add
        index_add_ gather scatter scatter_ scatter_add scatter_add_ _embedding_bag _embedding_bag_forward_only
        _embedding_bag_dense_backward _unsafe_index masked_select nonzero masked_scatter index_copy index_copy_ take
        _unsafe_index_put index_fill index_fill_ roll flip repeat_interleave bincount searchsorted unique _unique2 unique_consecutive"""),
    ("pooling", "", """max_pool2d_with_indices max_pool2d_with_indices_backward avg_pool2d avg_pool2d_backward
        _adaptive_avg_pool2d _adaptive_avg_pool2d_backward adaptive_max_pool2d adaptive_max_pool2d_backward
        max_pool3d_with_indices max_pool3d_with_indices_backward avg_pool3d avg_pool3d_backward _adaptive_avg_pool3d
        _adaptive_avg_pool3d_backward upsample_nearest2d upsample_nearest2d_backward upsample_trilinear3d upsample_nearest1d
        upsample_nearest3d upsample_nearest1d_backward upsample_nearest3d_backward upsample_linear1d im2col col2im
        grid_sampler_2d grid_sampler_2d_backward _upsample_nearest_exact2d _upsample_bilinear2d_aa _upsample_bicubic2d_aa
        _upsample_bilinear2d_aa_backward _upsample_bicubic2d_aa_backward pixel_shuffle pixel_unshuffle reflection_pad2d
        reflection_pad2d_backward replication_pad2d replication_pad2d_backward"""),
    ("pooling", "plane by plane", "upsample_bilinear2d upsample_bicubic2d"),  # one thread for each place in a plane
    ("pooling", "adds up", """upsample_linear1d_backward upsample_bilinear2d_backward upsample_bicubic2d_backward
        upsample_trilinear3d_backward"""),  # gradients of several places to one
    ("copy", "", """clone _to_copy copy_ copy cat stack constant_pad_nd slice_backward select_backward contiguous
        split_with_sizes_copy narrow_copy repeat tile expand_copy permute_copy unfold_backward diagonal_backward tril triu tril_
        triu_ zeros ones full zeros_like ones_like full_like fill_ zero_ new_zeros new_ones new_full arange"""),
    ("foreach", "", """_foreach_abs _foreach_acos _foreach_add _foreach_addcdiv _foreach_addcmul _foreach_asin _foreach_atan
        _foreach_ceil _foreach_clamp_max _foreach_clamp_min _foreach_copy _foreach_cos _foreach_cosh _foreach_div _foreach_erf
        _foreach_erfc _foreach_exp _foreach_expm1 _foreach_floor _foreach_frac _foreach_lerp _foreach_lgamma _foreach_log
        _foreach_log10 _foreach_log1p _foreach_log2 _foreach_maximum _foreach_minimum _foreach_mul _foreach_neg _foreach_pow
        _foreach_reciprocal _foreach_round _foreach_rsqrt _foreach_sigmoid _foreach_sign _foreach_sin _foreach_sinh
        _foreach_sqrt _foreach_sub _foreach_tan _foreach_tanh _foreach_trunc _foreach_zero _foreach_abs_ _foreach_acos_
        _foreach_add_ _foreach_addcdiv_ _foreach_addcmul_ _foreach_asin_ _foreach_atan_ _foreach_ceil_ _foreach_clamp_max_
        _foreach_clamp_min_ _foreach_copy_ _foreach_cos_ _foreach_cosh_ _foreach_div_ _foreach_erf_ _foreach_erfc_ _foreach_exp_
        _foreach_expm1_ _foreach_floor_ _foreach_frac_ _foreach_lerp_ _foreach_lgamma_ _foreach_log_ _foreach_log10_
        _foreach_log1p_ _foreach_log2_ _foreach_maximum_ _foreach_minimum_ _foreach_mul_ _foreach_neg_ _foreach_pow_
        _foreach_reciprocal_ _foreach_round_ _foreach_rsqrt_ _foreach_sigmoid_ _foreach_sign_ _foreach_sin_ _foreach_sinh_
        _foreach_sqrt_ _foreach_sub_ _foreach_tan_ _foreach_tanh_ _foreach_trunc_ _foreach_zero_ _foreach_clone _foreach_max
        _foreach_mm _foreach_norm _foreach_powsum _amp_foreach_non_finite_check_and_unscale
        _amp_foreach_non_finite_check_and_unscale_"""),
    ("foreach", "optimizer", """_fused_adagrad _fused_adagrad_ _fused_adam _fused_adam_ _fused_adamw _fused_adamw_ _fused_sgd
        _fused_sgd_"""),
    ("elementwise", "", """linear rand_like randn_like empty empty_like empty_strided new_empty new_empty_strided lift_fresh set_
        resize_ _local_scalar_dense is_same_size sym_size _reshape_alias as_strided_ _indices _values is_coalesced _nnz
        _sparse_coo_tensor_with_dims_and_tensors"""),
)  # fmt: skip
_NO_KERNEL: Final = """empty empty_like empty_strided new_empty new_empty_strided lift_fresh set_ resize_ _local_scalar_dense
    is_same_size sym_size _reshape_alias as_strided_ _indices _values is_coalesced _nnz
    _sparse_coo_tensor_with_dims_and_tensors""".split()
_WAITS: Final = "_local_scalar_dense nonzero masked_select _unique2 unique_consecutive".split()
_BY_CUDNN: Final = "cudnn_convolution cudnn_batch_norm cudnn_batch_norm_backward _cudnn_rnn _cudnn_rnn_backward".split()
_WEIGHS: Final = """mm addmm convolution embedding linear _grouped_mm native_layer_norm native_group_norm
    _fused_rms_norm""".split()
_LIKE: Final = {"_scaled_mm": "aten.mm", "_scaled_grouped_mm": "aten._grouped_mm"}
_READS: Final[dict[str, Reads]] = {
    **dict.fromkeys("embedding index index_select gather _unsafe_index _embedding_bag".split(), "what it returns"),
    **dict.fromkeys("new_zeros new_ones new_full zeros_like ones_like full_like rand_like randn_like".split(), "no tensor"),
    **dict.fromkeys("nll_loss_forward nll_loss_backward nll_loss2d_forward nll_loss2d_backward".split(), "one per row"),
}  # fmt: skip
# Kernels of fused trainers, which move their tensors once.
_FUSED: Final = {
    "rotary": "mul", "gated_backward": "silu_backward", "cross_entropy_backward": "_to_copy", "dropout_add": "native_dropout",
    "compiled_cross_entropy_backward": "_to_copy", "fp8_cast": "_to_copy",
}  # fmt: skip

for _fused, _like in _FUSED.items():
    register(
        Operator(
            name=f"foretell.{_fused}",
            family="copy" if _like == "_to_copy" else "elementwise",
            like=f"aten.{_like}",
            of_an_engine=True,
        )
    )
# Those that are written for the order in which their tensors lie: a stream of as many bytes.
_STREAMS: Final = """permute_rows unpermute_rows sum_rows weighted_gate weighted_gated_backward latent_queries latent_keys
    latent_keys_backward""".split()
for _name in _STREAMS:
    register(Operator(name=f"foretell.{_name}", family="copy", kind="stream", like="aten.clone", of_an_engine=True))
for _family, _kind, _names in _FAMILIES:
    for _name in _names.split():
        register(
            Operator(
                name=f"aten.{_name}",
                family=_family,
                kind=_kind,
                launches=_name not in _NO_KERNEL,
                waits=_name in _WAITS,
                reads=_READS.get(_name, "inputs"),
                by_cudnn=_name in _BY_CUDNN,
                weighs=_name in _WEIGHS,
                like=_LIKE.get(_name, ""),
            )
        )
for _name in ("dequantize_4bit", "dequantize_blockwise"):
    register(Operator(name=f"bitsandbytes.{_name}", weighs=True))
for _name in ("addmm", "baddbmm", "addbmm"):  # in place
    register(Operator(name=f"aten.{_name}_", family="matmul", kind="added", like=f"aten.{_name}"))
register(Operator(name=OPAQUE, reads="as declared"))
register(Operator(name=FUSED, family="fused", reads="as declared"))
register(Operator(name=ENTERED, launches=False))
register(Operator(name="foretell.host_update", launches=False))  # an optimizer's op that the host runs
