"""Which device of the catalog a driver, nvidia-smi or a published table means by `NVIDIA A100-SXM4-80GB`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from foretell.hardware.device import Device

_MEMORY_TOLERANCE: Final = 0.1  # a driver reports less than the datasheet's size, and GB may mean GiB
_SOCKETS: Final = frozenset(("sxm", "pcie", "nvl"))
# Words of makers, brands and editions that set no two devices apart. Quadro is not among them: RTX 6000 is also an Ada.
_IGNORED: Final = frozenset(
    "nvidia amd intel apple habana tesla geforce instinct gpu accelerator oam ac cts generation edition "
    "superchip gracehopper grace hopper".split()
)


@dataclass(frozen=True, slots=True)
class _Label:
    """What a name says, spelling apart: `Tesla V100-SXM2-16GB` is v100, sxm, 16."""

    model: str
    socket: str | None
    gigabytes: int | None


def meant(devices: Iterable[tuple[Device, Sequence[str]]], name: str, memory_bytes: int | None) -> Device | None:
    """Of devices with all they are called, the one whose model is exactly the one named, where socket and memory agree."""
    named = _read(name)
    fitting = []
    for known, written in devices:
        labels = [_read(text) for text in written]
        error = abs((memory_bytes or known.usable_bytes) / known.usable_bytes - 1)
        if known.kind != "cpu" and _agrees(named, labels) and error < _MEMORY_TOLERANCE:
            usual = _Label(named.model, None, None) in labels  # of several with this model, the one called just that
            fitting.append((usual, -error, known))
    return max(fitting, key=lambda f: f[:2])[2] if fitting else None


def _agrees(named: _Label, labels: list[_Label]) -> bool:
    sockets = {label.socket for label in labels if label.socket}
    sizes = {label.gigabytes for label in labels if label.gigabytes}
    return (
        any(label.model == named.model for label in labels)
        and (not named.socket or not sockets or named.socket in sockets)
        and (not named.gigabytes or not sizes or any(_near(named.gigabytes, size) for size in sizes))
    )


def _near(one: float, other: float) -> bool:
    return abs(one / other - 1) < _MEMORY_TOLERANCE


def _read(name: str) -> _Label:
    """Remarks in brackets or after a comma are no part of a name, nor is the kind of its memory."""
    text = re.sub(r"\(.*?\)|,.*", " ", name.lower().replace("_", " "))
    text = re.sub(r"(\d+) ?g(i?b)?\b", r" \1gb ", text)
    model, socket, gigabytes = "", None, None
    for word in re.findall(r"[a-z0-9]+", text):
        if (socket_word := re.sub(r"^sxm\d$", "sxm", word)) in _SOCKETS:
            socket = socket_word
        elif size := re.fullmatch(r"(\d+)gb", word):
            gigabytes = int(size[1])
        elif word not in _IGNORED and not re.fullmatch(r"hbm\d?e?", word):
            model += word
    return _Label(model, socket, gigabytes)
