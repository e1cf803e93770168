"""Hostile changes to bytes and to what JSON or TOML hold."""

from __future__ import annotations

import random
import re
from copy import deepcopy
from typing import Any

NUMBERS = (
    0,
    1,
    -1,
    2,
    3,
    7,
    255,
    -128,
    10**6,
    2**31 - 1,
    2**31,
    2**53 + 1,
    2**63 - 1,
    -(2**63),
    2**64,
    10**30,
    10**400,
)
VALUES = (
    *NUMBERS, 0.0, -0.5, 1.5, 1e308, 1e-320, float("nan"), float("inf"), -float("inf"), True, False, None, "", "x", "a.b.c", "\x1b[31m",
    "\ud800", "²", "9" * 5000, "🦆", "../../etc/passwd", "<script>alert(1)</script>", "%s%n", [], {}, [[]], {"a": 1}, {"input": 0},
    {"input": 10**9}, {"input": -1}, {"float": "nan"}, {"float": "x"}, [0] * 50, [1, -1], "." * 300, [None], ["x"],
)  # fmt: skip


def damaged(rng: random.Random, data: bytes) -> bytes:
    """Bits flipped, bytes overwritten, cut out, doubled or put in."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5))):
        if not changed:
            break
        at, length = rng.randrange(len(changed)), rng.choice((1, 2, 8, 64))
        match rng.randrange(6):
            case 0:
                changed[at] ^= 1 << rng.randrange(8)
            case 1:
                changed[at : at + length] = rng.randbytes(length)
            case 2:
                del changed[at : at + length]
            case 3:
                changed[at:at] = changed[at : at + length]
            case 4:
                changed[at:at] = rng.randbytes(length)
            case _:
                del changed[at:]
    return bytes(changed)


def places(value: Any, most: int = 4000) -> list[tuple[Any, Any]]:
    """Every place in nested lists and dicts, as what holds it and its key."""
    found: list[tuple[Any, Any]] = []
    waiting = [value]
    while waiting and len(found) < most:
        holder = waiting.pop()
        keys = holder if isinstance(holder, dict) else range(len(holder)) if isinstance(holder, list) else ()
        for key in list(keys):
            found.append((holder, key))
            waiting.append(holder[key])
    return found


def change(rng: random.Random, value: Any) -> None:
    """One change somewhere inside nested lists and dicts, in place: mostly at a place picked by its top-level field."""
    if isinstance(value, dict) and value and rng.random() < 0.6:
        field = rng.choice(list(value))
        found = [(value, field), *places(value[field])] if rng.random() < 0.8 else [(value, field)]
    else:
        found = places(value)
    if not found:
        return
    holder, key = rng.choice(found)
    match rng.randrange(8):
        case 0:
            del holder[key]
        case 1 if isinstance(holder, list):
            holder.insert(key, deepcopy(holder[key]))
        case 2 if isinstance(holder, list) and len(holder) > 1:
            other = rng.randrange(len(holder))
            holder[key], holder[other] = holder[other], holder[key]
        case 3 if isinstance(holder[key], int):
            holder[key] += rng.choice((-1, 1, 2, -2, 100))
        case 4:
            holder[key] = deepcopy(holder[rng.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))])
        case 5:
            holder[key] = [holder[key]]
        case _:
            holder[key] = deepcopy(rng.choice(VALUES))  # a later change must not reach the next case


_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)( .+)")  # `4.8 TB/s`


def scale(rng: random.Random, value: Any) -> None:
    """A number somewhere inside, with its unit, becomes far larger or smaller: what it says can be read, and cannot be."""
    found = [
        (holder, key)
        for holder, key in places(value)
        if type(holder[key]) in (int, float) or (isinstance(holder[key], str) and _QUANTITY.fullmatch(holder[key]))
    ]
    if not found:
        return
    holder, key = rng.choice(found)
    by, old = 10.0 ** rng.choice((-12, -6, -3, -1, 1, 3, 6, 9, 12)), holder[key]
    if isinstance(old, str):
        number, unit = _QUANTITY.fullmatch(old).groups()  # type: ignore[union-attr]
        holder[key] = f"{float(number) * by:g}{unit}"
    else:
        holder[key] = type(old)(min(min(old, 10**18) * by, 1e18))
