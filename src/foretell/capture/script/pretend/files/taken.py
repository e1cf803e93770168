"""How a caller takes what it is given: apart into names, or by its length."""

from __future__ import annotations

import bisect
import dis
import itertools
import types


def unpacked(frame: types.FrameType) -> int | None:
    """Into how many names the caller takes a value apart."""
    at = _instructions(frame.f_code).get(frame.f_lasti)
    return at[0].arg if at and at[0].opname.startswith("UNPACK_SEQUENCE") else None


def stored(frame: types.FrameType) -> list[str]:
    """Names that the caller gives to the parts of what it takes apart."""
    every = [i for i in dis.get_instructions(frame.f_code) if frame.f_lasti < i.offset]
    stores = itertools.takewhile(lambda i: i.opname.startswith(("STORE_", "LOAD_", "CACHE", "EXTENDED")), every)
    return [str(i.argval) for i in stores if i.opname.startswith("STORE_")]


def compared(frame: types.FrameType) -> int | None:
    """The number that the caller compares a length with."""
    at = _instructions(frame.f_code).get(frame.f_lasti, [])
    names = [i.opname for i in at[1:3]]
    if len(names) == 2 and names[0] == "LOAD_CONST" and names[1] == "COMPARE_OP" and isinstance(at[1].argval, int):
        return int(at[1].argval) + int(at[2].argval == ">")
    return None


_KNOWN: dict[types.CodeType, dict[int, list[dis.Instruction]]] = {}


def _instructions(code: types.CodeType) -> dict[int, list[dis.Instruction]]:
    """Each instruction of a function by its place, with the two after it."""
    if code not in _KNOWN:
        every = list(dis.get_instructions(code))
        listed = [i for i in every if i.opname not in ("CACHE", "PRECALL", "EXTENDED_ARG")]
        offsets = [i.offset for i in listed]
        # A call begins with an instruction of its own, at which a quickened one may stay.
        starts = {i.offset: bisect.bisect_left(offsets, i.offset) for i in every}
        _KNOWN[code] = {offset: listed[n : n + 3] for offset, n in starts.items()}
    return _KNOWN[code]
