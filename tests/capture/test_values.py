"""Control flow that depends on contents: exact where they follow from the batch, typical and flagged where not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from foretell.capture import capture
from foretell.capture.values import Values, contents_of
from foretell.errors import WorkloadError
from foretell.graph import Graph
from foretell.graph.rescale import same_path
from tests.capture.tiny import codes, named, workload


class Reads(nn.Module):
    """A linear layer around a function of the module and the batch."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.function = function

    def forward(self, batch: Any) -> torch.Tensor:
        return self.function(self.linear, batch)


def step_with(function: Any, batch: Any, **settings: Any) -> Graph:
    return capture(workload(lambda: Reads(function), lambda: batch, **settings))


def rows(graph: Graph) -> list[int]:
    """Samples in each product of the forward pass."""
    return [op.signature.inputs[1].shape[0] for op in named(graph, "addmm", "forward")]


@settings(max_examples=4, deadline=None)
@given(count=st.integers(1, 20))
def test_a_number_read_from_the_batch_is_exact(count: int) -> None:
    def repeat(linear: Any, batch: Any) -> torch.Tensor:
        x = batch["x"]
        for _ in range(batch["count"].item()):
            x = linear(x)
        return x

    graph = step_with(repeat, {"x": torch.randn(3, 8), "count": torch.tensor(count)})
    assert len(rows(graph)) == count
    assert not graph.caveats


@pytest.mark.parametrize("lengths", [[2, 3, 1], [4], [1, 1, 1, 1]])
def test_lengths_computed_from_the_batch_are_exact(lengths: list[int]) -> None:
    def pieces(linear: Any, batch: Any) -> torch.Tensor:
        counted = batch["mask"].sum(dim=1)
        return torch.cat([linear(x[:n]) for x, n in zip(batch["x"], counted.tolist(), strict=True)])

    longest = max(lengths)
    mask = torch.tensor([[i < n for i in range(longest)] for n in lengths])
    graph = step_with(pieces, {"x": torch.randn(len(lengths), longest, 8), "mask": mask})
    assert rows(graph) == lengths
    assert not graph.caveats


def test_a_mask_from_the_batch_selects_exactly() -> None:
    def masked(linear: Any, batch: Any) -> torch.Tensor:
        return linear(batch["x"][batch["mask"]])

    mask = torch.tensor([[True, False, True], [False, False, True]])
    graph = step_with(masked, {"x": torch.randn(2, 3, 8), "mask": mask})
    assert rows(graph) == [3]
    assert [op.signature.outputs[0].shape for op in named(graph, "nonzero", "forward")] == [(3, 2)]
    assert not graph.caveats


def test_a_batch_made_under_capture_has_contents_too() -> None:
    def masked(linear: Any, batch: Any) -> torch.Tensor:
        return linear(batch["x"][batch["kept"]])

    make = lambda: {"x": torch.randn(6, 8), "kept": torch.arange(6) % 3 == 0}  # noqa: E731
    graph = capture(workload(lambda: Reads(masked), make))
    assert rows(graph) == [2]
    assert not graph.caveats


@pytest.mark.parametrize("given", [True, False])
def test_a_float_mask_is_known_at_any_batch(given: bool) -> None:
    def attend(linear: Any, batch: Any) -> torch.Tensor:
        mask = batch["mask"] if given else torch.ones(batch["x"].shape[:2])
        return linear(batch["x"]) if mask.all() else linear(batch["x"] * mask[..., None])

    few, many = (step_with(attend, {"x": torch.randn(n, 256, 8), "mask": torch.ones(n, 256)}) for n in (4, 64))
    assert not many.caveats
    assert same_path(few, many)


def test_random_numbers_in_plenty_are_not_computed() -> None:
    def noisy(linear: Any, batch: Any) -> torch.Tensor:
        noise = torch.randn(batch.shape)
        return linear(batch + noise) if noise.sum() > 0 else linear(batch)

    assert codes(step_with(noisy, torch.randn(1024, 8))) == {"assumed-values"}


def test_a_branch_on_the_batch_takes_the_right_side() -> None:
    def branch(linear: Any, batch: Any) -> torch.Tensor:
        return linear(batch["x"]) if (batch["y"] > 3).all() else batch["x"] * linear.weight[0]

    assert rows(step_with(branch, {"x": torch.randn(2, 8), "y": torch.tensor([4, 5])})) == [2]
    assert rows(step_with(branch, {"x": torch.randn(2, 8), "y": torch.tensor([3, 5])})) == []


def test_writing_unknown_numbers_over_known_ones_forgets_them() -> None:
    def overwrite(linear: Any, batch: Any) -> torch.Tensor:
        x = linear(batch["x"])
        batch["count"].clone().copy_(x.sum())
        known = batch["count"] * 1
        known.copy_(x.sum())
        return x.sum() * known.item()

    graph = step_with(overwrite, {"x": torch.randn(2, 8), "count": torch.tensor(5)})
    assert codes(graph) == {"assumed-values"}


def test_an_integer_that_depends_on_activations_is_assumed_and_said() -> None:
    def count(linear: Any, batch: Any) -> torch.Tensor:
        x = linear(batch)
        return x[: int((x > 0).sum().item())] + x.argmax(-1).max().item()

    graph = step_with(count, torch.randn(64, 8))
    assert codes(graph) == {"assumed-values"}
    assert any("half of the elements" in caveat.text for caveat in graph.caveats)


def test_half_of_a_comparison_of_activations_holds() -> None:
    def positive(linear: Any, batch: Any) -> torch.Tensor:
        x = linear(batch)
        return linear(x[x[:, 0] > 0])

    graph = step_with(positive, torch.randn(400, 8))
    assert rows(graph)[0] == 400
    assert rows(graph)[1] == pytest.approx(200, abs=60)
    assert codes(graph) == {"assumed-values"}


class Experts(nn.Module):
    """The loop of a mixture of experts: each takes the tokens whose top-k names it."""

    def __init__(self, experts: int, chosen: int) -> None:
        super().__init__()
        self.gate = nn.Linear(8, experts)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(experts))
        self.chosen = chosen

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, choice = self.gate(x).softmax(-1).topk(self.chosen, dim=-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            token, slot = torch.where(choice == number)
            out.index_add_(0, token, expert(x[token]) * weights[token, slot, None])
        return out


@pytest.mark.parametrize("chosen", [1, 2])
def test_every_token_is_routed_to_as_many_experts_as_it_chooses(chosen: int) -> None:
    tokens, experts = 128, 4
    graph = capture(workload(lambda: Experts(experts, chosen), lambda: torch.randn(tokens, 8)))
    gate, *shares = rows(graph)
    assert gate == tokens
    assert len(shares) == experts
    assert sum(shares) == tokens * chosen
    assert all(share == pytest.approx(tokens * chosen / experts, rel=0.5) for share in shares)
    assert [c.text for c in graph.caveats if "uniform" in c.text]


@pytest.mark.parametrize(
    ("function", "indices"),
    [
        (lambda x: x.argmax(-1), 8), (lambda x: x.max(-1).indices, 8), (lambda x: x.argmin(0), 16),
        (lambda x: x.argmax(), 128), (lambda x: x.sort(descending=True).indices, 8), (lambda x: x.topk(3, 0).indices, 16),
        (lambda x: x.softmax(-1).multinomial(2), 8), (lambda x: x.max(-1, keepdim=True).indices, 8),
    ],
)  # fmt: skip
def test_assumed_choices_stay_within_their_dimension(function: Any, indices: int) -> None:
    def look_up(linear: Any, batch: Any) -> torch.Tensor:
        chosen = function(linear(batch)).flatten().tolist()
        assert all(0 <= i < indices for i in chosen), chosen
        return linear(batch)

    assert codes(step_with(look_up, torch.randn(16, 8))) == {"assumed-values"}


def test_inference_may_read_values_too() -> None:
    def masked(linear: Any, batch: Any) -> torch.Tensor:
        return linear(batch["x"][batch["y"] == 1])

    batch = {"x": torch.randn(4, 8), "y": torch.tensor([1, 0, 1, 1])}
    assert rows(step_with(masked, batch, optimizer=None)) == [3]


def test_contents_that_a_stand_in_cannot_compute_are_unknown() -> None:
    library = torch.library.Library("foretell_tests", "FRAGMENT")
    library.define("unpack(Tensor packed) -> Tensor")

    def refuse(packed: torch.Tensor) -> torch.Tensor:
        raise WorkloadError("it computes on a GPU")

    library.impl("unpack", refuse, "CPU")
    unpack = torch.ops.foretell_tests.unpack.default
    torch.library.register_fake("foretell_tests::unpack", lambda packed: packed.new_empty(packed.shape), lib=library)
    fake = FakeTensorMode()
    values = Values(fake)
    with fake:
        packed = torch.zeros(4, dtype=torch.uint8)
    values.give(packed, torch.zeros(4, dtype=torch.uint8))
    with fake:
        assert contents_of(values.run(unpack, (packed,), {})) is None


def test_a_mask_that_nobody_knows_chooses_as_many_each_time() -> None:
    def twice(linear: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        mask = linear(batch)[:, 0].bool()
        return linear(batch[mask] + batch.flip(0)[mask])  # type: ignore[no-any-return]

    graph = step_with(twice, torch.randn(64, 8))
    assert 0 < rows(graph)[-1] < 64


def test_a_mask_made_beside_a_parameter_is_known_and_an_optimizers_state_is_not() -> None:
    fake = FakeTensorMode()
    values, make = Values(fake), torch.ops.aten.new_zeros.default
    with fake:
        weight = nn.Parameter(torch.empty(96, 64))
        mask = values.run(make, (weight, (96,)), {"dtype": torch.bool})
        state = values.run(make, (weight, (96, 64)), {})
    assert contents_of(mask) is not None
    assert contents_of(state) is None


def test_what_is_written_through_a_view_is_not_what_its_tensor_had_before() -> None:
    def chosen(linear: Any, batch: Any) -> torch.Tensor:
        made = linear(batch["x"])
        boxes = torch.zeros_like(made)
        boxes[:, 0::2] = made[:, 0::2]
        large = torch.where(boxes[:, 0] >= 0.25)[0]  # of numbers that nobody knows, and not of the zeros before
        return linear(boxes[large])

    first, second = rows(step_with(chosen, {"x": torch.randn(64, 8)}))
    assert first == 64
    assert 16 < second < 48


def test_averages_over_large_windows_are_not_worked_out() -> None:
    fake = FakeTensorMode()
    values, pool = Values(fake), torch.ops.aten.avg_pool2d.default
    with fake:
        mask = torch.ones(2, 1, 256, 256)
    values.give(mask, torch.ones(2, 1, 256, 256))
    with fake:
        near = values.run(pool, (mask, [2, 2]), {})
        far = values.run(pool, (mask, [127, 127], [1, 1]), {})
    assert contents_of(near) is not None  # whole numbers still
    assert contents_of(far) is None
