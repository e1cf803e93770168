"""What a program does with the result of a call that it makes: whether it takes it apart, hands it on or drops it."""

from __future__ import annotations

import dis
from bisect import bisect_right
from functools import cache
from types import CodeType
from typing import Any


def after_the_call(frame: Any) -> str:
    """The instruction after the call that a frame makes, with its argument."""
    offsets, instructions = _instructions(frame.f_code)
    at = bisect_right(offsets, frame.f_lasti)  # which is in the call or in its caches
    return instructions[at] if at < len(instructions) else ""


@cache
def _instructions(code: CodeType) -> tuple[list[int], list[str]]:
    found = [i for i in dis.get_instructions(code) if i.opname != "EXTENDED_ARG"]
    words = [f"{i.opname} {i.argval if i.opname == 'LOAD_CONST' else i.arg}" for i in found]
    return [i.offset for i in found], words
