"""Units: SI inside the program; this room parses what people write and prints what people read."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TypeAlias

from foretell.errors import InputError, check_number

Seconds: TypeAlias = float
Bytes: TypeAlias = int
BytesPerSecond: TypeAlias = float
Flops: TypeAlias = float
FlopsPerSecond: TypeAlias = float
Dollars: TypeAlias = float

KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40

_DECIMAL = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
_PREFIXES = _DECIMAL | _BINARY
_BYTES = {"": 1.0} | _BINARY | {f"{prefix}B": factor for prefix, factor in _PREFIXES.items()}
_BANDWIDTH = {
    f"{prefix}{unit}": factor * each
    for prefix, factor in _PREFIXES.items()
    for unit, each in (("B/s", 1.0), ("bit/s", 0.125))
}
_FLOPS = {f"{prefix}FLOP/s": factor for prefix, factor in _DECIMAL.items()}
_TIME = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_QUANTITY = re.compile(r"\s*([0-9]+(?:_[0-9]+)*(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?)\s*([^\s0-9_.].*?)?\s*")
_MAX_MAGNITUDE = 1e30  # of any unit
_DIGITS = re.compile(r"[0-9]{1,18}")


def whole_number(text: str) -> int | None:
    """What digits say, at most 18 of them; None where it is no number. `²` is a digit to Python, which then cannot read it."""
    return int(text) if _DIGITS.fullmatch(text) else None


def parse_bytes(text: str | int) -> Bytes:
    """Read `80 GiB`, `141 GB` or a plain number of bytes."""
    return round(_parse(text, _BYTES, "size", "80 GiB", "B, KB, MB, GB, TB or KiB, MiB, GiB, TiB"))


def parse_bandwidth(text: str | float) -> BytesPerSecond:
    """Read `4.8 TB/s`, `400 Gbit/s` or a plain number of bytes per second."""
    return _parse(text, _BANDWIDTH, "bandwidth", "400 Gbit/s", "GB/s, TB/s, Gbit/s, …")


def parse_flops(text: str | float) -> FlopsPerSecond:
    """Read `989 TFLOP/s` (dense) or a plain number of operations per second."""
    return _parse(text, _FLOPS, "rate", "989 TFLOP/s", "GFLOP/s, TFLOP/s or PFLOP/s")


def parse_seconds(text: str | float) -> Seconds:
    """Read `36h`, `4.5 us` or a plain number of seconds."""
    return _parse(text, {"": 1.0} | _TIME, "duration", "36h", ", ".join(_TIME))


def _parse(text: str | float, units: Mapping[str, float], what: str, example: str, allowed: str) -> float:
    if not isinstance(text, str):
        check_number(what, text, f"a number of at least 0, or text like {example!r}", InputError, most=_MAX_MAGNITUDE)
        return float(text)
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise InputError(f"{what} {text!r} is not a number with a unit. Write it like {example!r}.")
    unit = match[2] or ""
    if unit not in units:
        raise InputError(f"{what} {text!r} has the unknown unit {unit!r}. Use {allowed}.")
    value = float(match[1].replace("_", "")) * units[unit]
    if value > _MAX_MAGNITUDE:
        raise InputError(f"{what} {text!r} is more than there is. Write it like {example!r}.")
    return value


def _scaled(value: float, units: tuple[tuple[float, str], ...]) -> str:
    for scale, unit in units:
        if abs(value) >= scale:
            return f"{value / scale:.3g} {unit}" if abs(value / scale) < 1000 else f"{value / scale:,.0f} {unit}"
    return f"0 {units[-1][1]}" if value == 0 else f"{value / units[-1][0]:.2g} {units[-1][1]}"


def show_bytes(value: float) -> str:
    """`22.8 GiB`: memory is read in binary units, as every GPU tool prints it."""
    return _scaled(value, ((TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB"), (1, "B")))


def show_seconds(value: Seconds) -> str:
    return _scaled(value, ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")))


def show_flops(value: Flops) -> str:
    return _scaled(value, ((1e15, "PFLOP"), (1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP"), (1, "FLOP")))


def show_bandwidth(value: BytesPerSecond) -> str:
    return _scaled(value, ((1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s"), (1, "B/s")))


def show_count(value: float) -> str:
    return _scaled(value, ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k"), (1, ""))).strip()


def show_rate(per_second: float) -> str:
    return f"{per_second:,.0f}" if per_second >= 100 else f"{per_second:.3g}"


def show_dollars(dollars: Dollars) -> str:
    if dollars == 0:
        return "$0"
    if dollars >= 0.1:
        return f"${dollars:,.0f}" if dollars >= 1000 else f"${dollars:,.2f}"
    return f"${dollars:.2g}" if dollars >= 1e-4 else f"${dollars:.1e}"


def show_kwh(kwh: float) -> str:
    return f"{kwh:,.0f} kWh" if kwh >= 100 else f"{kwh:.3g} kWh"


def show_share(share: float) -> str:
    return "< 1 %" if 0 < share < 0.01 else f"{share:.0%}".replace("%", " %")


def or_dash(value: float | None, show: Callable[[float], str]) -> str:
    """A dash stands for what is not known."""
    return "–" if value is None else show(value)
