"""Names of a CUDA build in `torch._C`, which libraries bind as they are imported: a build without CUDA lacks them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

from foretell.capture.as_gpu.patches import replace
from foretell.capture.script.imports import once_imported
from foretell.capture.script.session import Session
from foretell.errors import WorkloadError

# As torch's own stubs list them; a newer torch has more, which a library that binds them names in its error.
_NAMES: Final = tuple(
    """getCurrentStream getCurrentRawStream getDefaultStream getStreamFromExternal getCurrentBlasHandle
    getCurrentSolverHandle clearCublasWorkspaces getCublasWorkspaceSize setCublasWorkspaceSize getCublasLtWorkspaceSize
    setCublasLtWorkspaceSize resetCublasWorkspaceSize resetCublasLtWorkspaceSize setDevice exchangeDevice
    maybeExchangeDevice getDevice getDeviceCount set_sync_debug_mode get_sync_debug_mode sleep synchronize ipc_collect
    getArchFlags init setStream getCompiledVersion cudaHostAllocator cudaCachingAllocator_raw_alloc
    cudaCachingAllocator_raw_delete cudaCachingAllocator_enable cudaCachingAllocator_is_enabled
    cudaCachingAllocator_set_allocator_settings beginAllocateToPool beginAllocateCurrentThreadToPool endAllocateToPool
    beginAllocateCurrentStreamToPool releasePool checkPoolLiveAllocations setCheckpointPoolState getMemoryFraction
    setMemoryFraction emptyCache memoryStats resetAccumulatedMemoryStats resetPeakMemoryStats hostMemoryStats
    resetAccumulatedHostMemoryStats resetPeakHostMemoryStats memorySnapshot setMemoryMetadata getMemoryMetadata
    record_memory_history_legacy record_memory_history allocationTraceback isHistoryEnabled getAllocatorBackend
    getCheckpointState customAllocator changeCurrentAllocator getAllocator canDeviceAccessPeer isInBadFork lock_mutex
    unlock_mutex jiterator_compile_and_launch_kernel get_cudnn_benchmark_limit set_cudnn_benchmark_limit
    get_conv_benchmark_empty_cache tunableop_enable tunableop_is_enabled tunableop_tuning_enable
    tunableop_tuning_is_enabled tunableop_set_max_tuning_duration tunableop_get_max_tuning_duration
    tunableop_set_max_tuning_iterations tunableop_get_max_tuning_iterations tunableop_set_filename tunableop_get_filename
    tunableop_write_file tunableop_read_file tunableop_get_results tunableop_get_validators
    tunableop_set_rotating_buffer_size tunableop_get_rotation_buffer_size tunableop_set_numerical_check_tolerances
    isCurrentStreamCapturing attach_out_of_memory_observer""".split()
)
_ZERO: Final = """getCurrentRawStream getCurrentBlasHandle getCurrentSolverHandle getDevice exchangeDevice
    maybeExchangeDevice get_sync_debug_mode getCublasWorkspaceSize getCublasLtWorkspaceSize""".split()
_FALSE: Final = """isInBadFork isHistoryEnabled isCurrentStreamCapturing tunableop_is_enabled
    tunableop_tuning_is_enabled get_conv_benchmark_empty_cache""".split()
_DONE: Final = """emptyCache emptyHostCache resetAccumulatedStats resetPeakStats setAllocatorSettings setDeviceIndex setStream
    synchronizeDevice""".split()
# What they give would be computed with: a pointer, a compiled kernel, a pool of memory.
_MATTERS: Final = """cudaCachingAllocator_raw_alloc jiterator_compile_and_launch_kernel getStreamFromExternal
    customAllocator getCheckpointState""".split()
_NCCL: Final[Mapping[str, Any]] = {"version": 2 << 32 | 27 << 16 | 5, "version_suffix": b"", "unique_id": b"\0" * 128}


def install(session: Session) -> None:
    once_imported("torchaudio._extension.utils", _load_what_loads)
    chip = session.script.accelerator
    major, minor = chip.capability
    answers: dict[str, Any] = dict.fromkeys(_ZERO, 0) | dict.fromkeys(_FALSE, False)
    answers |= {
        "getDeviceCount": session.devices,
        "getArchFlags": f"sm_{major}{minor}",
        "getCompiledVersion": 12080,
        "getAllocatorBackend": "native",
        "cudaCachingAllocator_is_enabled": True,
        "canDeviceAccessPeer": True,
        "getMemoryFraction": 1.0,
        "memoryStats": {},
        "hostMemoryStats": {},
        "memorySnapshot": {"segments": [], "device_traces": [], "allocator_settings": {}},
        "getCurrentStream": (0, 0, 1),
        "getDefaultStream": (0, 0, 1),
    }
    for name in _NAMES:
        function = _refusing(f"_cuda_{name}") if name in _MATTERS else _answering(answers.get(name))
        _put(f"_cuda_{name}", function)
    of_accelerator: dict[str, Any] = {
        "getAccelerator": torch.device("cuda"),
        "getDeviceStats": {},
        "getMemoryInfo": (chip.memory, chip.memory),
        **dict.fromkeys(("getDeviceIndex", "exchangeDevice", "maybeExchangeDevice"), 0),
        **dict.fromkeys(_DONE),
    }
    for name, value in of_accelerator.items():
        _put(f"_accelerator_{name}", _answering(value))
    for name, value in _NCCL.items():
        _put(f"_nccl_{name}", _answering(value))


def _put(name: str, function: Callable[..., Any]) -> None:
    """A dummy of torch's own, which says that there is no CUDA, gives way; a build with CUDA has no driver here either."""
    setattr(torch._C, name, function)


def _answering(value: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: value


def _refusing(name: str) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise WorkloadError(
            f"torch._C.{name} works on the memory of a GPU, and there is none here. Put @foretell.opaque(outputs=lambda …: "
            "torch.empty(…), flops=…) on the function that calls it, or leave that part of the script out."
        )

    return refuse


def _load_what_loads(utils: Any) -> None:
    """A torchaudio built for CUDA beside a torch built without cannot load its native part; most of it is Python."""
    load = utils._load_lib

    def load_library(name: str) -> bool:
        try:
            return bool(load(name))
        except OSError:
            return False

    replace(utils, "_load_lib", load_library)
