"""Families of operators that a profile has factors for."""

from __future__ import annotations

from typing import Final, get_args

from foretell.graph import Signature
from foretell.graph.operators import Family, operator_of

# Of operators; a convolution in groups, or of each channel alone, runs other kernels than a dense one, and each of them others
# where channels lie side by side: families of their own.
_CONVOLUTIONS: Final = ("convolution", "convolution_backward")
_GROUPED, _DEPTHWISE = (tuple(f"{sort}_{name}" for name in _CONVOLUTIONS) for sort in ("grouped", "depthwise"))
_LAST: Final = "channels_last_"


def _last(families: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{_LAST}{name}" for name in families)


FAMILIES: Final[tuple[str, ...]] = (
    *get_args(Family), *_GROUPED, *_DEPTHWISE, *_last((*_CONVOLUTIONS, *_GROUPED, *_DEPTHWISE)),
)  # fmt: skip
KINDS: Final = {
    "convolutions": (*_CONVOLUTIONS, *_last(_CONVOLUTIONS)),
    "grouped convolutions": _GROUPED,
    "grouped convolutions, channels last": _last(_GROUPED),
    "depthwise convolutions": _DEPTHWISE,
    "depthwise convolutions, channels last": _last(_DEPTHWISE),
    "products": ("matmul", "attention", "attention_backward", "rnn"),
    "streams": ("copy", "elementwise", "foreach", "fused", "index", "norm", "norm_backward", "pooling", "reduction"),
}
ARITHMETIC: Final = frozenset(family for kind in KINDS if kind != "streams" for family in KINDS[kind])


def family_of(signature: Signature) -> str:
    """The family an op counts to in a profile."""
    family = operator_of(signature.name).family
    if family not in _CONVOLUTIONS:
        return family
    layout = _LAST if any(x.is_channels_last for x in signature.inputs) else ""
    if signature.argument("groups", 1) == 1:
        return layout + family
    weight = signature.tensor("weight")
    return f"{layout}{'depthwise' if weight is not None and weight.shape[1] == 1 else 'grouped'}_{family}"


def plain(family: str) -> str:
    """Whose factor counts where a profile has none for convolutions with channels side by side."""
    return family.removeprefix(_LAST)
