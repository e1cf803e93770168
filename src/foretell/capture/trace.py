"""Workload → Graph in this process: build on meta, run on fake CPU tensors that behave as a GPU's, record a step."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from foretell.capture.as_gpu import attention, behave_as_gpu, let_fake_tensors_pass_as_real
from foretell.capture.compiled import is_captured_compiled, why_not_compiled, wishes
from foretell.capture.compiled.caveats import caveat_of_a_model, caveats_of
from foretell.capture.compiled.recorder import CompiledRecorder
from foretell.capture.explain import words_of
from foretell.capture.fusing import with_fused_kernels
from foretell.capture.recorder import Recorder
from foretell.capture.step import ATTENTION, Step, batch_sizes, prepare_model
from foretell.capture.values import Values
from foretell.errors import ForetellError, WorkloadError
from foretell.graph import Caveat, Graph
from foretell.graph.facts import StepFacts
from foretell.sources.master_weights import gradient_of
from foretell.sources.named.adapters import quantized_weights
from foretell.workload import Kernels, Workload

MICRO_STEPS_RECORDED = 2  # the first makes gradients, the second adds to them; all others equal the second


def trace(workload: Workload) -> Graph:
    """Record the steady-state step of a workload. Changes this process for good: call it in a child."""
    behave_as_gpu()
    torch.set_num_threads(1)
    if is_captured_compiled(workload):
        return _trace_compiled(workload)
    return _trace(workload)


def _trace(workload: Workload) -> Graph:
    """As it is written, but for what the user's own code compiles."""
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    values = Values(fake)
    recorder = CompiledRecorder(values)
    wishes.compile_with(wishes.Compiler(recorder, lambda: why_not_compiled(workload)))
    try:
        with fake, recorder:
            step = fake_step(workload, values)
            warm = wishes.is_wished()
            if warm:
                step.run()
            return record(step, recorder, values, warm=warm)
    except Exception as error:
        if not recorder.ran or isinstance(error, ForetellError):
            raise
        wishes.give_up(f"the compiler could not be asked ({words_of(error).partition(chr(10))[0][:200]})")
        return _trace(workload)


def _trace_compiled(workload: Workload) -> Graph:
    """As the compiler schedules it; the eager step, with a caveat, where the compiler cannot be asked."""
    from foretell.capture.compiled.model import compile_model  # loads Inductor, which takes seconds

    fake = FakeTensorMode(allow_non_fake_inputs=True)
    values = Values(fake)
    recorder = CompiledRecorder(values)
    try:
        with fake, recorder:
            step = fake_step(workload, values)
            compile_model(step.model, recorder, "code" if workload.compile is True else "graph")
            step.run()
            return record(step, recorder, values, warm=True)
    except ForetellError:
        raise
    except Exception as error:
        why = (recorder.failures or [words_of(error).partition("\n")[0]])[0][:200]
        wishes.give_up(f"the compiler could not be asked ({why})")
        caveat = Caveat("compile-not-modelled", f"The compiler could not be asked ({why}); this is the eager step.")
        return _trace(replace(workload, compile=False, caveats=(*workload.caveats, caveat)))


def fake_step(workload: Workload, values: Values) -> Step:
    """The workload's step on fake tensors; called under a fake mode and a recorder."""
    with _disable_current_modes():
        model = prepare_model(workload, _build(workload))
    let_fake_tensors_pass_as_real()  # once the model's libraries are loaded
    _move_to_fake(model, values)
    return Step.of(workload, model, _fake_batch(workload, values))


def record(step: Step, recorder: Recorder, values: Values | None = None, *, warm: bool = False) -> Graph:
    """Record the steady state: a step in which optimizer state, and whatever else the first step makes, is there.

    `warm`: it has been run before.
    """
    steady = (warm or step.workload.step is None) and (_record_once(step, recorder, warm) or warm)
    if not steady:
        recorder.forget()
        if step.workload.step is not None:
            step.run()
        _record_once(step, recorder, warm)
    workload = step.workload
    samples, tokens = batch_sizes(workload, step.batch)
    graph = recorder.graph(
        name=workload.name,
        training=step.optimizer is not None,
        precision=workload.arithmetic,
        grad_accumulation=workload.grad_accumulation,
        samples=samples,
        tokens=tokens,
        caveats=tuple(_caveats(step, values, recorder)),
        facts=_facts(step),
        provenance=versions(),
    )
    if workload.attention == "flash1":
        graph = attention.of_the_first_version(graph)
    kernels = Kernels.parse(workload.kernels)
    return graph if kernels.base == "torch" else with_fused_kernels(graph, kernels)


def versions() -> dict[str, str]:
    """What a graph is captured with."""
    return {"torch": torch.__version__, "python": platform.python_version(), "captured_on": platform.machine()}


def _facts(step: Step) -> StepFacts:
    tensors = [t for t in pytree.tree_leaves(step.batch) if isinstance(t, torch.Tensor)]
    return StepFacts(
        parameters=sum(p.numel() for p in step.model.parameters()) + quantized_weights(step.model),
        inputs=tuple(map(int, tensors[0].shape)) if tensors else None,
        optimizer=None if step.optimizer is None else optimizer_name(step.optimizer),
        plan=step.workload.plan,
        trainer=step.workload.trainer or ("megatron" if Kernels.parse(step.workload.kernels).of_megatron else None),
        expert_groups=_expert_groups(getattr(step.model, "config", None)),
    )


def _expert_groups(config: object) -> tuple[int, int] | None:
    """Of a router that takes a token's experts from some groups alone, as DeepSeek's do."""
    groups, taken = (getattr(config, name, None) for name in ("n_group", "topk_group"))
    if not (isinstance(groups, int) and isinstance(taken, int)) or not 1 <= taken < groups:
        return None
    return groups, taken


def optimizer_name(optimizer: torch.optim.Optimizer) -> str:
    inner = getattr(optimizer, "inner", optimizer)
    form = next((form for form in ("fused", "foreach") if inner.defaults.get(form)), "")
    return " ".join(filter(None, (form, getattr(inner, "label", type(inner).__name__))))


def _record_once(step: Step, recorder: Recorder, warm: bool) -> bool:
    """Record one step; False if it left something behind that the next step would find."""
    accumulation = step.workload.grad_accumulation
    optimizer = step.optimizer

    def mark_state(optimizer: torch.optim.Optimizer) -> None:
        recorder.mark(host_state(optimizer), "host")
        recorder.mark(pytree.tree_leaves(list(optimizer.state.values())), "optimizer")

    def watch(phase: str, micro: int) -> None:
        recorder.phase = phase
        recorder.times = accumulation - 1 if micro else 1
        if phase == "optimizer" and optimizer is not None and not optimizer.state and not warm:
            recorder.recording = False
            optimizer.step()  # makes the state that the recorded update finds
            mark_state(optimizer)
            recorder.recording = True

    def before_update(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Any optimizer's: a step of the user's own may have several."""
        around.append(recorder.phase)
        recorder.phase = "optimizer"
        for parameter in (p for group in optimizer.param_groups for p in group["params"] if recorder.recording):
            if (gradient := gradient_of(parameter)) is not None:
                recorder.pair(parameter, gradient)
        mark_state(optimizer)

    def after_update(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        recorder.phase = around.pop()

    around: list[str] = []
    recorder.mark(step.model.parameters(), "parameter")
    recorder.mark(step.model.buffers(), "parameter")
    if step.copies is not None:
        step.copies.watch = lambda copy: recorder.mark([copy], "parameter")
    recorder.mark(pytree.tree_leaves(step.batch), "input")
    if optimizer is not None:
        mark_state(optimizer)
    hooks = [register_optimizer_step_pre_hook(before_update), register_optimizer_step_post_hook(after_update)]
    try:
        with recorder.modules_of(step.model):
            recorder.recording = True
            step.run(watch, micro_steps=min(accumulation, MICRO_STEPS_RECORDED))
            recorder.recording = False
    finally:
        for hook in hooks:
            hook.remove()
    return recorder.left_nothing_behind()


def _build(workload: Workload) -> Any:
    try:
        with torch.device("meta"):
            return workload.model()
    except WorkloadError:
        raise
    except Exception:  # some models compute with real numbers while they are built
        return workload.model()


def _move_to_fake(model: torch.nn.Module, values: Values) -> None:
    """Turn every tensor of the module into a fake CPU tensor, keeping ties, layouts and known integers."""
    made: dict[int, torch.Tensor] = {}

    def convert(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in made:
            like = _as_fake(tensor, values, "model")
            if isinstance(tensor, torch.nn.Parameter) and like is not tensor:
                like = torch.nn.Parameter(like, requires_grad=tensor.requires_grad)
                like.__dict__.update(tensor.__dict__)
            made[id(tensor)] = like
        return made[id(tensor)]

    for module in model.modules():
        for table in (module._parameters, module._buffers):
            for name, tensor in table.items():
                if tensor is not None:
                    table[name] = convert(tensor)  # type: ignore[assignment]
        for name, value in list(vars(module).items()):  # tensors kept as plain attributes, or in lists of them
            if name not in ("_parameters", "_buffers", "_modules") and _has_tensors(value):
                vars(module)[name] = pytree.tree_map_only(torch.Tensor, convert, value)


def _has_tensors(value: Any) -> bool:
    return isinstance(value, torch.Tensor | list | tuple | dict) and any(
        isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(value)
    )


def _fake_batch(workload: Workload, values: Values) -> Any:
    return pytree.tree_map_only(torch.Tensor, lambda tensor: _as_fake(tensor, values, "batch"), workload.batch())


def _as_fake(tensor: torch.Tensor, values: Values, what: str) -> torch.Tensor:
    device = tensor.device.type
    if device != "cpu" and (what, device) != ("model", "meta"):
        raise WorkloadError(
            f"the {what} holds a tensor on {tensor.device}. Build it on the default device (leave out device=…): "
            "Foretell places it, and needs no accelerator."
        )
    if isinstance(tensor, FakeTensor):
        return tensor
    like = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    if device == "cpu":
        with _disable_current_modes():  # or the copy would be fake too
            values.give(like, tensor.detach())
    return like


def host_state(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    """Step counters, which optimizers keep in host memory unless they are fused or capturable; and state that is paged."""
    if getattr(optimizer, "paged", False):
        yield from (t for t in pytree.tree_leaves(list(optimizer.state.values())) if isinstance(t, torch.Tensor))
        return
    for group in optimizer.param_groups:
        if not (group.get("fused") or group.get("capturable")):
            for parameter in group["params"]:
                counter = optimizer.state.get(parameter, {}).get("step")
                if isinstance(counter, torch.Tensor) and counter.dim() == 0:
                    yield counter


def _caveats(step: Step, values: Values | None, recorder: Recorder) -> Iterator[Caveat]:
    workload = step.workload
    yield from workload.caveats
    if is_captured_compiled(workload):
        yield from _compiled_caveats(workload, nothing=isinstance(recorder, CompiledRecorder) and not recorder.ran)
    else:
        if workload.compile:
            yield Caveat(
                "compile-not-modelled",
                f"compile={workload.compile}: {why_not_compiled(workload)}; this is the eager step.",
            )
        if (found := wishes.found(step.model, workload.loss, workload.step)) is not None:
            yield from caveats_of(found)
    if workload.attention is not None:
        yield from _attention_caveats(workload)
    if getattr(step.optimizer, "paged", False):
        yield Caveat("paged-optimizer", "The optimizer's state is taken to lie in host memory; moving it is not timed.")
    for assumption in values.assumptions if values else ():
        yield Caveat("assumed-values", f"The step depends on values that only a run would know: {assumption}.")


def _compiled_caveats(workload: Workload, nothing: bool) -> Iterator[Caveat]:
    if nothing:
        yield Caveat("compiled", "torch.compile finds nothing that it could compile; the step runs as it is written.")
        return
    yield caveat_of_a_model()
    if isinstance(workload.compile, str):
        left = {
            "reduce-overhead": "memory of CUDA graphs",
            "max-autotune": "memory of CUDA graphs and kernels that are tried out",
        }
        yield Caveat("compile-mode", f"compile={workload.compile}: {left[workload.compile]} are not modelled.")


def _attention_caveats(workload: Workload) -> Iterator[Caveat]:
    wanted = attention.NUMBERED[ATTENTION[str(workload.attention)].value]
    calls, others = attention.CALLS.total(), attention.CALLS.total() - attention.CALLS[wanted]
    if not calls:
        raise WorkloadError(
            f"attention={workload.attention!r} of workload {workload.name!r} picks a kernel of scaled_dot_product_attention, but "
            "nothing calls it. Leave it out, or let the model call it (attn_implementation='sdpa')."
        )
    if others:
        yield Caveat(
            "attention-not-possible",
            f"attention={workload.attention}: {others} of {calls} calls cannot run in that kernel (masks, head sizes, dtypes) "
            "and are what torch picks.",
        )
