"""Fits of fabrics find what was put in, and what they write is what the catalog reads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from foretell_bench.cli import app
from foretell_bench.fitting import fabrics, few_times, networks, prices, published
from foretell_bench.fitting.collectives import Row, Topology
from typer.testing import CliRunner

from foretell.hardware import Cluster, Node, device, fabric, fabric_of, host, link
from foretell.hardware.catalog import SHIPPED
from foretell.hardware.catalog_file import INSTANCE, make_instance, parse_file
from foretell.program import Collective, Group


@pytest.mark.parametrize("verb", ["fabrics", "networks", "links", "prices"])
def test_every_verb_says_what_it_does(verb: str) -> None:
    result = CliRunner().invoke(app, ["fit", verb, "--help"])
    assert result.exit_code == 0
    assert "--help" in result.output


def measured(*, slower: float = 1.0, left_out: bool = False) -> list[Row]:
    """All-gathers among two and four devices on PCIe, as the catalog estimates them, or so many times slower."""
    rows = []
    for count in (2, 4):
        chip = device("l40s")
        node = Node(device=chip, count=count, host=host(chip.host), inside=link("pcie-4-host"))
        topology = Topology(
            name=f"{count} l40s",
            fabric="pcie-host",
            cluster=Cluster(nodes=(node,)),
            group=Group(size=count),
            left_out=left_out,
        )
        for power in range(10, 28, 2):
            collective = Collective(
                kind="all-gather", nbytes=2**power, group=topology.group, name="", starts_after=0, waited_for_by=0
            )
            row = Row(source="made up", topology=topology, collective=collective, measured=1.0)
            rows.append(replace(row, measured=slower * row.estimate(fabric_of, {})))
    return rows


def test_a_fit_finds_links_that_are_slower_than_listed() -> None:
    rows = measured(slower=1.3)
    before = fabrics.Fit(fabric("pcie-host"), {})
    after = fabrics.fit(fabric("pcie-host"), rows)

    def worst(fitted: fabrics.Fit) -> float:
        return max(abs(fitted.estimate(row) / row.measured - 1) for row in rows)

    assert worst(before) == pytest.approx(1 - 1 / 1.3)
    assert worst(after) < 0.1


def test_errors_are_shown_for_what_was_left_out() -> None:
    rows = measured() + measured(slower=2.0, left_out=True)
    shown: list[str] = []
    fabrics.report(rows, {"pcie-host": fabrics.Fit(fabric("pcie-host"), {})}, shown.append)
    assert "fitted on: median 0.0%, mean 0.0%, 18 points" in shown
    assert "left out: median 50.0%, mean 50.0%, 18 points" in shown


def test_what_is_written_is_what_the_catalog_has(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = (SHIPPED / "fabrics" / "pcie-host.toml").read_text()
    assert fabrics.as_toml(fabric("pcie-host"), fabrics.PROTOCOL) == text
    for name in ("pcie", "tcp", "nvswitch", "nvswitch-5", "nvlink-mesh"):
        text = (SHIPPED / "fabrics" / f"{name}.toml").read_text()
        assert fabrics.as_toml(fabric(name), fabrics.PROTOCOL) == text
    for name in ("rdma", "roce", "efa"):
        text = (SHIPPED / "fabrics" / f"{name}.toml").read_text()
        assert networks.as_toml(fabric(name), networks.PROTOCOL) == text
    for folder, name in (("fabrics", "pcie-host"), ("links", "pcie-4-host")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"{name}.toml").write_bytes((SHIPPED / folder / f"{name}.toml").read_bytes())
    monkeypatch.setattr(fabrics, "SHIPPED", tmp_path)
    fabrics.write({"pcie-host": fabrics.Fit(fabric("pcie-host"), {})}, measured())
    assert "error = 0.3\n" in (tmp_path / "fabrics" / "pcie-host.toml").read_text()  # nothing was left out
    fabrics.write({"pcie-host": fabrics.Fit(fabric("pcie-host"), {"pcie-4-host": 3e-6})}, measured())
    assert 'latency = "3 us"' in (tmp_path / "links" / "pcie-4-host.toml").read_text()


def test_published_figures_are_within_the_error_that_is_written() -> None:
    shipped = {name: fabric(name) for name in networks.FIGURES}
    for name, figures in networks.FIGURES.items():
        widest = np.quantile(abs(networks.logs(figures, shipped[name])), 0.9)
        assert widest == pytest.approx(shipped[name].error, rel=0.01)
    shown: list[str] = []
    networks.report(shipped, shown.append)
    assert any("nccl#1229" in line for line in shown)


def test_sources_weigh_as_the_square_root_of_their_figures() -> None:
    rows = [replace(published.EFA[0], source=source) for source in "aaaab"]
    assert [each**2 for each in published.weights(rows)] == pytest.approx([0.5, 0.5, 0.5, 0.5, 1.0])


def test_times_of_a_host_that_launched_are_in_no_fit() -> None:
    rows = measured()
    launched = [replace(row, measured=100 * row.measured, host_bound=True) for row in rows]
    assert fabrics.fit_all([*rows, *launched]) == fabrics.fit_all(rows)


def test_a_later_generation_keeps_the_form_of_the_one_before() -> None:
    """Latencies that were put in come out; its rates are published."""
    cluster = Cluster.parse("8xb200")
    topology = Topology(name="8", fabric="nvswitch-5", cluster=cluster, group=Group(size=8), left_out=False)
    rates = {"ring": 1.0, "in-switch": 1.0}
    before = fabric("nvswitch")
    true = fabrics.Fit(replace(before, name="nvswitch-5"), {"nvlink-5": 2e-6})
    rows = [
        Row(source="made up", topology=topology, measured=1.0, collective=Collective(
            kind="all-gather", nbytes=2**power, group=topology.group, name="", starts_after=0, waited_for_by=0))
        for power in range(10, 32, 2)
    ]  # fmt: skip
    found = fabrics.scaled(
        fabric("nvswitch-5"), before, [replace(row, measured=true.estimate(row)) for row in rows], rates
    )
    assert found.latencies["nvlink-5"] == pytest.approx(2e-6, rel=0.1)
    assert found.fabric.startup == pytest.approx(before.startup, rel=0.1)


def test_a_source_is_left_out_of_the_fit_that_is_validated_against_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[set[str]] = []
    monkeypatch.setattr(networks, "infiniband", lambda rows: asked.append({r.source for r in rows}) or fabric("rdma"))
    monkeypatch.setattr(networks, "efa", lambda rows: asked.append({r.source for r in rows}) or fabric("efa"))
    found = networks.each_left_out()
    for (name, source), sources in zip(found, asked, strict=True):
        assert sources == {row.source for row in networks.FIGURES[name]} - {source}
    shown: list[str] = []
    networks.report_left_out(found, shown.append)
    assert [line for line in shown if line.startswith("| efa | all")]


def test_a_few_times_of_a_network_that_is_not_as_listed_help() -> None:
    rows = measured(slower=2.0, left_out=True)
    [(key, times)] = [(key, times) for key, times in few_times.left_out(rows).items() if "4 l40s" in key[1]]
    assert key == ("pcie-host", "made up: 4 l40s")
    as_listed, fitted = (sum(few_times.errors(times, points, 1)) for points in (0, 4))
    assert as_listed == pytest.approx(0.5 * len(times))
    assert fitted < as_listed
    shown: list[str] = []
    few_times.report(measured(left_out=True), [0], 1, shown.append)
    assert shown[-1] == "| all | mean of medians | | 0.0% |"


def test_prices_are_taken_anew_and_what_a_table_has_not_stays(tmp_path: Path) -> None:
    table = tmp_path / "aws" / "vms.csv"
    table.parent.mkdir()
    table.write_text(
        "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,GpuInfo,Price,SpotPrice,Region,AvailabilityZone\n"
        "p5.48xlarge,H100,8,192,2048,,61.5,20.25,us-east-1,a\np5.48xlarge,H100,8,192,2048,,61.5,21.25,us-east-1,b\n"
    )
    [found] = prices.refreshed(tmp_path, "2027-03", "abc1234")
    assert found.price is not None
    assert (found.price.dollars_per_hour, found.price.region, found.price.date) == (61.5, "us-east-1", "2027-03")
    assert found.price.source == "SkyPilot catalog, aws/vms.csv at commit abc1234, March 2027"
    offers = {(o.term, o.region): o.dollars_per_hour for o in found.offers}
    assert offers["spot", "us-east-1"] == 20.75, "the median of its zones"
    assert offers["reserved", "us-east-2"] == 39.33, "which the table does not have"
    copy = tmp_path / "instances"
    (copy / "aws").mkdir(parents=True)
    shipped = SHIPPED / "instances" / "aws" / "p5.48xlarge.toml"
    (copy / "aws" / shipped.name).write_text(shipped.read_text())
    prices.write([found], copy)
    written = make_instance("aws:p5.48xlarge", parse_file(copy / "aws" / "p5.48xlarge.toml", INSTANCE))
    assert (written.dollars_per_hour, written.bandwidth, len(written.offers)) == (61.5, 50e9, 1 + len(found.offers))
