"""Classes of devices that forecasts are as sure of: the model's own, boards like it, older and newer ones, other makers',
processors. Each is known no better than those before it."""

from __future__ import annotations

from typing import Final, Literal, get_args

from foretell.hardware import Device

DeviceClass = Literal["own", "recent", "older", "newer", "other makers", "processors"]
CLASSES: Final[tuple[DeviceClass, ...]] = get_args(DeviceClass)
FROM_TURING: Final[tuple[DeviceClass, ...]] = ("recent", "newer")
# Compute capabilities of the first boards whose units and libraries are like those measured, and of the last.
_TURING, _HOPPER = (7, 5), (9, 0)


def class_of(device: Device, own: str = "") -> DeviceClass:
    """Of a device, where a model was measured on `own`."""
    if device.name == own:
        return "own"
    if device.kind == "cpu":
        return "processors"
    if device.vendor != "NVIDIA":
        return "other makers"
    capability = device.compute_capability or (0, 0)
    return "older" if capability < _TURING else "newer" if capability > _HOPPER else "recent"
