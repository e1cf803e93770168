"""How an operator that reads parts of tensors is sharded: a rule for each, registered by its name.

An operator without a rule is taken to work element by element, if shapes allow it. A rule answers with a `Cut`, None
(whole) or PARTIAL for every output; an op that cannot work on parts raises `CannotShard`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from foretell.graph import Layout, Signature
from foretell.graph.operators import ATTENTION, names_of
from foretell.parallel.sharding.cut import PARTIAL, CannotShard, Cut, Partial

Cuts = Sequence[Cut | None]  # of what an op reads
Outputs = list[Cut | Partial | None]
Rule = Callable[[Signature, Cuts], Outputs]
_RULES: Final[dict[str, Rule]] = {}
# What mixtures of experts do with rows: order them, count them, pick some, put them back.
_ROUTES: Final = frozenset(
    ("aten.index", "aten.gather", "aten.scatter", "aten.index_put", "aten.index_put_", "aten._index_put_impl_",
     "aten.index_select", "aten.index_add", "aten.index_add_", "aten.scatter_add", "aten.scatter_", "aten.sort",
     "aten.argsort", "aten.topk", "aten.cumsum", "aten.histc", "aten.bincount", "aten.one_hot", "aten.new_zeros",
     "aten.new_empty", "aten.zeros_like", "aten._grouped_mm", "aten.scatter_add_", "foretell.permute_rows",
     "foretell.unpermute_rows", "foretell.sum_rows")
)  # fmt: skip
_WHOLE_ONLY: Final = (
    "aten.convolution", "aten.convolution_backward", "aten.index", "aten.gather", "aten.scatter", "aten.index_put",
    "aten.index_select", "aten.index_add", "aten.scatter_add", "aten.roll", "aten.upsample_bilinear2d",
    "foretell.permute_rows", "foretell.unpermute_rows", "foretell.sum_rows",
)  # fmt: skip


def shards(*names: str) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        for name in names:
            if name in _RULES:
                raise ValueError(f"{name} has a rule already")
            _RULES[name] = rule
        return rule

    return register


def cuts_of_outputs(signature: Signature, cuts: Cuts) -> Outputs:
    return _RULES.get(signature.name, elementwise)(signature, cuts)


def cuts_of_routing(signature: Signature, cuts: Cuts) -> Outputs | None:
    """Of ranks that route the rows they have among themselves alone; None: it is no routing.

    What has as many rows is cut as they are, what has none is made by each for itself, like counts.
    """
    if signature.name not in _ROUTES:
        return None
    given = [(c, layout.shape) for c, layout in zip(cuts, signature.inputs, strict=True) if c is not None]
    summed = signature.name == "aten._grouped_mm" and len(signature.outputs[0].shape) == 3  # gradients of experts
    return [PARTIAL if summed else _rows_alike(given, layout.shape) for layout in signature.outputs]


def _rows_alike(given: Sequence[tuple[Cut, Sequence[int]]], made: Sequence[int]) -> Cut | None:
    """Rows of something read, the last of which are indices; or a table of other length with rows of equal width."""
    for cut, shape in reversed(given):
        if cut.dim < len(made) and made[cut.dim] == shape[cut.dim]:
            return cut
    for cut, shape in given:
        width = shape[cut.dim + 1 :]  # numbers alone of another length are no rows: counts, say
        if width and cut.dim < len(made) == len(shape) and made[cut.dim + 1 :] == width:
            return cut
    return None


def has_rule(name: str) -> bool:
    return name in _RULES


def elementwise(signature: Signature, cuts: Cuts) -> Outputs:
    out: Outputs = []
    for layout in signature.outputs:
        rank = len(layout.shape)
        found: Cut | None = None
        for source, cut in zip(signature.inputs, cuts, strict=True):
            if cut is None:
                continue
            dim = cut.dim + rank - len(source.shape)
            if dim < 0 or source.shape[cut.dim] != layout.shape[dim]:
                raise CannotShard(f"{signature.name} changes the shape {source.shape}")
            moved = cut._replace(dim=dim)
            if found is not None and (found.dim, found.outer) != (moved.dim, moved.outer):
                raise CannotShard(f"{signature.name} meets two different cuts")
            found = moved
        if found is not None:
            _check_no_whole_one(signature, cuts, found, rank)
        out.append(found)
    return out


def _check_no_whole_one(signature: Signature, cuts: Cuts, found: Cut, rank: int) -> None:
    for source, cut in zip(signature.inputs, cuts, strict=True):
        dim = found.dim - (rank - len(source.shape))
        if cut is None and dim >= 0 and source.shape[dim] != 1 and source.strides[dim]:  # not one row for all
            raise CannotShard(f"{signature.name} meets a whole tensor of shape {source.shape}")


@shards("aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm")
def product(signature: Signature, cuts: Cuts) -> Outputs:
    """(…, m, k) × (…, k, n): a cut of m, n or the batch stays, a cut of k leaves every rank with a term of the sum."""
    first, second = cuts[-2:]
    rank = len(signature.outputs[0].shape)
    m, n = rank - 2, rank - 1
    summed = [c is not None and c.dim == dim for c, dim in ((first, n), (second, m))]
    if summed[0] != summed[1]:
        raise CannotShard(f"{signature.name} sums over a cut that only one operand has")
    if summed[0]:
        return [PARTIAL]
    kept = [c for c in (first, second) if c is not None]
    if len({c.dim for c in kept}) > 1:
        raise CannotShard(f"{signature.name} meets two different cuts")
    return [kept[0] if kept else None]


@shards("aten.embedding")
def embedding(signature: Signature, cuts: Cuts) -> Outputs:
    table, index = cuts[:2]
    if table is not None:
        return [PARTIAL if table.dim == 0 else Cut(len(signature.outputs[0].shape) - 1)]
    return [index]


@shards("aten._grouped_mm")
def grouped_product(signature: Signature, cuts: Cuts) -> Outputs:
    """Rows × an expert's matrix for each group of rows, or, for its gradient, columns × rows of each group.

    Cut by experts, rows come whole, sent here by others. Cut inside of experts, it is a product like others.
    """
    first, second, ends = (*cuts, None)[:3]
    made = len(signature.outputs[0].shape)
    if made == 3:  # (k, rows) × (rows, n) → (experts, k, n)
        if (first and first.dim == 1) or (second and second.dim == 0):
            raise CannotShard("a grouped product needs whole rows")
        kept = [Cut(0)] if ends else []
        kept += [c._replace(dim=c.dim + 1) for c in (first, second) if c is not None]
    else:  # (rows, k) × (experts, k, n) → (rows, n)
        if first and first.dim == 0:
            raise CannotShard("a grouped product needs whole rows")
        if (first is not None) != (second is not None and second.dim == 1):
            raise CannotShard(f"{signature.name} sums over a cut that only one operand has")
        if first is not None:
            return [PARTIAL]
        kept = [second._replace(dim=1)] if second is not None and second.dim == 2 else []
    if len(kept) > 1:
        raise CannotShard(f"{signature.name} meets two different cuts")
    return [kept[0] if kept else None]


@shards("foretell.weighted_gate")
def weighted_gate(signature: Signature, cuts: Cuts) -> Outputs:
    """Gate and up, side by side or apart, and a weight for each row → what is opened."""
    cut = cuts[0]
    if cut is None or cut.dim > 0:
        _check_whole_rows(cuts[1:], signature)
    return [cut if cut is None or cut.dim == 0 else cut._replace(outer=1)]


def _check_whole_rows(cuts: Cuts, signature: Signature) -> None:
    if any(c is not None and c.dim == 0 for c in cuts):
        raise CannotShard(f"{signature.name} needs a weight for each row")


@shards("foretell.weighted_gated_backward")
def weighted_gated_backward(signature: Signature, cuts: Cuts) -> Outputs:
    """A row's weight has a term of its gradient from each feature."""
    features = [(i, x) for i, x in enumerate(signature.outputs) if x.shape[-1:] != (1,) and len(x.shape) > 1]
    if any(1 + i >= len(cuts) for i, _ in features):
        raise CannotShard(f"{signature.name} makes more gradients of features than it has features")
    columns = cuts[0] is not None and cuts[0].dim > 0
    if columns or cuts[0] is None:
        _check_whole_rows(cuts[1:], signature)
    made: Outputs = [PARTIAL if columns else cuts[0] for _ in signature.outputs]
    for i, _ in features:
        made[i] = cuts[1 + i]
    return made


@shards("foretell.latent_keys_backward")
def latent_keys_backward(signature: Signature, cuts: Cuts) -> Outputs:
    """Gradients of keys and values; that of the positions, which all heads share, is a sum over heads."""
    cut = cuts[0]
    heads = cut is not None and cut.dim == 1
    count = signature.inputs[0].shape[1:2]
    return [cut if x.shape[1:2] == count else PARTIAL if heads else cut for x in signature.outputs]


@shards("aten.embedding_dense_backward")
def embedding_backward(signature: Signature, cuts: Cuts) -> Outputs:
    return [PARTIAL if any(c is not None for c in cuts) else None]


@shards("aten.sum", "aten.mean")
def total(signature: Signature, cuts: Cuts) -> Outputs:
    return _reduced(signature, cuts, linear=True)


@shards("aten.amax", "aten.amin", "aten.var_mean", "aten.var", "aten.max", "aten.linalg_vector_norm", "aten.argmax")
def other_reduction(signature: Signature, cuts: Cuts) -> Outputs:
    return _reduced(signature, cuts, linear=False)


def _reduced(signature: Signature, cuts: Cuts, *, linear: bool) -> Outputs:
    cut = cuts[0]
    if cut is None:
        return [None for _ in signature.outputs]
    rank = len(signature.inputs[0].shape)
    named = signature.argument("dim")
    dims = named if isinstance(named, tuple) else (named,) if isinstance(named, int) else tuple(range(rank))
    gone = {d % rank for d in dims if isinstance(d, int)} or set(range(rank))
    if cut.dim in gone:
        if linear:
            return [PARTIAL for _ in signature.outputs]
        raise CannotShard(f"{signature.name} needs the whole of a dimension that is cut")
    keeps = len(signature.outputs[0].shape) == rank
    dim = cut.dim if keeps else cut.dim - sum(d < cut.dim for d in gone)
    return [cut._replace(dim=dim) for _ in signature.outputs]


@shards("aten._softmax", "aten._softmax_backward_data", "aten.cumsum", "aten.sort", "aten.topk")
def along_one_dimension(signature: Signature, cuts: Cuts) -> Outputs:
    rank = len(signature.outputs[0].shape)
    dim = signature.argument("dim", -1)
    if any(c is not None and isinstance(dim, int) and c.dim == dim % rank for c in cuts):
        raise CannotShard(f"{signature.name} needs the whole of a dimension that is cut")
    return elementwise(signature, cuts)


@shards("aten._log_softmax", "aten._log_softmax_backward_data")
def log_softmax(signature: Signature, cuts: Cuts) -> Outputs:
    """A cut of the classes stays: ranks exchange a maximum and a sum per row, which the pass adds."""
    return [next((c for c in cuts if c is not None), None)]


@shards("aten.nll_loss_forward", "aten.nll_loss2d_forward")
def loss(signature: Signature, cuts: Cuts) -> Outputs:
    """Cut by classes, the target's logit is known to one rank, which the pass has it send; cut by rows, it is a sum."""
    by_rows = cuts[0] is not None and cuts[0].dim == 0
    return [PARTIAL if by_rows else None for _ in signature.outputs]


@shards("aten.nll_loss_backward", "aten.nll_loss2d_backward")
def loss_backward(signature: Signature, cuts: Cuts) -> Outputs:
    return [next((c for c in cuts if c is not None), None)]


@shards(
    "aten.native_layer_norm",
    "aten._fused_rms_norm",
    "aten.native_group_norm",
    "aten.native_batch_norm",
    "aten.cudnn_batch_norm",
)
def norm(signature: Signature, cuts: Cuts) -> Outputs:
    return [_outside(signature, cuts[0], layout) for layout in signature.outputs]


@shards("aten.native_layer_norm_backward", "aten._fused_rms_norm_backward")
def norm_backward(signature: Signature, cuts: Cuts) -> Outputs:
    cut = next((c for c in cuts if c is not None), None)
    whole = len(signature.inputs[0].shape)
    return [
        _outside(signature, cut, layout) if len(layout.shape) == whole else PARTIAL if cut is not None else None
        for layout in signature.outputs
    ]


def _outside(signature: Signature, cut: Cut | None, layout: Layout) -> Cut | None:
    """Normalised dimensions come last and must be whole."""
    if cut is None:
        return None
    normalised = signature.argument("normalized_shape")
    count = len(normalised) if isinstance(normalised, tuple) else len(signature.inputs[0].shape) - 1
    if cut.dim >= len(signature.inputs[0].shape) - count:
        raise CannotShard(f"{signature.name} needs the whole of a dimension that is cut")
    return cut


@shards(*names_of("attention", *ATTENTION), *names_of("attention_backward", *ATTENTION))
def attention(signature: Signature, cuts: Cuts) -> Outputs:
    """(batch, heads, sequence, size): batch and heads can be cut, if queries, keys and values are."""
    given = [
        c for c, layout in zip(cuts, signature.inputs, strict=True) if len(layout.shape) == 4 and layout.shape[1] > 1
    ]
    if len({c.dim if c else None for c in given}) > 1:
        raise CannotShard("attention meets queries, keys and values that are cut differently")
    cut = next((c for c in given if c), None)
    if cut is not None and not (cut.dim < 2 or (cut.dim == 2 and cut.tokens)):  # cut along the sequence, keys go round
        raise CannotShard("attention needs whole heads")
    of_shape = {layout.shape: c for c, layout in zip(cuts, signature.inputs, strict=True) if c is not None}
    return [of_shape.get(layout.shape, cut) if len(layout.shape) > 2 else None for layout in signature.outputs]


@shards("aten.cat", "aten.stack")
def joined(signature: Signature, cuts: Cuts) -> Outputs:
    if all(c is None for c in cuts):
        return [None]
    rank = len(signature.outputs[0].shape)
    dim = signature.argument("dim", 0)
    at = dim % rank if isinstance(dim, int) else 0
    # What is empty has no parts: caches of keys and values start with a tensor of nothing.
    given = [c for c, layout in zip(cuts, signature.inputs, strict=True) if 0 not in layout.shape]
    first = given[0] if given else None
    if first is None or any(c is None or c.dim != first.dim for c in given):
        raise CannotShard(f"{signature.name} joins parts and whole tensors")
    if signature.name == "aten.stack":
        return [first._replace(dim=first.dim + (at <= first.dim))]
    return [first._replace(outer=1) if first.dim == at else first]


@shards("aten.slice_backward", "aten.select_backward")
def put_back(signature: Signature, cuts: Cuts) -> Outputs:
    cut = cuts[0]
    if cut is None:
        return [None]
    rank = len(signature.outputs[0].shape)
    dim = signature.argument("dim", 0)
    at = dim % rank if isinstance(dim, int) else 0
    if signature.name == "aten.select_backward":
        return [cut._replace(dim=cut.dim + (at <= cut.dim))]
    return [cut._replace(outer=1) if cut.dim == at else cut]


@shards(*_WHOLE_ONLY)
def whole_only(signature: Signature, cuts: Cuts) -> Outputs:
    if any(c is not None for c in cuts):
        raise CannotShard(f"{signature.name} needs whole tensors")
    return [None for _ in signature.outputs]
