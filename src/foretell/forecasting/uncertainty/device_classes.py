"""Classes of devices that forecasts are as sure of: the model's own, boards like it, older ones, other makers', processors."""

from __future__ import annotations

from typing import Final, Literal, get_args

from foretell.hardware import Device

DeviceClass = Literal["own", "recent", "older", "other makers", "processors"]
CLASSES: Final[tuple[DeviceClass, ...]] = get_args(DeviceClass)
_TURING: Final = (7, 5)  # the compute capability of the first boards whose units and libraries are like those measured


def class_of(device: Device, own: str = "") -> DeviceClass:
    """Of a device, where a model was measured on `own`."""
    if device.name == own:
        return "own"
    if device.kind == "cpu":
        return "processors"
    if device.vendor != "NVIDIA":
        return "other makers"
    return "recent" if (device.compute_capability or (0, 0)) >= _TURING else "older"
