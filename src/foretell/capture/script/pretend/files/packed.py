"""Files that are not on this machine and are compressed, or have a format of their own: MNIST's, flows, texts of a known length."""

from __future__ import annotations

import bz2
import functools
import gzip
import lzma
import os
import re
import struct
from collections.abc import Callable
from typing import Final

PACKERS: Final[dict[str, Callable[[bytes], bytes]]] = {
    ".gz": functools.partial(gzip.compress, compresslevel=1, mtime=0),
    ".bz2": functools.partial(bz2.compress, compresslevel=1),
    ".xz": functools.partial(lzma.compress, preset=0),
}
_MEGABYTES: Final = 120  # of a text that is repeated, a little less each, for those that are compressed for a prize
PRIZE: Final = re.compile(r"enwik8|text8")
IDX: Final = re.compile(r"idx([13])[-._]ubyte")  # MNIST's and its like


def packer_of(path: str) -> Callable[[bytes], bytes] | None:
    """What compresses a single file as the ending of its name says."""
    return None if ".tar" in os.path.basename(path) else PACKERS.get(os.path.splitext(path)[1].lower())


def times_of(path: str) -> int:
    """How often a text of a megabyte is repeated; compressed parts in a row are one file."""
    return _MEGABYTES if PRIZE.search(os.path.basename(path)) else 1


@functools.cache
def digits(pictures: bool, count: int) -> bytes:
    """A file of MNIST's format: a mark, sizes, and a byte for each number."""
    if pictures:
        return struct.pack(">4i", 0x803, count, 28, 28) + bytes(count * 28 * 28)
    return struct.pack(">2i", 0x801, count) + bytes(i % 10 for i in range(count))


@functools.cache
def _flow(width: int, height: int) -> bytes:
    """As Middlebury's: a mark, sizes, and two numbers for each point."""
    return struct.pack("<f2i", 202021.25, width, height) + bytes(width * height * 8)


@functools.cache
def _float_map(width: int, height: int) -> bytes:
    """A portable map of one number for each point, as of depth."""
    return f"Pf\n{width} {height}\n-1.0\n".encode() + struct.pack("<f", 1.0) * (width * height)


FLOWS: Final[dict[str, Callable[[int, int], bytes]]] = {".flo": _flow, ".pfm": _float_map}
