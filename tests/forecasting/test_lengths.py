"""Sequences of many lengths: padded batches, times between, the longest batch's memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretell.errors import InputError
from foretell.forecasting.lengths import Lengths, varied

MANY = Lengths(tokens=(60, 200, 500), counts=(6, 3, 1))


def test_lengths_are_read_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("60,6\n200,3\n500\n")
    assert Lengths.read(tmp_path / "a.csv") == MANY
    (tmp_path / "b.csv").write_text("long\n")
    with pytest.raises(InputError, match="has no lengths"):
        Lengths.read(tmp_path / "b.csv")
    with pytest.raises(InputError, match="at least 1"):
        Lengths(tokens=(0,), counts=(1,))


def test_batches_are_padded_to_their_longest() -> None:
    one, many = MANY.batches(1), MANY.batches(32)
    assert set(one) == {64, 200, 504}
    assert sum(many) / len(many) > 480  # a long one is in most
    assert max(MANY.batches(4, longest=256)) == 256


def test_times_follow_the_lengths() -> None:
    found = varied("hf/gpt2", "h100-sxm", MANY, settings={"batch": "2", "layers": "1"}, model="roofline")
    steps = found.quantiles
    assert steps["5%"] <= steps["50%"] <= steps["95%"] <= steps["longest"]
    assert steps["5%"] < found.mean < steps["longest"]
    assert found.longest == 504
    assert found.worst.graph.samples == 2
    assert 0 < found.padding < 1
    with pytest.raises(InputError, match="--set batch=8"):
        varied("hf/gpt2", "h100-sxm", MANY)
    for batch in ("x", "0", "²", "99999999"):
        with pytest.raises(InputError, match="batch must be a whole number from 1 to 16,384"):
            varied("hf/gpt2", "h100-sxm", MANY, settings={"batch": batch})
