"""What people write is read, what is shown can be read back, and a wrong unit says what is allowed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretell.errors import InputError
from foretell.units import (
    GIB,
    parse_bandwidth,
    parse_bytes,
    parse_flops,
    parse_seconds,
    show_bandwidth,
    show_bytes,
    show_count,
    show_seconds,
    whole_number,
)


@pytest.mark.parametrize(
    ("text", "nbytes"), [("80 GiB", 80 * GIB), ("141 GB", 141 * 10**9), ("512 B", 512), ("1.5KiB", 1536), (7, 7)]
)
def test_sizes_are_read(text: str | int, nbytes: int) -> None:
    assert parse_bytes(text) == nbytes


def test_a_whole_number_is_digits() -> None:
    read = {"8": 8, "008": 8, "²": None, "٣": None, "-1": None, "1e3": None, "": None, "9" * 19: None}
    assert {text: whole_number(text) for text in read} == read


def test_rates_and_durations_are_read() -> None:
    assert parse_bandwidth("400 Gbit/s") == 50e9
    assert parse_bandwidth("4.8 TB/s") == 4.8e12
    assert parse_flops("989.4 TFLOP/s") == 989.4e12
    assert parse_seconds("36h") == 36 * 3600
    assert parse_seconds("10m") == parse_seconds("10min") == 600
    assert parse_seconds("4.5 us") == pytest.approx(4.5e-6)


@pytest.mark.parametrize(
    ("parse", "text"),
    [(parse_bytes, "80 gigs"), (parse_bandwidth, "5 GB"), (parse_flops, "989 TF"), (parse_seconds, "3 weeks")],
)
def test_a_wrong_unit_says_what_is_allowed(parse: object, text: str) -> None:
    with pytest.raises(InputError, match="Use"):
        parse(text)  # type: ignore[operator]
    with pytest.raises(InputError, match="Write it like"):
        parse("much")  # type: ignore[operator]


@pytest.mark.parametrize(
    "wrong",
    ["1..2s", "1.2.3", "1e999", "inf", "nan", "-1s", "1__0s", "_", "", float("inf"), float("nan"), -5, True, None, []],
)
def test_what_is_no_quantity_is_bad_input(wrong: Any) -> None:
    for parse in (parse_seconds, parse_bytes):
        with pytest.raises(InputError, match=r"(?s)(duration|size) .*like"):
            parse(wrong)


def test_durations_are_shown_in_their_own_unit() -> None:
    assert show_seconds(0.1083) == "108 ms"
    assert show_seconds(90) == "1.5 min"
    assert show_seconds(173) == "2.88 min"
    assert show_seconds(2 * 3600) == "2 h"
    assert show_seconds(3 * 86400) == "3 d"
    assert show_seconds(0) == "0 ns"
    assert show_count(1_500_000) == "1.5 M"


@given(st.floats(min_value=1e-9, max_value=1e7))
def test_a_shown_duration_reads_back_the_same(seconds: float) -> None:
    assert parse_seconds(show_seconds(seconds).replace(",", "")) == pytest.approx(seconds, rel=0.006)


@given(st.integers(min_value=1, max_value=2**45))
def test_a_shown_size_reads_back_the_same(nbytes: int) -> None:
    assert parse_bytes(show_bytes(nbytes).replace(",", "")) == pytest.approx(nbytes, rel=0.006, abs=1)


@given(st.floats(min_value=1.0, max_value=9e14))
def test_a_shown_bandwidth_reads_back_the_same(rate: float) -> None:
    assert parse_bandwidth(show_bandwidth(rate).replace(",", "")) == pytest.approx(rate, rel=0.006)
