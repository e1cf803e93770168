"""What a step makes the host do beside issuing ops: numbers drawn, bytes moved in its memory, copies to the device."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Final

_COUNTS: Final = ("ops", "drawn", "moved", "copied", "pinned")
KEY: Final = "step.host"  # in a graph's provenance
_WRITTEN: Final = re.compile(",".join(rf"{name}=(\d{{1,18}})" for name in _COUNTS) + ",waits=([01])")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostWork:
    """Of one step, in the process that issues its ops; what workers of a data loader do is theirs."""

    ops: int = 0  # on tensors in host memory
    drawn: int = 0  # random numbers
    moved: int = 0  # bytes that other ops read and write
    copied: int = 0  # bytes to the device, from memory that may be paged
    pinned: int = 0  # and from memory that may not
    waits: bool = False  # a copy that the host waits for, and so for all that the device has to do before it

    def __str__(self) -> str:
        return ",".join(f"{field.name}={int(getattr(self, field.name))}" for field in fields(self))

    @classmethod
    def parse(cls, text: str) -> HostWork:
        if not (found := _WRITTEN.fullmatch(text)):
            raise ValueError(f"{KEY} is not what a host does: {text[:100]!r}")
        *counts, waits = map(int, found.groups())
        return cls(**dict(zip(_COUNTS, counts, strict=True)), waits=bool(waits))

    @classmethod
    def of(cls, provenance: Mapping[str, str]) -> HostWork:
        """Nothing, where it was not recorded."""
        return cls.parse(provenance[KEY]) if KEY in provenance else cls()
