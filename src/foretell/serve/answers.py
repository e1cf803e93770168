"""Answers at hand: the ones asked for last, as many as fit into a few megabytes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

from foretell.units import Bytes

_MAX_BYTES: Final[Bytes] = 64 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    id: str
    body: bytes


class Answers:
    def __init__(self, most: Bytes = _MAX_BYTES) -> None:
        self._most, self._size = most, 0
        self._kept: OrderedDict[Hashable, Answer] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> Answer | None:
        with self._lock:
            if (found := self._kept.get(key)) is not None:
                self._kept.move_to_end(key)
            return found

    def put(self, key: Hashable, answer: Answer) -> None:
        with self._lock:
            if (before := self._kept.pop(key, None)) is not None:
                self._size -= len(before.body)
            self._kept[key] = answer
            self._size += len(answer.body)
            while self._size > self._most and len(self._kept) > 1:
                self._size -= len(self._kept.popitem(last=False)[1].body)
