"""Data sets of the script's own that have too few samples, since what stands in for their files has: the next run gives them more."""

from __future__ import annotations

import linecache
import math
import re
from typing import Any, Final

from torch.utils.data import random_split

from foretell.capture.reads import is_library
from foretell.capture.script.batches import name_of
from foretell.capture.script.ended import Ended
from foretell.capture.script.guesses import Guesses
from foretell.capture.script.unread import frames_in

SAMPLES: Final = "samples of data sets that have too few"  # what the guess about them is called
LENGTHS: Final = "samples that loaders have found"  # by data set
LARGEST: Final = 2**22
_TIMES: Final = 64  # as many, where nothing says how many there must be
# A trainer that looks at something every so many batches, of which there are fewer.
_INTERVAL: Final = re.compile(r"\((\d+)\) must be less than or equal to [^()]*batches \((\d+)\)")
_COUNTED: Final = re.compile(r"len\(|loader|batch|step|iter|interval|freq|every|epoch|num_|n_", re.IGNORECASE)


def samples_wanted(ended: Ended, guesses: Guesses) -> dict[str, Any]:
    """More samples, where the script checks, divides by or splits what its data sets have."""
    if not ended.script.fake_data or not ended.stand_ins:
        return {}
    if split := _split(ended.error):
        return {SAMPLES: {**guesses.known.get(SAMPLES, {}), **split}}
    times, found = _times(ended.error), guesses.made.get(LENGTHS, {})
    more = {name: min(count * times, LARGEST) for name, count in found.items()} if times > 1 else {}
    return {SAMPLES: {**guesses.known.get(SAMPLES, {}), **more}} if more else {}


def _split(error: BaseException) -> dict[str, int]:
    """A data set that is split into parts of so many samples has as many as all of them."""
    for frame, _ in frames_in(error):
        if frame.f_code is random_split.__code__ and isinstance(error, ValueError):
            data, lengths = frame.f_locals["dataset"], frame.f_locals["lengths"]
            if (name := name_of(data)) is not None and all(type(n) is int and n > 0 for n in lengths):
                return {name: sum(lengths)} if sum(lengths) > len(data) else {}
    return {}


def _times(error: BaseException) -> int:
    """How many times as many samples there must be."""
    if found := _INTERVAL.search(str(error)):
        wanted, have = map(int, found.groups())
        return 2 * math.ceil(wanted / max(have, 1))
    frame, line = frames_in(error)[-1]
    file = frame.f_code.co_filename
    is_count = isinstance(error, ZeroDivisionError) and not is_library(file)
    return _TIMES if is_count and _COUNTED.search(linecache.getline(file, line)) else 1
