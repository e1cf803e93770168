"""A made-up forecast for the reports' tests: a small transformer, placed and priced by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from foretell.forecasting.result import (
    Breakdown,
    Cost,
    Duration,
    Forecast,
    Memory,
    Network,
    RankMemory,
    Resources,
    Throughput,
    Use,
)
from foretell.graph import Caveat, Graph, Layout, Op, Signature, Storage, Tensor
from foretell.precision import Precision
from foretell.simulate.memory import replay
from foretell.simulate.timeline import Span, Timeline
from foretell.units import GIB

BLOCKS, WIDTH, TOKENS = 6, 1024, 32 * 512
HOST_SECONDS = 30e-6


class _Maker:
    """Writes ops down one after another, as the recorder does."""

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.tensors: list[Tensor] = []
        self.storages: list[Storage] = []
        self.seconds: list[float] = []

    def tensor(self, shape: tuple[int, ...], role: str, born: int = -1, freed: int | None = None) -> int:
        layout = Layout(shape, (*(shape[1:]), 1)[: len(shape)], "bfloat16")
        self.storages.append(Storage(layout.nbytes, role, born, 10**9 if freed is None else freed))
        self.tensors.append(Tensor(layout, len(self.storages) - 1))
        return len(self.tensors) - 1

    def op(self, target: str, phase: str, module: str, inputs: list[int], outputs: list[int], seconds: float) -> None:
        layouts = [self.tensors[i].layout for i in inputs], [self.tensors[i].layout for i in outputs]
        signature = Signature(target, tuple(layouts[0]), tuple(layouts[1]))
        self.ops.append(Op(signature, phase, module, tuple(inputs), tuple(outputs)))
        self.seconds.append(seconds)

    def free(self, tensor: int) -> None:
        number = self.tensors[tensor].storage
        self.storages[number] = replace(self.storages[number], freed=len(self.ops) - 1)


def small_graph(name: str = "small-transformer") -> tuple[Graph, list[float]]:
    """The graph, and a device time for each of its ops."""
    maker, kept = _Maker(), []
    flow = maker.tensor((TOKENS, WIDTH), "input")
    weights = []
    for block in range(BLOCKS):
        for part in ("attention.project", "mlp.up", "mlp.down"):
            weight = maker.tensor((WIDTH, WIDTH), "parameter")
            out = maker.tensor((TOKENS, WIDTH), "activation", born=len(maker.ops))
            maker.op("aten.mm.default", "forward", f"blocks.{block}.{part}", [flow, weight], [out], 180e-6)
            weights.append((weight, f"blocks.{block}.{part}"))
            kept.append(out)
            flow = out
    gradients = []
    for (weight, module), saved in zip(reversed(weights), reversed(kept), strict=True):
        gradient = maker.tensor((WIDTH, WIDTH), "gradient", born=len(maker.ops))
        maker.op("aten.mm.default", "backward", module, [saved, weight], [gradient], 210e-6)
        scratch = maker.tensor((TOKENS, WIDTH), "temporary", born=len(maker.ops), freed=len(maker.ops))
        maker.op("aten.mul.Tensor", "backward", module, [saved], [scratch], 40e-6)
        maker.free(saved)
        gradients.append(gradient)
    for (weight, _), gradient in zip(reversed(weights), gradients, strict=True):
        state = maker.tensor((WIDTH, WIDTH), "optimizer")
        maker.op("aten._fused_adamw_.default", "optimizer", "", [weight, gradient, state], [], 12e-6)
    end = len(maker.ops)
    graph = Graph(
        name=name,
        ops=tuple(maker.ops),
        tensors=tuple(maker.tensors),
        storages=tuple(replace(s, freed=min(s.freed, end)) for s in maker.storages),
        precision=Precision.parse("bf16"),
        samples=32,
        tokens=TOKENS,
        provenance={"torch": "2.13.0", "python": "3.11.9"},
    )
    return graph, maker.seconds


def small_forecast(
    *, name: str = "small-transformer", cluster: str = "8xh100-sxm", capacity: int = 80 * GIB, **changes: Any
) -> Forecast:
    graph, seconds = small_graph(name)
    return priced(graph, seconds, cluster=cluster, capacity=capacity, **changes)


def priced(graph: Graph, seconds: list[float], *, cluster: str, capacity: int, **changes: Any) -> Forecast:
    """A forecast of any graph, from a device time for each op."""
    trace = replay(graph)
    spans, host, device = [], 0.0, 0.0
    for number, (op, duration) in enumerate(zip(graph.ops, seconds, strict=True)):
        host += HOST_SECONDS
        device = max(host, device) + duration
        spans.append(Span("dp", "device", op.target, op.module, op.phase, device - duration, duration, number))
    step = device + 2e-4
    reserved, context, communicator = trace.peak_reserved, 525 * 2**20, 200 * 2**20
    total = reserved + context + communicator
    at = trace.at_peak
    values: dict[str, Any] = {
        "model": "roofline",
        "workload": graph.name,
        "cluster": cluster,
        "plan": "dp=8",
        "step_time": Duration(seconds=step, low=step * 0.93, high=step * 1.08),
        "device_time": Duration(seconds=sum(seconds)),
        "host_time": Duration(seconds=host),
        "exposed_communication": Duration(seconds=1.5e-4),
        "bubble": Duration(seconds=0.0),
        "memory": Memory(
            allocated=trace.peak_allocated,
            reserved=reserved,
            context=context,
            communicator=communicator,
            total=total,
            capacity=capacity,
            fits=total <= capacity,
            fit_probability=0.999 if total <= capacity else 0.01,
            breakdown=Breakdown(
                parameters=at.get("parameter", 0),
                gradients=at.get("gradient", 0),
                optimizer=at.get("optimizer", 0),
                activations=at.get("activation", 0),
                inputs=at.get("input", 0),
                temporaries=at.get("temporary", 0),
                workspace=at.get("workspace", 0),
            ),
            peak_module=graph.ops[trace.peak_op].module,
            ranks=(RankMemory(role="dp", count=8, total=total, capacity=80 * 2**30),),
        ),
        "network": Network(sent_bytes=10**8, received_bytes=10**8),
        "resources": Resources(
            device=Use(idle_seconds=step - sum(seconds), active_seconds=sum(seconds), peak=1.0),
            memory_bandwidth=Use(idle_seconds=0.0, active_seconds=step, peak=0.8),
            network_rx=Use(idle_seconds=step, active_seconds=0.0, peak=0.0),
            network_tx=Use(idle_seconds=step, active_seconds=0.0, peak=0.0),
        ),
        "throughput": Throughput(samples_per_second=8 * 32 / step, tokens_per_second=8 * TOKENS / step, mfu=0.41),
        "cost": Cost(dollars_per_hour=98.3, dollars_per_step=98.3 / 3600 * step),
        "caveats": (
            Caveat("not-calibrated", "Intervals are wide: the cost model has seen no measurement of this device."),
            Caveat("op-without-model", "aten.foo is priced by its bytes.", 0.012),
        ),
        "timeline": Timeline(spans=tuple(spans), makespan=step, period=step),
        "memory_trace": trace,
        "graph": graph,
    }
    return Forecast(**(values | changes))
