"""Seconds of what passes between a device and its host, and of an update that the host computes."""

from __future__ import annotations

from typing import Final

from foretell.errors import CatalogError
from foretell.hardware import Device, Node, link
from foretell.program import Collective
from foretell.units import BytesPerSecond, Seconds

# Of the link's rate, what copies of pinned memory reach: 25 of 31.5 GB/s on PCI Express 4.0 ×16, and the like on 3.0 and 5.0.
_REACHED: Final = 0.8
# Parameters that a host of two sockets updates in a second: DeepSpeed's CPU Adam, 1 to 10 billion parameters in 0.22 to
# 2.57 s (Ren et al., ZeRO-Offload, 2021, table 4). The ranks of a node share it.
_UPDATED: Final = 4.0e9
_STATE_BYTES: Final = 24  # of a parameter, read and written: an fp32 copy and two moments
_NVME: Final[BytesPerSecond] = 6e9  # a drive on PCI Express 4.0 ×4, which the ranks of a node share: an assumption

# Of a parameter, in host memory: an fp32 copy, two moments and the gradient; and, where it is kept there, the parameter.
HOST_BYTES: Final = {"optimizer": 16, "parameters": 18}
KINDS: Final = ("to-host", "from-host", "from-nvme", "host-update", "nvme-update")


def host_seconds(collective: Collective, node: Node) -> Seconds:
    """An update's `nbytes` are the parameters that it updates."""
    kind, amount = collective.kind, collective.nbytes
    if kind in ("to-host", "from-host"):
        return amount / to_host(node.device)
    if kind == "from-nvme":
        return amount * node.count / _NVME
    seconds = amount * node.count / _UPDATED
    return max(seconds, amount * node.count * _STATE_BYTES / _NVME) if kind == "nvme-update" else seconds


def to_host(device: Device) -> BytesPerSecond:
    """Of the link between a device and its host, each way."""
    if device.host_link is None:
        raise CatalogError(
            f"offloading moves state between {device.name} and its host, but the catalog has no link between them. Leave "
            'offload out, or say it in the [chip] table of the device\'s file, like host_link = "pcie-4".'
        )
    return link(device.host_link).bandwidth * _REACHED
