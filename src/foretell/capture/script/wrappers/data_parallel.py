"""DataParallel: one process drives all devices of its node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from torch import nn

from foretell.capture.as_gpu.patches import replace_everywhere
from foretell.capture.script.findings import DataParallel
from foretell.capture.script.session import Session
from foretell.capture.script.wrapped import Wrapper
from foretell.capture.script.wrappers import keywords

TORCH_CLASS: Final = nn.DataParallel
FREE: Final = ("output_device", "dim")
USED: Final = ("module", "device_ids")


def install(session: Session) -> None:
    class SingleProcess(Wrapper):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            keys = keywords(TORCH_CLASS, f"DataParallel in {session.script.name}", args, kwargs)
            devices = keys.take("device_ids")
            super().__init__(keys.take("module"), device_ids=devices)
            keys.free(*FREE)
            if devices is not None and len(devices) != session.devices:
                keys.say("device_ids", f"{len(devices)} of {session.devices} devices; the plan has all of them")
            session.find_wrapper(DataParallel(), keys)

        # Of the first device, which is the one that is recorded.

        def replicate(self, module: nn.Module, device_ids: Sequence[Any]) -> list[nn.Module]:
            return [module] * len(device_ids)

        def scatter(self, inputs: Any, kwargs: Any, device_ids: Sequence[Any]) -> tuple[Any, Any]:
            return (inputs,), (kwargs,)

        def parallel_apply(self, replicas: Sequence[Any], inputs: Sequence[Any], kwargs: Sequence[Any]) -> list[Any]:
            return [replicas[0](*inputs[0], **kwargs[0])]

        def gather(self, outputs: Sequence[Any], output_device: Any) -> Any:
            return outputs[0]

    SingleProcess.__name__ = SingleProcess.__qualname__ = "DataParallel"
    replace_everywhere(nn, "DataParallel", SingleProcess)  # also where scripts import it from the file it is written in
