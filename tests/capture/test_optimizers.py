"""The update: which kernels it runs in each form, and the state it finds from the step before."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import pytest
import torch

from foretell.capture import capture
from foretell.graph import Graph
from foretell.sources.named.optimizers import OPTIMIZERS
from tests.capture.tiny import MLP_NUMBERS, mlp, named, names, roles, storage_of, the

Adam, AdamW, SGD = torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD
PARAMETERS = 4 * MLP_NUMBERS
INPUT = 2 * 8 * 4 + 2 * 8
COUNTERS = 4 * 4  # one fp32 number for each of four tensors
FORMS: dict[str, dict[str, bool]] = {
    "default": {},
    "loop": {"foreach": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
}


@cache
def updated_by(optimizer: Callable[..., Any], form: str, **settings: Any) -> Graph:
    return capture(mlp(optimizer=partial(optimizer, **FORMS[form], **settings)))


def expected(**bytes_of: int) -> dict[str, int]:
    return {"parameter": PARAMETERS, "gradient": PARAMETERS, "optimizer": 0, "input": INPUT, "host": 0, **bytes_of}


@pytest.mark.parametrize("form", ["default", "loop"])
@pytest.mark.parametrize("optimizer", [Adam, AdamW])
def test_adam_keeps_two_moments_and_counts_steps_on_the_host(optimizer: Callable[..., Any], form: str) -> None:
    assert roles(updated_by(optimizer, form)) == expected(optimizer=2 * PARAMETERS, host=COUNTERS)


@pytest.mark.parametrize("optimizer", [Adam, AdamW])
def test_fused_adam_counts_steps_on_the_device(optimizer: Callable[..., Any]) -> None:
    assert roles(updated_by(optimizer, "fused")) == expected(optimizer=2 * PARAMETERS + COUNTERS)


def test_amsgrad_keeps_a_third_moment() -> None:
    assert roles(updated_by(AdamW, "default", amsgrad=True)) == expected(optimizer=3 * PARAMETERS, host=COUNTERS)


@pytest.mark.parametrize("form", ["default", "loop", "fused"])
def test_momentum_is_one_more_copy(form: str) -> None:
    assert roles(updated_by(SGD, form, lr=0.1, momentum=0.9)) == expected(optimizer=PARAMETERS)


def test_plain_sgd_keeps_nothing() -> None:
    assert roles(updated_by(SGD, "default")) == expected()


@pytest.mark.parametrize("optimizer", [Adam, AdamW, SGD])
def test_the_default_is_the_foreach_form_as_on_a_gpu(optimizer: Callable[..., Any]) -> None:
    default, foreach = updated_by(optimizer, "default"), updated_by(optimizer, "foreach")
    assert default.ops == foreach.ops
    assert {name for name in names(default, "optimizer") if name.startswith("aten._foreach_")}


@pytest.mark.parametrize(
    ("optimizer", "kernel"), [(Adam, "_fused_adam_"), (AdamW, "_fused_adamw_"), (SGD, "_fused_sgd_")]
)
def test_the_fused_form_is_one_kernel_over_all_parameters(optimizer: Callable[..., Any], kernel: str) -> None:
    graph = updated_by(optimizer, "fused")
    assert len(the(graph, kernel, "optimizer").signature.tensors("self")) == 4


@pytest.mark.parametrize(("optimizer", "kernel"), [(Adam, "addcdiv_"), (AdamW, "addcdiv_"), (SGD, "add_")])
def test_the_loop_updates_one_parameter_at_a_time(optimizer: Callable[..., Any], kernel: str) -> None:
    graph = updated_by(optimizer, "loop")
    assert not [name for name in names(graph) if "_foreach_" in name or "_fused_" in name]
    updates = [op for op in named(graph, kernel, "optimizer") if storage_of(graph, op.inputs[0]).role == "parameter"]
    assert len(updates) == 4


def test_decoupled_weight_decay_is_one_more_pass_over_the_weights() -> None:
    def scalings(graph: Graph) -> int:
        updates = named(graph, "_foreach_mul_", "optimizer")
        return len([op for op in updates if storage_of(graph, op.inputs[0]).role == "parameter"])

    assert scalings(updated_by(AdamW, "default")) == 1
    assert scalings(updated_by(Adam, "default")) == 0


@pytest.mark.parametrize("form", ["default", "loop", "fused"])
def test_state_is_there_before_the_step_and_stays(form: str) -> None:
    graph = updated_by(AdamW, form)
    state = [s for s in graph.storages if s.role in ("optimizer", "host", "parameter", "input")]
    assert {(s.born, s.freed) for s in state} == {(-1, len(graph.ops))}


def test_gradients_are_made_in_the_backward_pass_and_dropped_after_the_update() -> None:
    graph = updated_by(AdamW, "default")
    gradients = [s for s in graph.storages if s.role == "gradient"]
    assert {graph.ops[s.born].phase for s in gradients} == {"backward"}
    assert {s.freed for s in gradients} == {len(graph.ops) - 1}


def test_the_recorded_step_is_the_second() -> None:
    """The first step of Adam fills its moments with zeros; no later one does."""
    graph = updated_by(AdamW, "default")
    assert not [name for name in names(graph, "optimizer") if "zeros" in name]


def test_clipping_takes_a_norm_of_all_gradients_and_scales_them() -> None:
    graph = capture(mlp(optimizer=AdamW, clip_grad_norm=1.0))
    norm = the(graph, "_foreach_norm", "optimizer")
    assert {storage_of(graph, i).role for i in norm.inputs} == {"gradient"}
    assert len(norm.inputs) == 4
    scaling = next(op for op in named(graph, "_foreach_mul_") if storage_of(graph, op.inputs[0]).role == "gradient")
    assert scaling.phase == "optimizer"
    assert not named(updated_by(AdamW, "default"), "_foreach_norm")


def test_a_step_of_ones_own_with_two_optimizers() -> None:
    made: dict[str, Any] = {}

    def step(model: Any, optimizer: Any, batch: Any) -> None:
        second = made.setdefault("second", torch.optim.Adam(model[2].parameters()))
        torch.nn.functional.cross_entropy(model(batch["x"]), batch["y"]).backward()
        optimizer.step()
        second.step()
        model.zero_grad()

    graph = capture(mlp(optimizer=partial(SGD, lr=0.1, momentum=0.9), step=step))
    last_layer = 4 * (16 * 4 + 4)
    assert roles(graph)["optimizer"] == PARAMETERS + 2 * last_layer
    assert roles(graph)["gradient"] == PARAMETERS
    assert roles(graph)["host"] == 8
    assert set(names(graph, "optimizer")) >= {"aten._foreach_add_", "aten._foreach_addcdiv_"}


def test_master_weights_are_fp32_copies_beside_two_moments() -> None:
    graph = capture(mlp(optimizer=OPTIMIZERS["adamw-master"], precision="bf16"))
    found = roles(graph)
    assert (found["parameter"], found["gradient"]) == (PARAMETERS // 2, PARAMETERS // 2)
    assert found["optimizer"] == 3 * PARAMETERS + COUNTERS
    assert "aten._fused_adamw_" in names(graph, "optimizer")


def test_what_a_step_makes_updates_and_forgets_is_no_parameter() -> None:
    def step(model: Any, optimizer: Any, batch: Any) -> None:
        nudge = torch.zeros(2, 8, requires_grad=True)  # as adversarial training has it
        model(batch["x"] + nudge).sum().backward()
        SGD([nudge], lr=0.1).step()
        optimizer.step()
        optimizer.zero_grad()

    graph = capture(mlp(step=step))
    assert graph.gradients is not None
    assert {graph.storages[number].role for number in graph.gradients} == {"parameter"}
    assert len(graph.gradients) == 4
