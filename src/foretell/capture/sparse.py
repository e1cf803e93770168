"""Sparse tensors, taken apart into the dense ops that a GPU runs for them: gradients of embeddings, and matrices.

A sparse tensor is row numbers and the rows. Fake ones lose count of their rows when they are copied, and pricing knows dense
ops; so what is done to one is done to its parts. Equal rows are summed as CUDA does it: sorted, made unique, added up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from foretell.capture.opaque import launch

aten = torch.ops.aten
Rewrite = Callable[..., Any]
_REWRITES: dict[Any, Rewrite] = {}


def rewritten(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], Any] | None:
    """An op on sparse tensors, or one that makes them, in the form in which it is recorded; None for all others."""
    if func is aten._embedding_bag_backward.default:
        sparse = kwargs.get("sparse", args[9] if len(args) > 9 else False)
        return (lambda: _bag_gradient(*args)) if sparse else None
    if func in _LEFT or not any(_is_sparse(a) for a in args):
        return None
    in_place = func is aten.add_.Tensor and _is_sparse(args[0])  # which a fake one cannot grow by
    if func in _REWRITES and not in_place:
        return lambda: _REWRITES[func](*args, **kwargs)
    raise NotImplementedError(f"{func} on sparse tensors")  # it is run for real, on a few samples


def keep_numbers(x: Tensor, numbers: Tensor) -> None:
    """Of a tensor that was made of these: their contents may be known, and from them how many rows are equal."""
    setattr(x, _NUMBERS, numbers)


def _rewrites(*funcs: Any) -> Callable[[Rewrite], Rewrite]:
    def register(rewrite: Rewrite) -> Rewrite:
        _REWRITES.update(dict.fromkeys(funcs, rewrite))
        return rewrite

    return register


_NUMBERS = "_foretell_numbers"
MAKES = aten._sparse_coo_tensor_with_dims_and_tensors.default
# What asks for a part, or for a fact.
_LEFT = frozenset((
    MAKES, aten._indices.default, aten._values.default, aten.is_coalesced.default, aten._nnz.default, aten.detach.default,
    aten.sparse_dim.default, aten.dense_dim.default, aten._coalesced_.default, aten.sym_size.default,
))  # fmt: skip


def _is_sparse(value: Any) -> bool:
    return isinstance(value, Tensor) and value.layout is torch.sparse_coo


def _parts(x: Tensor) -> tuple[Tensor, Tensor]:
    numbers = getattr(x, _NUMBERS, None)
    return aten._indices.default(x) if numbers is None else numbers, aten._values.default(x)


def made(size: Any, numbers: Tensor, values: Tensor, *, unique: bool = False) -> Any:
    """A sparse tensor of `values`, each a row or a number, at these places."""
    sides = numbers.shape[0]
    tensor = MAKES(sides, values.dim() - 1, list(size), numbers, values, dtype=values.dtype, layout=torch.sparse_coo,
                   device=values.device, is_coalesced=unique)  # fmt: skip
    keep_numbers(tensor, numbers)
    return tensor


@_rewrites(aten.clone.default)
def _cloned(x: Tensor, **_: Any) -> Any:
    numbers, rows = _parts(x)
    return made(x.shape, numbers.clone(), rows.clone(), unique=x.is_coalesced())


@_rewrites(aten._coalesce.default)
def _coalesced(x: Tensor) -> Any:
    numbers, rows = _parts(x)
    ordered, _ = numbers[0].sort()
    unique = torch.unique_consecutive(ordered)
    added = rows.new_empty((unique.shape[0], *rows.shape[1:])).index_add_(0, ordered, rows)
    return made(x.shape, unique[None], added, unique=True)


@_rewrites(aten.sparse_mask.default)
def _masked(dense: Tensor, mask: Tensor) -> Any:
    numbers, _ = _parts(mask)
    return made(mask.shape, numbers, dense.index_select(0, numbers[0]), unique=mask.is_coalesced())


@_rewrites(aten.add_.Tensor)
def _added_to(dense: Tensor, x: Tensor, *, alpha: float = 1) -> Any:
    numbers, rows = _parts(x)
    return dense.index_add_(0, numbers[0], rows, alpha=alpha)


@_rewrites(aten.add.Tensor)
def _joined(first: Tensor, second: Tensor) -> Any:
    """Of accumulated gradients: one's rows after the other's."""
    (a, x), (b, y) = _parts(first), _parts(second)
    return made(first.shape, torch.cat([a, b], 1), torch.cat([x, y]))


def _bag_gradient(grad: Tensor, numbers: Tensor, offsets: Tensor, bags: Tensor, sizes: Tensor, *rest: Any) -> Any:
    """A row for every number that was looked up: that of its bag, divided where the bag was averaged."""
    _, count, _, mode, *_ = rest
    if bags.shape != numbers.shape:  # a CPU does not always make them; a GPU does
        bags = torch.zeros_like(numbers)
    rows = grad.index_select(0, bags)
    if mode == 1:
        rows = rows.div_(sizes.index_select(0, bags)[:, None])
    return made((count, *grad.shape[1:]), numbers[None], rows)


# Sparse matrices, as graphs are written: a number for each edge.


@_rewrites(aten.transpose.int, aten.t.default)
def _turned(x: Tensor, *sides: int) -> Any:
    numbers, values = _parts(x)
    return made((x.shape[1], x.shape[0]), numbers.flip(0), values)


@_rewrites(aten.mm.default)
def _product(matrix: Tensor, dense: Tensor) -> Any:
    """One kernel, which reads a row of the dense one for each number that is there."""
    if not _is_sparse(matrix):  # the other way round
        return _product(_turned(dense), matrix.t()).t()
    numbers, values = _parts(matrix)
    out = dense.new_empty(matrix.shape[0], dense.shape[1])
    traffic = values.shape[0] * (2 * numbers.element_size() + (1 + dense.shape[1]) * dense.element_size()) + out.nbytes
    launch("sparse_product", [numbers, values, dense], [out], 0.0, float(traffic))
    return out


@_rewrites(aten.addmm.default, aten._sparse_addmm.default)
def _product_added(added: Tensor, matrix: Tensor, dense: Tensor, *, beta: float = 1, alpha: float = 1) -> Any:
    product = _product(matrix, dense)
    return product.add_(added, alpha=beta) if beta else product  # as torch.sparse.mm calls it: with zeros, by 0
