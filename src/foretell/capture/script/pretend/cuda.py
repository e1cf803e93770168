"""`torch.cuda` as it answers on the device that is asked about."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, Final

import torch

from foretell.capture.as_gpu.patches import replace
from foretell.capture.script.session import Session
from foretell.graph import Caveat
from foretell.sources.scripts import Accelerator

_GRAPHS: Final = Caveat(
    "cuda-graphs-not-modelled", "CUDA graphs: this is the eager step, whose kernels the host launches one by one."
)
_NOTHING_HAPPENS: Final = """synchronize empty_cache reset_peak_memory_stats reset_max_memory_allocated init _lazy_init
    reset_max_memory_cached reset_accumulated_memory_stats ipc_collect manual_seed manual_seed_all seed seed_all
    set_rng_state set_rng_state_all set_per_process_memory_fraction set_sync_debug_mode set_stream _sleep
    _lazy_call caching_allocator_delete reset_peak_host_memory_stats reset_accumulated_host_memory_stats
    caching_allocator_enable""".split()
_ZERO: Final = """memory_allocated max_memory_allocated memory_reserved max_memory_reserved memory_cached max_memory_cached
    utilization memory_usage temperature power_draw clock_rate current_device initial_seed get_sync_debug_mode""".split()


class _Idle:
    """Something that has happened already: whatever is called on it does nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _nothing

    def query(self) -> bool:
        return True


class Stream(_Idle):
    def __init__(self, device: Any = None, priority: int = 0, **kwargs: Any) -> None:
        self.device, self.priority, self.cuda_stream, self.stream_id = device, priority, 0, 0

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def record_event(self, event: Any = None) -> Event:
        return event or Event()


class Chosen(contextlib.nullcontext[None]):
    """`torch.cuda.device`, a class that torch looks for."""

    def __init__(self, device: Any = None) -> None:
        super().__init__()
        self.idx, self.prev_idx = 0, -1


class Event(_Idle):
    """Between any two of them lies a millisecond, since something divides by it."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        self.enable_timing = enable_timing

    def elapsed_time(self, other: Any) -> float:
        return 1.0


class _Statistics(OrderedDict[str, Any]):
    """Of memory that nobody has asked for yet: each is 0."""

    def __missing__(self, key: str) -> int:
        return 0


class Graph(_Idle):
    """A CUDA graph: what it records runs, and what it replays has run."""

    def pool(self) -> tuple[int, int]:
        return 0, 0


def install(session: Session) -> None:
    chip, devices = session.script.accelerator, session.devices
    answers = _answers(chip, devices)
    for name, value in answers.items():
        if hasattr(torch.cuda, name):
            replace(torch.cuda, name, value)
    for module in (torch.cuda.memory, torch.cuda.random, torch.cuda.streams):
        for name in answers.keys() & vars(module).keys():
            replace(module, name, answers[name])
    vars(torch.cuda)["default_generators"] = (torch.default_generator,) * devices
    _accelerator(answers)
    _graphs(session)
    _tools()
    replace(torch, "get_device_module", lambda device=None: torch.cuda)
    torch.version.cuda = torch.version.cuda or "12.8"
    replace(torch.backends.cuda, "is_built", lambda: True)
    replace(torch.backends.cudnn, "version", lambda: 91002)
    replace(torch.nn.RNNBase, "flatten_parameters", _nothing)  # a torch that is built with CUDA would ask for a device
    _generators()


def _answers(chip: Accelerator, devices: int) -> dict[str, Any]:
    """What the functions and classes of `torch.cuda` are."""
    major, minor = chip.capability
    properties = SimpleNamespace(
        name=chip.name, major=major, minor=minor, total_memory=chip.memory, multi_processor_count=chip.units,
        warp_size=32, max_threads_per_multi_processor=2048, regs_per_multiprocessor=65536, is_integrated=0,
        is_multi_gpu_board=0, gcnArchName="", L2_cache_size=50 * 2**20, shared_memory_per_block=49152,
        shared_memory_per_block_optin=232448, shared_memory_per_multiprocessor=233472, max_threads_per_block=1024,
        uuid="0", pci_bus_id=0, pci_device_id=0, pci_domain_id=0, clock_rate=1_980_000, memory_clock_rate=2_619_000,
        memory_bus_width=5120,
    )  # fmt: skip
    answers: dict[str, Any] = dict.fromkeys(_NOTHING_HAPPENS, _nothing)
    answers |= {name: lambda *args, **kwargs: 0 for name in _ZERO}
    return answers | {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: devices,
        "_is_compiled": lambda: True,
        "set_device": _nothing,
        "get_device_name": lambda device=None: chip.name,
        "get_device_capability": lambda device=None: chip.capability,
        "get_device_properties": lambda device=None: properties,
        "mem_get_info": lambda device=None: (chip.memory, chip.memory),
        "memory_stats": lambda device=None: _Statistics(),
        "memory_stats_as_nested_dict": lambda device=None: _Statistics(),
        "host_memory_stats": lambda: _Statistics(),
        "memory_snapshot": lambda *args, **kwargs: [],
        "memory_summary": lambda *args, **kwargs: "",
        "list_gpu_processes": lambda device=None: "",
        "get_arch_list": lambda: [f"sm_{major}{minor}"],
        "get_gencode_flags": lambda: "",
        "get_rng_state": lambda device="cuda": torch.get_rng_state(),
        "get_rng_state_all": lambda: [torch.get_rng_state()],
        "is_bf16_supported": lambda including_emulation=True: major >= 8,
        "is_tf32_supported": lambda: major >= 8,
        "is_current_stream_capturing": lambda: False,
        "can_device_access_peer": lambda *args: True,
        "current_stream": lambda device=None: Stream(),
        "default_stream": lambda device=None: Stream(),
        "stream": lambda stream: contextlib.nullcontext(),
        "device": Chosen,
        "device_of": Chosen,
        "current_blas_handle": lambda: 0,
        "cudart": _Idle,
        "Stream": Stream,
        "ExternalStream": Stream,
        "Event": Event,
    }


def _accelerator(answers: dict[str, Any]) -> None:
    """`torch.accelerator`, which has no device to name otherwise."""
    own: dict[str, Any] = {
        "current_accelerator": lambda check_available=False: torch.device("cuda"),
        "current_device_index": lambda: 0,
        "current_device_idx": lambda: 0,
        "set_device_index": _nothing,
        "set_device_idx": _nothing,
        "device_index": lambda device=None: contextlib.nullcontext(),
        "set_stream": _nothing,
        "get_memory_info": answers["mem_get_info"],
    }
    for name, value in {**answers, **own}.items():
        if callable(getattr(torch.accelerator, name, None)):
            replace(torch.accelerator, name, value)


def _graphs(session: Session) -> None:
    @contextlib.contextmanager
    def graph(*args: Any, **kwargs: Any) -> Iterator[None]:
        session.find_caveats(_GRAPHS)
        yield

    def make_graphed_callables(callables: Any, *args: Any, **kwargs: Any) -> Any:
        session.find_caveats(_GRAPHS)
        return callables

    for module in (torch.cuda, torch.cuda.graphs):
        for name, value in {
            "CUDAGraph": Graph,
            "graph": graph,
            "make_graphed_callables": make_graphed_callables,
            "graph_pool_handle": lambda: (0, 0),
        }.items():
            replace(module, name, value)


def _tools() -> None:
    """Ranges and profilers that a driver listens to."""
    vars(torch.cuda.nvtx)["_nvtx"] = _Ranges()
    for name in ("start", "stop", "init"):
        if hasattr(torch.cuda.profiler, name):
            replace(torch.cuda.profiler, name, _nothing)
    replace(torch.cuda.profiler, "profile", contextlib.nullcontext)


class _Ranges(_Idle):
    def rangePushA(self, message: str) -> int:  # as the driver spells it
        return 0

    def rangePop(self) -> int:
        return 0

    def rangeStartA(self, message: str) -> int:
        return 0


def _nothing(*args: Any, **kwargs: Any) -> None:
    return None


def _generators() -> None:
    """A generator on the device draws nothing, since fake tensors have no contents: it lies on the host."""
    make: Any = torch.Generator

    class Either(type):
        def __instancecheck__(cls, value: Any) -> bool:
            return isinstance(value, make)

        def __call__(cls, device: Any = "cpu") -> Any:
            return make()

    replace(torch, "Generator", Either("Generator", (), {}))
