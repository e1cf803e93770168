"""Collectives measured among real ranks, and the links of a profile fitted on such times."""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
from pathlib import Path

import pytest

from foretell.errors import InputError
from foretell.hardware import Cluster
from foretell.learn.adapt.collectives import Timed, collective, fit_collectives, fit_links, mean_error, timed
from foretell.measure.ranks.collectives import KINDS, groups, measure_collectives
from foretell.measure.ranks.world import join
from foretell.measure.record import Point, Record, StepRow
from foretell.profile import Links
from foretell.program import Group

SIZES = (1024, 65536)


def _rank(rank: int, port: int, out: Path) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "MASTER_ADDR": "localhost"}
    os.environ["MASTER_PORT"] = str(port)
    with join(backend="gloo", timeout=60) as world:
        records = measure_collectives(world, sizes=SIZES, seconds=0.01)
        out.with_suffix(f".{rank}").write_text("".join(record.to_line() + "\n" for record in records))


def test_two_ranks_measure_every_kind(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    fork = multiprocessing.get_context("fork")
    ranks = [fork.Process(target=_rank, args=(rank, port, tmp_path / "out")) for rank in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(120)
        assert process.exitcode == 0
    assert (tmp_path / "out.1").read_text() == ""
    rows = [Record.from_line(line).step for line in (tmp_path / "out.0").read_text().splitlines()]
    assert [(row.source, json.loads(row.settings)["bytes"]) for row in rows] == [
        (k, str(n)) for k in KINDS for n in SIZES
    ]
    assert {(row.kind, row.cluster, row.world_size, row.backend) for row in rows} == {
        ("collective", "1x2xcpu", 2, "gloo")
    }
    assert all(row.step_seconds and row.step_seconds > 0 for row in rows)
    assert len(timed(rows, Cluster.parse("8xcpu"))) == len(rows)


@pytest.mark.parametrize(
    ("ranks", "of_a_node", "sizes"),
    [
        (8, 8, [(8, 1, 1), (4, 1, 2), (2, 1, 4)]),
        (8, 4, [(8, 1, 1), (4, 1, 2), (2, 1, 4), (2, 4, 4)]),
        (4, 1, [(4, 1, 1)]),
        (3, 3, [(3, 1, 1)]),
        (2, 2, [(2, 1, 1)]),
    ],
)
def test_groups_lie_as_those_of_plans(ranks: int, of_a_node: int, sizes: list[tuple[int, int, int]]) -> None:
    assert [(g.size, g.stride, g.count) for g in groups(ranks, of_a_node)] == sizes


CLUSTER = Cluster.parse("2x8xh100-sxm@eth-100g")


def times(links: Links, group: Group, sizes: tuple[int, ...] = (2**12, 2**18, 2**22, 2**26)) -> list[Timed]:
    made = [
        Timed(collective=collective(kind, n, group), cluster=CLUSTER, seconds=1.0) for kind in KINDS[:3] for n in sizes
    ]
    return [Timed(collective=t.collective, cluster=t.cluster, seconds=t.predicted(links)) for t in made]


def test_links_are_found_again() -> None:
    true = Links(bandwidth=0.4, latency=2.0)
    few = times(true, Group(size=16))
    found = fit_links(few, ("bandwidth", "latency"))
    assert found.bandwidth == pytest.approx(0.4, rel=0.1)
    assert found.latency == pytest.approx(2.0, rel=0.2)
    unseen = times(true, Group(size=8, count=2), (2**15, 2**24))
    assert mean_error(unseen, found) < 0.1 < mean_error(unseen)


def test_a_slow_network_is_told_from_slow_links_inside() -> None:
    true = Links(neighbours=3.0)
    inside, across = times(true, Group(size=8, count=2)), times(true, Group(size=16))
    found = fit_links([*inside, *across])
    assert found.neighbours == pytest.approx(3.0, rel=0.15)
    assert max(mean_error(inside, found), mean_error(across, found)) < 0.1 < mean_error(across)


def test_crowding_is_found_where_small_groups_were_measured_too() -> None:
    true = Links(crowding=0.6)
    each = [*times(true, Group(size=8, count=2)), *times(true, Group(size=2, count=8))]
    assert mean_error(each, fit_links(each)) < 0.15


def test_the_profile_has_its_errors_and_changes_nothing_where_nothing_is_wrong() -> None:
    right = fit_collectives(times(Links(), Group(size=16)), name="right", cluster=str(CLUSTER))
    assert right.links == Links()
    assert right.card.form == "links: nothing"
    slow = fit_collectives(times(Links(bandwidth=0.3), Group(size=16)), name="slow", cluster=str(CLUSTER))
    assert slow.links.bandwidth / slow.links.neighbours == pytest.approx(0.3, rel=0.15)  # no group lay inside a node
    assert (slow.card.error_after or 0.0) < 0.1 < (slow.card.error_before or 0.0)
    assert slow.purpose.cluster == str(CLUSTER)


def test_without_times_there_is_no_profile() -> None:
    with pytest.raises(InputError, match="foretell measure --collectives"):
        fit_collectives([], name="none")


def row(laid: str = "2x1xcpu", kind: str = "all-reduce", **settings: str) -> StepRow:
    asked = {"bytes": "1024", "ranks": "2", "stride": "1", "groups": "1"} | settings
    point = Point(source=kind, settings=asked, kind="collective")
    return StepRow(**point.columns, cluster=laid, step_seconds=0.1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (row(), "more nodes"),
        (row("1x2xcpu", ranks="many"), "bytes, ranks, stride and groups"),
        (row("1x2xcpu", ranks="4"), "does not fit"),
        (row("1x2xcpu", bytes="0"), "does not fit"),
        (row("1x2xcpu", kind="all-round"), "all-round"),
    ],
)
def test_rows_that_cannot_be(wrong: StepRow, says: str) -> None:
    with pytest.raises(InputError, match=says):
        timed([wrong], Cluster.parse("8xh100-sxm"))
