"""What NCCL's communicators take, against what users measured of them."""

from __future__ import annotations

import pytest

from foretell.cost.communicators import communicator_bytes
from foretell.graph import Graph
from foretell.hardware import Cluster
from foretell.program import Collective, Group, Role
from foretell.units import GIB, MIB

NOTHING = Graph(name="nothing", ops=(), tensors=(), storages=())


def _collective(kind: str, size: int, stride: int = 1) -> Collective:
    return Collective(
        kind=kind, nbytes=1, group=Group(size=size, stride=stride), name="", starts_after=0, waited_for_by=1
    )


def _taken(on: str, *collectives: Collective) -> int:
    cluster = Cluster.parse(on)
    role = Role(name="dp", count=cluster.devices, graph=NOTHING, collectives=collectives)
    return communicator_bytes(role, cluster)


def test_one_device_has_none() -> None:
    assert _taken("a100-80g-sxm", _collective("all-reduce", 1)) == 0


@pytest.mark.parametrize(
    ("on", "measured"),
    [("2xa100-80g-sxm", 544 * MIB), ("4xa100-80g-sxm", 688 * MIB), ("8xh100-sxm", 958 * MIB)],
)
def test_a_group_takes_what_users_measured(on: str, measured: int) -> None:
    """NVIDIA/nccl#964 and vllm-project/vllm#46234."""
    assert _taken(on) == pytest.approx(measured, rel=0.03)


def test_messages_to_every_rank_take_buffers_for_each() -> None:
    """From 1.06 to 4.34 GB in NVIDIA/nccl#1685."""
    more = _taken("8xh100-sxm", _collective("all-to-all", 8)) - _taken("8xh100-sxm")
    assert more == pytest.approx((4.34 - 1.06) * 1e9, rel=0.08)


def test_each_group_has_its_own_and_all_ranks_share_one() -> None:
    whole = _taken("8xa100-80g-sxm")
    assert _taken("8xa100-80g-sxm", _collective("all-reduce", 8)) == whole
    split = _taken("8xa100-80g-sxm", _collective("all-reduce", 2), _collective("all-gather", 4, 2))
    assert split == pytest.approx(whole + (544 + 688) * MIB, rel=0.03)


def test_pairs_over_two_nodes_share_a_buffer_for_messages() -> None:
    near = _taken("8xa100-80g-sxm", _collective("send-recv", 2, 4)) - _taken("8xa100-80g-sxm")
    on = "2x8xa100-80g-sxm@ib-200g"
    far = _taken(on, _collective("send-recv", 2, 8)) - _taken(on)
    assert 0 < far < near < GIB
