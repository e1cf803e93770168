"""Garbage collection, which waits while a forecast is made."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_pausing = threading.Lock()


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """A plan makes a hundred thousand small objects that live to its end: searching them repeatedly is a fifth of it.

    It holds for the whole process, so one thread at a time may ask for it; garbage is collected in between.
    """
    if not gc.isenabled() or not _pausing.acquire(blocking=False):
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        _pausing.release()
