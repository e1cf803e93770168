"""Recurrent layers: what is said of one of more sequences is no less than of fewer."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretell.cost.model import load_model
from foretell.cost.recurrent import by_sequences, never_less
from foretell.graph import Layout, Signature
from foretell.hardware import device

_HIDDEN = 512


def lstm(sequences: int, *, batch_first: bool = True) -> Signature:
    """Two layers, as torch calls them."""
    sides = (sequences, 256) if batch_first else (256, sequences)
    x, state = (Layout.contiguous(shape, "float32") for shape in ((*sides, _HIDDEN), (2, sequences, _HIDDEN)))
    weights = Layout.contiguous((4 * _HIDDEN, _HIDDEN), "float32")
    kept = Layout.contiguous((sequences * 1000,), "uint8")
    named = {"hidden_size": _HIDDEN, "num_layers": 2, "mode": 2, "batch_first": batch_first}
    return Signature(
        "aten._cudnn_rnn.default", (x, *[weights] * 4, state, state), (x, state, state, kept), tuple(named.items())
    )


@pytest.mark.parametrize("batch_first", [True, False])
def test_a_layer_of_other_sequences_is_as_one_that_was_captured(batch_first: bool) -> None:
    series = by_sequences(lstm(40, batch_first=batch_first))
    counts = [s.inputs[-1].shape[1] for s in series]
    assert counts == sorted({3, 4, 6, 8, 12, 16, 24, 32, 40, 48, 64, 96, 128, 192, 256, 384, 512})
    assert series == [lstm(count, batch_first=batch_first) for count in counts]


def test_packed_sequences_are_left_as_they_are() -> None:
    x = Layout.contiguous((900, 64), "float32")
    packed = Signature("aten._cudnn_rnn.default", (x,), (x,), ())
    assert by_sequences(packed) == [packed]


@given(st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=20))
def test_none_is_less_than_those_before(seconds: list[float]) -> None:
    found = [never_less(seconds, own) for own in range(len(seconds))]
    assert all(b >= a * (1 - 1e-9) for a, b in itertools.pairwise(found))
    assert math.isclose(math.prod(found), math.prod(seconds), rel_tol=1e-6)
    assert [never_less(sorted(seconds), i) for i in range(len(seconds))] == pytest.approx(sorted(seconds))


@pytest.mark.parametrize("name", ["h200", "h100-sxm", "b200"])
@pytest.mark.parametrize("tf32", [False, True])
def test_a_learned_layer_takes_no_less_for_more_sequences(name: str, tf32: bool) -> None:
    model, board = load_model(), device(name)
    asked = [lstm(count) for count in (8, 16, 24, 32, 40, 48, 64, 96, 128)]
    learned = model._learn(asked, board, tf32)
    seconds = [learned[signature].seconds for signature in asked]
    assert all(b >= 0.98 * a for a, b in itertools.pairwise(seconds)), seconds
