"""What comes out of a module for sizes that it was not run with, from those that it was."""

from __future__ import annotations

import pytest
import torch

from foretell.capture.script.calls import Result, extrapolated, result_of
from foretell.capture.script.placement import Placement


def _of(*shapes: tuple[int, ...], other: object = None) -> Result:
    result = result_of(Placement(), ([torch.zeros(shape) for shape in shapes], other))
    assert result is not None
    return result


@pytest.mark.parametrize(
    ("known", "sizes", "found"),
    [
        # logits of texts of several lengths, and a number
        ([((4, 7), _of((4, 7, 99), ())), ((4, 9), _of((4, 9, 99), ()))], (4, 8), (4, 8, 99)),
        ([((4, 7), _of((4, 7))), ((2, 9), _of((2, 9)))], (3, 5), (3, 5)),  # rows and lengths
        ([((4, 7), _of((4, 7))), ((4, 9), _of((4, 9)))], (3, 9), None),  # rows were the same so far
        ([((4, 7), _of((4, 3))), ((4, 9), _of((4, 4)))], (4, 11), None),  # a line needs more points,
        ([((i,), _of((i // 2,))) for i in (8, 10, 12, 14)], (20,), (10,)),  # as these
        ([((i,), _of((i // 2,))) for i in (8, 11, 13, 14)], (20,), None),
        ([((7, 7), _of((7,))), ((9, 9), _of((9,)))], (3, 5), None),  # with which of both it goes is not known
        ([((4, 7), _of((4, 7, 99)))], (4, 8), None),  # it may be anything
        ([((4, 7), _of((4, 7), other=object())), ((4, 9), _of((4, 9), other=object()))], (4, 8), (4, 8)),  # and a cache
    ],
)
def test_sides_are_those_that_go_in(
    known: list[tuple[tuple[float, ...], Result]], sizes: tuple[float, ...], found: tuple[int, ...] | None
) -> None:
    result = extrapolated(known, sizes)
    assert (None if result is None else result.sizes) == found
