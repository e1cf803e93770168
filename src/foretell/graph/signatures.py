"""What a call of an operator looks like: which tensors it takes and makes, and of which rank.

Prices, memory and plans rely on it, so a graph file in which a product has one operand is not read. The tables have what
somebody relies on, not every operator there is; what an operator's family asks holds beside what is asked of it by name.
In a pattern, inputs come first and outputs after `->`:

    mk      two sides, however long
    nc.     two sides or more
    *       any tensor
    A       any tensor; where it comes again, it has the same shape
    #       any tensor with as many sides as the first input
    ..      more tensors may follow, or none; inputs may always
    query:bhqd    the tensor that is given by this argument
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from foretell.graph.operators import FUSED, OPAQUE, Family, Operator, operator_of
from foretell.graph.types import Input, Layout, Signature, Value

_PATTERNS: Final[dict[str, str]] = {
    "mm _int_mm _scaled_mm": "mk kn -> mn",
    "bmm": "bmk bkn -> bmn",
    "mv": "mk k -> m",
    "dot": "k k -> *",
    "addmm addmm_ _addmm_activation": "* mk kn -> mn",
    "addmv": "* mk k -> m",
    "baddbmm baddbmm_": "* bmk bkn -> bmn",
    "addbmm addbmm_": "* bmk bkn -> mn",
    "_grouped_mm _scaled_grouped_mm": "mk gkn -> mn | mk kn * -> gmn | gmk kn -> mn | gmk gkn -> gmn",
    "_native_multi_head_attention _transformer_encoder_layer_fwd": "bld -> * ..",
    "embedding": "vd * -> *",
    "embedding_dense_backward": "* * -> vd",
    "_log_softmax _softmax cumsum": "A -> A",
    "_log_softmax_backward_data _softmax_backward_data": "A A -> A",
    "sort topk": "* -> # #",
    "nll_loss_backward nll_loss2d_backward": "* A * -> A",
    "native_layer_norm": "A -> A # #",
    "_fused_rms_norm": "A -> A #",
    "native_group_norm": "nc. -> # ng ng",
    "native_batch_norm": "nc. -> # x. y.",
    "cudnn_batch_norm": "nc. -> # x. y. z.",
    "cat stack slice_backward select_backward": "* -> s.",
    "index index_select gather scatter index_put index_add roll upsample_bilinear2d": "* -> *",
    "max_pool2d": "* -> * ..",
    "_to_copy clone": "* -> *",
}
_OF_ENGINES: Final = {  # kernels of fused trainers
    "rotary gated_backward cross_entropy_backward compiled_cross_entropy_backward dropout_add fp8_cast": "* -> ..",
    "permute_rows unpermute_rows sum_rows weighted_gate latent_queries latent_keys": "* -> ..",
    "weighted_gated_backward": "* * -> ..",
    "latent_keys_backward": "ab. -> ..",
}
_OF_FAMILY: Final[Mapping[Family, str]] = {
    "attention": "query:bhqd key:bgsd value:bgse -> * ..",
    "attention_backward": "query:bhqd key:bgsd value:bgse -> * ..",
    "convolution": "nc. oik. -> ab.",
    "convolution_backward": "ab. nc. oik. -> ..",
    "copy": ".. -> * ..",
    "index": "* -> ..",
    "norm": "x. -> * ..",
    "norm_backward": "x. y. -> ..",
    "pooling": "x. -> y. ..",
    "reduction": "* -> * ..",
    "rnn": "sb. -> ..",
}
_REDUCES: Final = "sum mean amax amin var_mean var max linalg_vector_norm argmax".split()
# Arguments that formulas compute with: a whole number of at least 1, where they are given.
_COUNTS: Final[Mapping[Family, Sequence[str]]] = {
    "attention": ("num_head", "num_heads"),
    "convolution": ("groups",),
    "convolution_backward": ("groups",),
    "norm": ("group",),
    "norm_backward": ("group",),
    "rnn": ("hidden_size", "num_layers"),
}
# What an op says of itself, since nobody looks into it: numbers of at least 0.
_DECLARED: Final[Mapping[str, Sequence[str]]] = {
    OPAQUE: ("flops", "traffic"),
    FUSED: ("traffic", "elements", "reduced", "operations", "accesses", "apart"),
}
Pattern = tuple[tuple[str, ...], tuple[str, ...]]


def check_signature(s: Signature) -> None:
    """Raise ValueError where an operator could not have been called so."""
    operator = operator_of(s.name)
    for patterns in (_BY_NAME.get(s.name), _of_family(operator)):
        if patterns and all(_differs(s, pattern) for pattern in patterns):
            raise ValueError(f"{s.target} is called with {_shown(s.inputs)} and makes {_shown(s.outputs)}")
    for name in _COUNTS.get(operator.family, ()):
        value = s.argument(name, 1)
        if type(value) is not int or not 1 <= value < 2**31:
            raise ValueError(f"{s.target} has {name} {value!r}, not a whole number of at least 1")
    if s.name in _REDUCING:
        _check_reduction(s)
    for name in _DECLARED.get(s.name, ()):
        value = s.argument(name)
        if type(value) not in (int, float) or not 0 <= value < 1e30:  # type: ignore[operator]
            raise ValueError(f"{s.target} is declared with {name} {value!r}, not a number of at least 0")
    if operator.family == "rnn" and (hidden := s.tensor("hx")) is not None and len(hidden.shape) != 3:
        raise ValueError(f"{s.target} starts from a state of shape {hidden.shape}")
    if operator.family in ("convolution", "convolution_backward"):
        _check_convolution(s, backward=operator.family == "convolution_backward")


def _check_convolution(s: Signature, *, backward: bool) -> None:
    """Images have as many sides as the weight, or one less where there is a single one."""
    images, weight = ((s.inputs[:2], s.inputs[2]) if backward else ((s.inputs[0], s.outputs[0]), s.inputs[1]))  # fmt: skip
    if any(len(weight.shape) - len(x.shape) not in (0, 1) for x in images):
        raise ValueError(f"{s.target} is called with {_shown(s.inputs)} and makes {_shown(s.outputs)}")
    mask = s.argument("output_mask", (True, True, True))
    if not isinstance(mask, tuple) or len(mask) != 3:
        raise ValueError(f"{s.target} is asked for {mask!r}, not for three gradients")


def _check_reduction(s: Signature) -> None:
    """What is reduced is gone or has length 1."""
    if len(s.inputs) > 1:
        return  # the larger of two, say
    rank, dims = len(s.inputs[0].shape), s.argument("dim")
    named = {d for d in _items(dims) if type(d) is int}
    if any(not -max(rank, 1) <= d < max(rank, 1) for d in named):
        raise ValueError(f"{s.target} reduces {dims!r} of {rank} sides")
    gone = len({d % rank for d in named}) if rank and named else rank
    if any(len(out.shape) not in (rank, rank - gone) for out in s.outputs):
        raise ValueError(f"{s.target} of {_shown(s.inputs)} makes {_shown(s.outputs)}")


def _items(value: Value) -> Sequence[Value]:
    return value if isinstance(value, tuple) else (value,)


def _differs(s: Signature, pattern: Pattern) -> bool:
    known: dict[str, object] = {"#": len(s.inputs[0].shape) if s.inputs else None}
    inputs, outputs = pattern
    return not (_fit(s, s.inputs, inputs, known, open_ended=True) and _fit(s, s.outputs, outputs, known))


def _fit(
    s: Signature, layouts: Sequence[Layout], tokens: Sequence[str], known: dict[str, object], open_ended: bool = False
) -> bool:
    if tokens and tokens[-1] == "..":
        tokens, open_ended = tokens[:-1], True
    named = [token for token in tokens if ":" in token]
    if named:
        return all(_fits_named(s, token, known) for token in named)
    if len(layouts) < len(tokens) or (len(layouts) > len(tokens) and not open_ended):
        return False
    return all(_fits(layout.shape, token, known) for layout, token in zip(layouts, tokens, strict=False))


def _fits_named(s: Signature, token: str, known: dict[str, object]) -> bool:
    name, _, sides = token.partition(":")
    value = s.argument(name)
    return isinstance(value, Input) and _fits(s.inputs[value.index].shape, sides, known)


def _fits(shape: tuple[int, ...], token: str, known: dict[str, object]) -> bool:
    if token == "*":
        return True
    if token == "#":
        return len(shape) == known["#"]
    if token.isupper():
        return known.setdefault(token, shape) == shape
    sides = token.removesuffix(".")
    return len(shape) == len(sides) or (len(shape) > len(sides) and sides != token)


def _shown(layouts: Sequence[Layout]) -> str:
    shown = ", ".join(f"{x.shape}" for x in layouts[:6]) + ", …" * (len(layouts) > 6)
    return shown or "no tensor"


def _parsed(text: str) -> tuple[Pattern, ...]:
    def tokens(part: str) -> tuple[str, ...]:
        return tuple(part.split())

    return tuple((tokens(ins), tokens(outs)) for ins, _, outs in (p.partition("->") for p in text.split("|")))


_BY_NAME: Final = {
    f"{package}.{name}": _parsed(text)
    for package, patterns in (("aten", _PATTERNS), ("foretell", _OF_ENGINES))
    for names, text in patterns.items()
    for name in names.split()
}
_BY_FAMILY: Final = {family: _parsed(text) for family, text in _OF_FAMILY.items()}
_REDUCING: Final = frozenset(f"aten.{name}" for name in _REDUCES)


def _of_family(operator: Operator) -> tuple[Pattern, ...]:
    """None for attention with its projections: it is not given queries and keys, but what they are made of."""
    return () if operator.kind == "projected" else _BY_FAMILY.get(operator.family, ())
