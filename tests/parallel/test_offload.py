"""What the host keeps: no state on the device, gradients out and parameters back, an update that the host computes."""

from __future__ import annotations

from dataclasses import replace

import pytest

import foretell
from foretell import Forecast, Graph, Plan
from foretell.cost.offload import host_seconds, to_host
from foretell.errors import CatalogError, PlanError
from foretell.hardware import Cluster, device
from foretell.parallel import parallelize
from foretell.program import Collective, Group

from . import models

_NODE = Cluster.parse("h100-sxm").nodes[0]


def graph() -> Graph:
    return models.graph("llama")


def asked(plan: str, on: str = "h100-sxm") -> Forecast:
    return foretell.forecast(graph(), on, plan, model="roofline")


def test_the_optimizer_leaves_the_device() -> None:
    here, away = asked("zero=2"), asked("zero=2,offload=optimizer")
    assert here.memory.breakdown.optimizer > 0
    assert away.memory.breakdown.optimizer == 0
    assert away.memory.allocated < here.memory.allocated
    assert away.memory.communicator == 0  # one device has nobody to communicate with
    assert any(caveat.code == "offload-assumed" for caveat in away.caveats)


def test_bytes_that_pass_are_the_gradients_and_the_parameters() -> None:
    role = parallelize(graph(), Plan.parse("zero=2,offload=optimizer")).roles[0]
    moved = {
        kind: sum(c.nbytes for c in role.collectives if c.kind == kind)
        for kind in ("to-host", "from-host", "host-update")
    }
    trained = [graph().storages[p] for p in graph().gradients or {}]
    assert moved["to-host"] == moved["from-host"] == sum(s.nbytes for s in trained)
    assert moved["host-update"] == sum(s.nbytes for s in trained) // 4
    halves = parallelize(graph(), Plan.parse("dp=2,zero=2,offload=optimizer")).roles[0]
    assert sum(c.nbytes for c in halves.collectives if c.kind == "host-update") == pytest.approx(
        moved["host-update"] / 2, rel=0.01
    )


def test_parameters_come_block_by_block() -> None:
    whole, streamed = asked("zero=2,offload=optimizer"), asked("zero=3,offload=parameters")
    assert streamed.memory.breakdown.parameters < whole.memory.breakdown.parameters
    role = parallelize(graph(), Plan.parse("zero=3,offload=parameters")).roles[0]
    assert not any(c.kind in ("all-gather", "reduce-scatter") for c in role.collectives)
    assert any(c.name.startswith("fetch") for c in role.collectives)
    several = parallelize(graph(), Plan.parse("dp=4,zero=3,offload=parameters")).roles[0]
    gathered = sum(c.nbytes for c in several.collectives if c.kind == "all-gather")
    fetched = sum(c.nbytes for c in several.collectives if c.kind == "from-host")
    assert fetched == pytest.approx(gathered / 4, rel=0.01)


def test_a_drive_is_slower_than_memory_and_grace_is_nearer() -> None:
    def seconds(kind: str) -> float:
        move = Collective(kind=kind, nbytes=10**9, group=Group(size=1), name="", starts_after=0, waited_for_by=1)
        return host_seconds(move, _NODE)

    assert seconds("nvme-update") > seconds("host-update") > 0.2
    assert seconds("from-nvme") > seconds("from-host")
    assert to_host(Cluster.parse("gh200").nodes[0].device) > to_host(_NODE.device)


def test_a_link_that_nobody_knows_is_asked_for_never_assumed() -> None:
    with pytest.raises(CatalogError, match=r"no link between them.*host_link"):
        asked("zero=2,offload=optimizer", on="m2-ultra")
    unknown = replace(device("h100-sxm"), architecture="Unheard of")
    assert to_host(unknown) == to_host(device("h100-sxm"))


@pytest.mark.parametrize(
    ("plan", "says"),
    [("zero=2,offload=parameters", "zero=3"), ("offload_to=nvme", "offload=none"), ("dp=2,servers=1,offload=optimizer", "servers")],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(plan: str, says: str) -> None:
    with pytest.raises(PlanError, match=says):
        parallelize(graph(), Plan.parse(plan))
