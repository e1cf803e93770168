"""An FX graph, lowered and scheduled by Inductor for the target: from the compiler's objects to a `Schedule`.

What is traced lies on fake CPU tensors; a copy of it is moved to the target's device before Inductor sees it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch._guards import TracingContext
from torch._inductor import compile_fx
from torch._inductor.debug import DebugContext
from torch._inductor.graph import GraphLowering
from torch._inductor.scheduler import Scheduler
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from foretell.capture.as_gpu.devices import ACCELERATORS
from foretell.capture.as_gpu.patches import constructors_of_torch
from foretell.capture.compiled.contents import Followed
from foretell.capture.compiled.nodes import schedule_of
from foretell.capture.compiled.recorder import CompiledRecorder, Launcher
from foretell.capture.compiled.target import CUDA
from foretell.errors import CaptureError

TESTED: Final = ("2.11", "2.13")  # whose internals are as they are used here


def check_version() -> None:
    if torch.__version__.rpartition(".")[0] not in TESTED:
        raise CaptureError(
            f"compiled steps are captured with torch {' or '.join(TESTED)}, whose compiler is known; this is "
            f"{torch.__version__}. Install one of those, or set compile=False."
        )


def backend(recorder: CompiledRecorder, launched_by: Launcher) -> Callable[[Any, Any], Any]:
    """A backend of torch.compile: Inductor's passes, with schedules of the target instead of code."""

    def inner(gm: torch.fx.GraphModule, inputs: Sequence[Any], **how: Any) -> Any:
        followed = Followed.of(gm.graph)
        try:
            schedule = _lowered(gm, inputs, bool(how.get("is_backward")), bool(how.get("is_inference")))
        except Exception as error:
            recorder.failures.append(f"{type(error).__name__}: {str(error).partition(chr(10))[0][:160]}")
            raise

        def run(arguments: list[Any]) -> Any:
            contents = followed.contents(arguments)
            made = schedule.run(arguments, recorder, launched_by)
            for place, content in contents.items():
                recorder.know(made[place], content)
            return made

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    def compile(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        _keep_on_the_host(gm)
        return compile_fx.compile_fx(gm, inputs, inner_compile=inner)

    return compile


def _lowered(gm: torch.fx.GraphModule, inputs: Sequence[Any], is_backward: bool, is_inference: bool) -> Any:
    fake = _fake_mode(gm, inputs)
    own = _copied(gm)
    passes: Any = compile_fx
    passes.view_to_reshape(own)
    passes.fake_tensor_prop(own, inputs)  # a forward pass may lay out what is saved otherwise than it was traced
    passes._recursive_record_original_output_strides(own)
    with V.set_fake_mode(
        fake
    ):  # passes compute with what they rewrite, which a build without CUDA can on the CPU alone
        passes._recursive_post_grad_passes(own, is_inference=is_inference)
    _move(own, fake)
    moved = [_moved(x, fake) for x in inputs]
    graph = GraphLowering(own, example_inputs=moved, is_inference=is_inference, is_backward=is_backward)
    with (
        V.set_fake_mode(fake),
        V.set_graph_handler(graph),
        V.set_extern_kernel_nodes([]),
        V.set_debug_handler(DebugContext()),
        constructors_of_torch(),
    ):
        graph.run(*moved)
        _tell_strides(graph)
        return schedule_of(graph, Scheduler(graph.operations))


def _fake_mode(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> FakeTensorMode:
    traced = pytree.tree_leaves([node.meta.get("val") for node in gm.graph.nodes])
    return next(value.fake_mode for value in (*traced, *inputs) if isinstance(value, FakeTensor))


def _tell_strides(graph: Any) -> None:
    """The backward pass is compiled for activations as this graph lays them out."""
    context = TracingContext.try_get()
    if context is None or context.output_strides is None or context.output_strides:
        return
    for out in graph.graph_outputs:
        layout = out.maybe_get_layout() if hasattr(out, "maybe_get_layout") else None
        strides = getattr(layout, "stride", None)
        context.output_strides.append(None if strides is None else tuple(int(s) for s in strides))


def _copied(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """With constants as they are: those of a fake step cannot be copied."""
    return torch.fx.GraphModule(gm, copy.deepcopy(gm.graph))


def _move(own: torch.fx.GraphModule, fake: FakeTensorMode) -> None:
    """To the target's device, in place."""
    for node in own.graph.nodes:
        if "val" in node.meta:
            node.meta["val"] = pytree.tree_map(lambda value: _moved(value, fake), node.meta["val"])
        node.args = torch.fx.node.map_aggregate(node.args, _device)
        node.kwargs = torch.fx.node.map_aggregate(node.kwargs, _device)
        if node.op == "get_attr":
            _move_constant(own, str(node.target), fake)


def _move_constant(own: torch.fx.GraphModule, name: str, fake: FakeTensorMode) -> None:
    value = getattr(own, name, None)
    if isinstance(value, torch.Tensor) and value.dim() and not GraphLowering.can_inline_constant(value):
        setattr(own, name, _moved(value, fake))


def _keep_on_the_host(traced: torch.fx.GraphModule) -> None:
    """Code may name the accelerator; passes compute constants, which they can on the CPU alone."""
    for node in traced.graph.nodes:
        node.args = torch.fx.node.map_aggregate(node.args, _host)
        node.kwargs = torch.fx.node.map_aggregate(node.kwargs, _host)


def _host(value: Any) -> Any:
    named = value.partition(":")[0] if isinstance(value, str) else getattr(value, "type", None)
    return torch.device("cpu") if isinstance(value, str | torch.device) and named in ACCELERATORS else value


def _device(value: Any) -> Any:
    return CUDA if isinstance(value, torch.device) else value


def _moved(value: Any, fake: FakeTensorMode) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    with _disable_current_modes():
        shape = torch.empty_strided(tuple(value.shape), value.stride(), dtype=value.dtype, device="meta")
    return FakeTensor(fake, shape, CUDA)
