"""The quarter of generated networks that judges models stays out of every fit."""

from __future__ import annotations

import numpy as np

from foretell.cost.features import describe
from foretell.design.blind import fold_of, is_blind, is_generated
from foretell.graph import Input, Layout, Signature
from foretell.hardware import device
from foretell.learn.dataset import Measured, OpTable, merged, without_blind
from foretell.measure.record import StepRow

H200 = device("h200")


def _row(source: str) -> StepRow:
    return StepRow(point=source, kind="step", source=source, settings="{}", device="h200", outcome="ok")


def _measured(*sources: str) -> Measured:
    """Two ops of each step, whose seconds say which it is, and one op by itself."""
    x = Layout.contiguous((64, 64), "float32")
    s = Signature("aten.relu.default", (x,), (x,), (("self", Input(0)),))
    count = 2 * len(sources) + 1
    ops = OpTable(
        signatures=[s] * count,
        descriptions=[describe(s, H200, tf32=False)] * count,
        seconds=np.array([*np.repeat(np.arange(len(sources)) + 1.0, 2), 99.0]),
        count=np.ones(count, np.int64),
        step=np.array([*np.repeat(np.arange(len(sources)), 2), -1]),
        share=np.full(count, 0.5),
    )
    return Measured(device=H200, steps=[_row(source) for source in sources], graphs={}, ops=ops)


def test_seeds_that_four_divides_are_blind() -> None:
    assert [n for n in range(9) if is_blind(f"generated/{n}")] == [0, 4, 8]
    assert not is_blind("timm/resnet18")
    assert not is_generated("timm/resnet18")
    assert len({fold_of(f"generated/{n}") for n in range(200)}) == 8


def test_functions_in_a_package_called_blind_are_blind() -> None:
    assert is_blind("networks.kinds.blind.images:crowds")
    assert not is_blind("networks.kinds.images:blind")
    assert not is_blind("timm/blind")
    assert not is_generated("networks.kinds.blind.images:crowds")
    found = without_blind(_measured("networks.blind.images:crowds", "networks.images:crowds"))
    assert [s.source for s in found.steps] == ["networks.images:crowds"]


def test_blind_steps_and_their_ops_are_left_out_of_what_is_fitted() -> None:
    found = without_blind(_measured("generated/3", "generated/4", "timm/resnet18", "generated/8", "generated/9"))
    assert [s.source for s in found.steps] == ["generated/3", "timm/resnet18", "generated/9"]
    assert found.ops.seconds.tolist() == [1, 1, 3, 3, 5, 5, 99]
    assert found.ops.step.tolist() == [0, 0, 1, 1, 2, 2, -1]


def test_stores_are_joined_with_their_own_steps() -> None:
    found = merged([_measured("a", "b"), _measured("c")])
    assert [s.source for s in found.steps] == ["a", "b", "c"]
    assert found.ops.step.tolist() == [0, 0, 1, 1, -1, 2, 2, -1]
