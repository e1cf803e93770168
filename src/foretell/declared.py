"""Operations that a capture cannot look into, with what they cost as the user declares it: `foretell.opaque`."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from foretell.errors import InputError, check_number

Amount = float | Callable[..., float]
_PATH: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
_MAX_AMOUNT: Final = 1e30

DECLARED: Final[dict[str, Opaque]] = {}  # by the path of a function, in this process
_stands_in: Callable[[Opaque, tuple[Any, ...], dict[str, Any]], Any] | None = None  # set where a step is captured


@dataclass(frozen=True, slots=True, kw_only=True)
class Opaque:
    """What a function costs: numbers, or functions of its arguments."""

    name: str
    outputs: Callable[..., Any] | None  # makes tensors of the right shapes; None: one like the first that is given
    flops: Amount  # on matrix units
    traffic: Amount | None  # bytes read and written; None: every tensor once
    backward_flops: Amount | None  # None: twice the forward's


def opaque(
    function: Callable[..., Any] | str | None = None,
    *,
    outputs: Callable[..., Any] | None = None,
    flops: Amount = 0.0,
    traffic: Amount | None = None,
    backward_flops: Amount | None = None,
    name: str | None = None,
) -> Any:
    """Declare the cost and the output shapes of a CUDA extension, a Triton kernel or whatever cannot run without a GPU.

    Gradients have the shapes of what they belong to. Outside of captures the function is what it was.

    Args:
        function: The function that calls it, as a decorator; or the path of one, like "package.kernels.scan".
        outputs: Gets the function's arguments and returns empty tensors as it would.
        flops: On matrix units: a number, or a function of the arguments; `backward_flops` of its gradient.
        traffic: Bytes read and written, likewise; None: every tensor once.
        name: Of the op; None: the function's.

    Returns:
        The function, or a decorator.

    Raises:
        InputError: A negative amount, or outputs that are no function.

    Examples:
        >>> @foretell.opaque(flops=lambda x: 2 * x.numel())
        ... def scan(x):
        ...     return x.cumsum(0)
    """
    for what, amount in (("flops", flops), ("traffic", traffic), ("backward_flops", backward_flops)):
        if amount is not None and not callable(amount):
            check_number(
                what, amount, "at least 0, or a function of the arguments", InputError, least=0.0, most=_MAX_AMOUNT
            )
    if outputs is not None and not callable(outputs):
        raise InputError(
            f"outputs of an opaque operation must be a function, got {outputs!r}. Let it return empty tensors: "
            "outputs=lambda x: torch.empty_like(x)."
        )

    def declared(called: str) -> Opaque:
        return Opaque(name=name or called, outputs=outputs, flops=flops, traffic=traffic, backward_flops=backward_flops)

    if isinstance(function, str):
        if not _PATH.fullmatch(function):
            raise InputError(f"{function!r} is no path of a function. Write it as 'package.module.function'.")
        DECLARED[function] = declared(function.rpartition(".")[2])
        return None
    if function is None:
        return lambda given: _wrapped(given, declared(getattr(given, "__name__", "opaque")))
    if not callable(function):
        raise InputError(f"an opaque operation is a function or the path of one, got {function!r}.")
    return _wrapped(function, declared(getattr(function, "__name__", "opaque")))


def stand_in(run: Callable[[Opaque, tuple[Any, ...], dict[str, Any]], Any]) -> None:
    """From now on, in this process, declared operations are run by this."""
    global _stands_in
    _stands_in = run


def _wrapped(function: Callable[..., Any], declared: Opaque) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs) if _stands_in is None else _stands_in(declared, args, kwargs)

    return call
