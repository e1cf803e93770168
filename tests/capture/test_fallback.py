"""Steps that refuse fake tensors are run small and for real, and extended to the whole batch."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from foretell.capture import capture
from foretell.errors import WorkloadError
from foretell.graph import Graph
from tests.capture.tiny import codes, named, names, storage_of, the, workload

VIEWS = {"aten.detach", "aten.t", "aten.view", "aten.transpose", "aten.expand", "aten.unsqueeze", "aten.alias"}


class Net(nn.Module):
    def __init__(self, looks: bool) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 5)
        self.looks = looks

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.conv(x)).relu()
        seen = x.detach().float()
        if self.looks:
            assert seen.numpy().shape[1] == 4
        return self.head(x.mean((2, 3)))


@cache
def net(looks: bool, batch: int, **settings: Any) -> Graph:
    make = lambda: {"x": torch.randn(batch, 3, 6, 6), "y": torch.randint(5, (batch,))}  # noqa: E731
    loss = lambda model, b: nn.functional.cross_entropy(model(b["x"]), b["y"])  # noqa: E731
    return capture(workload(lambda: Net(looks), make, loss=loss, **{"optimizer": torch.optim.AdamW, **settings}))


def work(graph: Graph) -> list[tuple[Any, ...]]:
    """Every op that computes, where it runs, and all its layouts."""
    return [
        (op.signature.name, op.phase, op.module, op.signature.inputs, op.signature.outputs)
        for op in graph.ops
        if op.signature.name not in VIEWS and op.signature.name not in ("aten._local_scalar_dense", "aten.lift_fresh")
    ]


def test_a_conversion_to_numpy_is_run_for_real_and_said() -> None:
    graph = net(looks=True, batch=32)
    assert codes(graph) == {"ran-on-cpu"}
    assert graph.samples == 32
    assert not net(looks=False, batch=32).caveats


@pytest.mark.parametrize("batch", [1, 2, 3, 4, 5, 32])
def test_an_extended_step_does_what_a_plain_capture_does(batch: int) -> None:
    assert work(net(looks=True, batch=batch)) == work(net(looks=False, batch=batch))


def test_an_extended_step_holds_what_a_plain_capture_holds() -> None:
    extended, plain = net(looks=True, batch=32), net(looks=False, batch=32)
    for role in ("parameter", "gradient", "optimizer", "input", "activation", "host"):
        assert extended.bytes_of(role) == plain.bytes_of(role), role


def test_a_real_step_takes_the_kernels_of_a_gpu_too() -> None:
    graph = net(looks=True, batch=32)
    assert the(graph, "cudnn_batch_norm").signature.inputs[0].shape == (32, 4, 4, 4)
    assert named(graph, "_foreach_addcdiv_", "optimizer")


@pytest.mark.parametrize("precision", ["bf16", "amp-bf16", "amp-fp16"])
def test_a_real_step_in_other_precisions(precision: str) -> None:
    settings = {"precision": precision, "optimizer": torch.optim.SGD}
    real, plain = (net(looks=looks, batch=8, **settings) for looks in (True, False))
    assert codes(real) == {"ran-on-cpu"}
    assert [row[:3] for row in work(real)] == [row[:3] for row in work(plain)]
    assert real.bytes_of("gradient") == plain.bytes_of("gradient")


def test_inference_run_for_real() -> None:
    assert work(net(looks=True, batch=8, optimizer=None)) == work(net(looks=False, batch=8, optimizer=None))


def test_a_softmax_that_only_a_gpu_can_do_is_stood_in_for() -> None:
    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.linear(x)
            assert x.detach().numpy().any()
            return x.softmax(-1)

    graph = capture(workload(Head, lambda: torch.randn(16, 8), precision="amp-fp16"))
    assert codes(graph) == {"ran-on-cpu"}
    assert the(graph, "_softmax").signature.outputs[0].shape == (16, 8)


def test_a_program_that_has_computed_with_threads_can_still_fork_a_real_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORETELL_CAPTURE_LIMIT", "120")
    assert (torch.randn(256, 256) @ torch.randn(256, 256)).isfinite().all()
    assert nn.Conv2d(3, 8, 3)(torch.randn(4, 3, 32, 32)).isfinite().all()
    assert codes(net(looks=True, batch=7)) == {"ran-on-cpu"}


def test_what_the_refusal_was_is_in_the_caveat() -> None:
    (caveat,) = net(looks=True, batch=32).caveats
    assert "numpy" in caveat.text.lower() or "data" in caveat.text.lower()


def test_a_refusal_without_words_is_one_too() -> None:
    class Wary(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if isinstance(x, FakeTensor):
                raise TypeError
            return super().forward(x)

    (caveat,) = capture(workload(lambda: Wary(8, 8), lambda: torch.randn(4, 8))).caveats
    assert "(TypeError)" in caveat.text


@pytest.mark.parametrize(
    ("model", "batch", "says"),
    [
        (lambda: Net(True), lambda: torch.randn(10**9, 3, 6, 6), "a batch of 402 GiB, more than 4 GiB"),
        (
            lambda: nn.Sequential(Net(True), nn.Linear(5, 10**8)),
            lambda: torch.randn(2, 3, 6, 6),
            "600,000,145 parameters",
        ),
    ],
)
def test_what_is_too_large_is_not_run_for_real(model: Any, batch: Any, says: str) -> None:
    with pytest.raises(
        WorkloadError, match=f"(?s)RuntimeError.*It was not run for real instead, because it has {says}"
    ):
        capture(workload(model, batch))


class Uneven(nn.Module):
    """Looks at its activations, and does one more layer for every three samples."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(x.shape[0] // 3):
            x = self.linear(x)
            assert x.detach().numpy().size
        return self.linear(x)


@pytest.mark.parametrize(("batch", "layers"), [(6, 3), (13, 5), (40, 5)])
def test_a_path_that_changes_with_the_batch_is_run_whole_or_scaled(batch: int, layers: int) -> None:
    graph = capture(workload(Uneven, lambda: torch.randn(batch, 8)))
    products = named(graph, "addmm", "forward")
    assert [op.signature.inputs[1].shape for op in products] == [(batch, 8)] * layers
    assert graph.bytes_of("parameter") == graph.bytes_of("gradient") == 4 * (8 * 8 + 8)


# Operators of the user's own.


def scaled_by(library: Any, fake: bool) -> Any:
    """An operator that torch knows nothing of, with a gradient, and perhaps with a rule for its shapes."""

    @torch.library.custom_op(library, mutates_args=())
    def scale(x: torch.Tensor, by: float) -> torch.Tensor:
        return x * by

    if fake:
        scale.register_fake(lambda x, by: torch.empty_like(x))
    scale.register_autograd(
        lambda ctx, grad: (scale(grad, ctx.by), None),
        setup_context=lambda ctx, inputs, output: setattr(ctx, "by", inputs[1]),
    )
    return scale


@pytest.mark.parametrize(("fake", "expected"), [(True, set()), (False, {"ran-on-cpu"})])
def test_a_custom_operator_is_kept_under_its_own_name(fake: bool, expected: set[str]) -> None:
    scale = scaled_by(f"foretell_tests::scale_{fake}".lower(), fake)
    loss = lambda model, x: scale(model(x), 3.0).mean()  # noqa: E731
    graph = capture(workload(lambda: nn.Linear(8, 8), lambda: torch.randn(16, 8), loss=loss))
    ops = [op for op in graph.ops if op.target.startswith("foretell_tests.")]
    assert [op.phase for op in ops] == ["forward", "backward"]
    assert ops[0].signature.argument("by") == 3.0
    assert [op.signature.outputs[0].shape for op in ops] == [(16, 8), (16, 8)]
    assert codes(graph) == expected


def test_a_custom_operator_sees_the_activation_it_reads() -> None:
    scale = scaled_by("foretell_tests::scale_seen", True)
    loss = lambda model, x: scale(model(x), 3.0).mean()  # noqa: E731
    graph = capture(workload(lambda: nn.Linear(8, 8), lambda: torch.randn(16, 8), loss=loss))
    op = next(op for op in graph.ops if "scale_seen" in op.target)
    assert storage_of(graph, op.inputs[0]).nbytes == 16 * 8 * 4
    assert "aten.addmm" in names(graph)
