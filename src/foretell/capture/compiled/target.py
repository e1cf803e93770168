"""The device that Inductor schedules for: properties that it asks of CUDA, answered on a machine that has none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Final

import torch
from torch._dynamo.device_interface import CudaInterface, caching_worker_device_properties
from torch._inductor import scheduler, utils
from torch._inductor.fx_passes import post_grad
from torch._subclasses.fake_tensor import FakeTensor

CUDA: Final = torch.device("cuda", 0)
# Of a Hopper board: what Inductor splits reductions and chooses persistent kernels by.
_PROPERTIES: Final = SimpleNamespace(
    name="NVIDIA H200", major=9, minor=0, multi_processor_count=132, warp_size=32, regs_per_multiprocessor=65536,
    max_threads_per_multi_processor=2048, max_threads_per_block=1024, total_memory=150 << 30, gcnArchName="",
    shared_memory_per_block_optin=232448, L2_cache_size=60 << 20,
)  # fmt: skip
_GIGABYTES_A_SECOND: Final = 4800  # of its memory
_SHARED_MEMORY: Final = 232448  # bytes of a block


def answer_as_target() -> None:
    """Let Inductor's questions about the device be answered, in this process."""
    interface: Any = CudaInterface
    interface.get_device_properties = staticmethod(_properties)
    torch.cuda.get_device_properties = _properties
    interface.is_available = staticmethod(lambda: True)
    interface.get_compute_capability = staticmethod(lambda device=None: 90)
    interface.current_device = staticmethod(lambda: 0)
    interface.device_count = staticmethod(lambda: 1)
    interface.Worker.get_device_properties = staticmethod(_properties)  # which a build for CUDA would ask a driver for
    interface.Worker.current_device = staticmethod(lambda: 0)
    torch.cuda.get_device_capability = lambda device=None: (9, 0)
    caching_worker_device_properties["cuda"] = [_PROPERTIES]
    vars(scheduler)["has_triton"] = lambda: True
    vars(post_grad)["is_gpu"] = lambda device: True  # its passes see the step before it is moved
    vars(utils)["get_gpu_dram_gbps"] = lambda: _GIGABYTES_A_SECOND
    vars(scheduler)["get_gpu_dram_gbps"] = lambda: _GIGABYTES_A_SECOND
    vars(utils)["get_gpu_shared_memory"] = lambda: _SHARED_MEMORY
    fake: Any = FakeTensor
    fake.contiguous = _contiguous


def _properties(device: Any = None) -> Any:
    return _PROPERTIES


def _contiguous(tensor: FakeTensor, memory_format: torch.memory_format = torch.contiguous_format) -> torch.Tensor:
    """Torch's own would have the driver make the device current, even that of a tensor without data."""
    if tensor.fake_device.type != CUDA.type:
        return torch.Tensor.contiguous(tensor, memory_format=memory_format)
    laid_out = tensor.is_contiguous(memory_format=memory_format)
    return tensor if laid_out else torch.clone(tensor, memory_format=memory_format)
