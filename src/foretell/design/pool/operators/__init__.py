"""The operators of the pool: each function is a SOURCE, `foretell.design.pool.operators:convolution`, its settings a shape."""

from foretell.design.pool.operators.elements import cast, copy, elementwise, loss, reduction, softmax
from foretell.design.pool.operators.layers import embedding, indexing, interpolation, norm, optimizer, pooling, sorting
from foretell.design.pool.operators.products import attention, convolution, grouped_matmul, linear, matmul, recurrent

__all__ = [
    "attention", "cast", "convolution", "copy", "elementwise", "embedding", "grouped_matmul", "indexing", "interpolation",
    "linear", "loss", "matmul", "norm", "optimizer", "pooling", "recurrent", "reduction", "softmax", "sorting",
]  # fmt: skip
