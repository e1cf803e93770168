"""Which host feeds the boards of a question."""

from __future__ import annotations

from dataclasses import replace

import pytest

import foretell
from foretell.errors import ForetellError
from foretell.forecasting.result import Forecast
from foretell.graph import Graph
from foretell.hardware import Cluster, host, host_named, on_hosts


def fed_by(*on: str, given: str | float | None = None) -> list[str]:
    return [node.host.name for c in on_hosts([Cluster.parse(each) for each in on], given) for node in c.nodes[:1]]


def test_boards_of_one_question_share_the_slowest_of_their_hosts() -> None:
    assert fed_by("h200", "rtx-4090", "8xh100-sxm") == ["cloud-vm"] * 3
    assert fed_by("rtx-4090", "h100-sxm") == [Cluster.parse("h100-sxm").nodes[0].host.name] * 2


def test_one_board_and_boards_of_one_host_keep_theirs() -> None:
    assert fed_by("rtx-4090") == ["desktop"]
    assert fed_by("rtx-4090", "rtx-5090", "4xrtx-3090") == ["desktop"] * 3


def test_hosts_that_cannot_be_changed_are_left_alone() -> None:
    assert fed_by("h200", "rtx-4090", "m3-max", "gh200", "cpu")[2:] == ["apple-silicon", "grace", "epyc-milan"]
    rented = Cluster.parse("aws:p5.48xlarge").nodes[0].host.name
    assert fed_by("aws:p5.48xlarge", "h200", "rtx-4090") == [rented, "cloud-vm", "cloud-vm"]


def test_a_host_that_is_named_feeds_all() -> None:
    assert fed_by("h200", "aws:p5.48xlarge", "cpu", given="epyc-turin") == ["epyc-turin"] * 3
    assert fed_by("h200", "rtx-4090", given="usual") == ["cloud-vm", "desktop"]
    assert fed_by("h200", given="12us") == fed_by("h200", given=12e-6) == ["12 µs per op"]


@pytest.mark.parametrize("wrong", ["nosuch", "12 apples", 0.0, 100.0])
def test_a_host_that_is_none_is_refused(wrong: str | float) -> None:
    with pytest.raises(ForetellError, match=r"host|duration"):
        foretell.Conditions(host=wrong)


def test_a_cluster_has_the_host_it_is_given() -> None:
    named = Cluster.parse("2x8xh100-sxm", host="epyc-turin")
    assert {node.host for node in named.nodes} == {host("epyc-turin")}
    assert str(named) == "2x8xh100-sxm"
    assert replace(Cluster.parse("2x8xh100-sxm"), host=host_named("epyc-turin")) == named
    assert len({id(node) for node in named.nodes}) == 1  # equal nodes stay one object


def test_an_answer_says_its_host_and_goes_by_it(one_step: Graph) -> None:
    def on(board: str, given: str | float | None) -> Forecast:
        return foretell.forecast(one_step, board, conditions=foretell.Conditions(host=given))

    slow, fast = on("h200", None), on("h200", "5us")
    assert slow.to_dict()["host"] == {"name": "cloud-vm", "op_seconds": pytest.approx(19e-6)}
    assert fast.host_time.seconds / slow.host_time.seconds == pytest.approx(5 / 19, rel=0.02)
    assert fast.step_time.seconds <= 1.001 * on("rtx-4090", "5us").step_time.seconds


def test_a_plan_is_searched_on_one_host(one_step: Graph) -> None:
    from foretell.planner.plan import plan

    job = foretell.JobLength.usual(samples=1e6)
    alone, both = (
        plan(one_step, job=job, space=foretell.Space(gpus=gpus, max_devices=1))
        for gpus in (["rtx-4090"], ["h200", "rtx-4090"])
    )
    assert [any("cloud-vm" in text for text in each.caveats) for each in (alone, both)] == [False, True]
    assert both.front[0].step.median / alone.front[0].step.median == pytest.approx(
        host("cloud-vm").op_seconds / host("desktop").op_seconds, rel=0.1
    )


@pytest.fixture(scope="module")
def one_step() -> Graph:
    from torch import nn

    def workload() -> foretell.Workload:
        import torch

        return foretell.Workload(
            name="small",
            model=lambda: nn.Sequential(*[nn.Linear(256, 256) for _ in range(12)]),
            batch=lambda: {"x": torch.randn(32, 256)},
            loss=lambda model, b: model(b["x"]).square().mean(),
            optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
        )

    return foretell.capture_graph(workload())
