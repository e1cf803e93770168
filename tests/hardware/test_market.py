"""A price belongs to an offer: board, number, network, term, region."""

from __future__ import annotations

from pathlib import Path

import pytest

import foretell
from foretell.errors import InputError
from foretell.hardware import Cluster, Market, instance, offered, price_files, read_prices


def dollars(text: str, market: Market | None = None) -> float | None:
    return Cluster.parse(text).priced(market or Market()).dollars_per_hour


def test_a_job_of_four_nodes_priced_by_four_clouds() -> None:
    """By hand: 4 nodes of 8 H100 for the hours that 1e9 samples take, each cloud with the network it rents out."""
    listed = {  # dollars per hour of an instance, of June 2025 (Azure, CoreWeave) and August 2026
        "aws:p5.48xlarge": 55.04, "azure:nd96isr_h100_v5": 98.32, "coreweave:8xh100": 49.24,
        "lambda:gpu_8x_h100_sxm5": 31.92,
    }  # fmt: skip
    network = {"aws": 400e9 / 8, "azure": 400e9 / 8, "coreweave": 400e9 / 8, "lambda": 100e9 / 8 / 8}
    graph, steps = foretell.capture_graph("torchvision/resnet18", {"batch": 8}), 1e9 / (8 * 32)
    seconds = {}
    for name, price in listed.items():
        f = foretell.forecast(graph, f"4x{name}", job=foretell.JobLength(samples=1e9), model="roofline")
        cloud = name.partition(":")[0]
        between = Cluster.parse(f"4x{name}").between
        assert between is not None
        assert between.bandwidth == pytest.approx(network[cloud])
        assert f.cost.dollars_per_hour == pytest.approx(4 * price)
        assert f.job is not None
        assert f.job.dollars == pytest.approx(steps * f.step_time.seconds / 3600 * 4 * price, rel=1e-6)
        seconds[cloud] = f.step_time.seconds
    assert seconds["lambda"] > 1.5 * seconds["coreweave"], "a thirty-second of the network"


def test_nodes_with_a_fast_network_are_not_priced_by_single_rentals() -> None:
    several = Cluster.parse("4x8xh100-sxm@ib-400g")
    assert several.dollars_per_hour == pytest.approx(4 * 49.24)
    assert several.price_source == "coreweave:8xh100, 2025-07"
    assert dollars("8xh100-sxm") == pytest.approx(8 * 3.29), "alone, they need no network"
    assert dollars("2x8xh100-sxm@eth-10g") == pytest.approx(16 * 3.29), "pods with the network that is simulated"
    assert dollars("2x8xh100-sxm@eth-100g") is None, "100 Gbit/s for each device: nobody has that"


def test_instances_are_rented_whole() -> None:
    part = Cluster.parse("20xh100-sxm")
    assert part.dollars_per_hour == pytest.approx(3 * 49.24)
    assert part.price_source == "coreweave:8xh100, 2025-07 and coreweave:8xh100, 4 of 8 devices used, 2025-07"


def test_an_instance_with_another_network_than_its_own_has_no_price() -> None:
    assert dollars("2xaws:p3.16xlarge") == pytest.approx(2 * 24.48)
    assert dollars("2xaws:p3.16xlarge@ib-100g") is None


def test_instances_may_share_the_links_inside() -> None:
    rack = Cluster.parse("18xcoreweave:4xgb200")
    assert (len(rack.nodes), rack.nodes[0].count, rack.dollars_per_hour) == (1, 72, 18 * 42.0)
    assert Cluster.parse("144xgb200").dollars_per_hour == 36 * 42.0


def test_a_forecast_says_that_nobody_rents_it_so() -> None:
    graph = foretell.capture_graph("torchvision/resnet18", {"batch": 2})
    f = foretell.forecast(graph, "2x8xl40s", model="roofline")
    [text] = [c.text for c in f.caveats if c.code == "no-such-offer"]
    assert f.cost.dollars_per_hour is None
    assert "8 l40s and eth-100g between nodes" in text
    assert "runpod:l40s, which has 10 Gbit/s per device" in text
    assert not any(c.code == "no-such-offer" for c in foretell.forecast(graph, "8xl40s", model="roofline").caveats)


def test_a_table_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "ours.csv"
    file.write_text(
        "instance,device,count,link,bandwidth,term,region,dollars_per_hour,date\n"
        "aws:p5.48xlarge,,,,,on-demand,us-east-1,30,2026-11\n"
        "hall:h,h100-sxm,8,ib-400g,3200 Gbit/s,on-demand,,20,2026-11-02\n"
        ",h200,4,,,spot,north,7.5,2026-10\n"
    )
    market = Market(offers=read_prices(file))
    assert dollars("2xaws:p5.48xlarge", market) == 60
    assert Cluster.parse("2x8xh100-sxm").priced(market).price_source == "hall:h, 2026-11-02"
    assert dollars("h200", market) is None, "files replace the catalog"
    spot = Cluster.parse("4xh200").priced(Market(offers=market.offers, term="spot"))
    assert spot.price_source == "ours:4xh200, spot in north, 2026-10"
    assert dollars("2x4xh200", Market(offers=market.offers, term="spot")) is None, "its network is not known"
    file.write_text("device,price\nh100-sxm,3\n")
    with pytest.raises(InputError, match="unknown column 'price'"):
        read_prices(file)
    file.write_text("device,dollars_per_hour\nh100-sxm,cheap\n")
    with pytest.raises(InputError, match=r"line 2: dollars_per_hour must be a number, got 'cheap'"):
        read_prices(file)
    for count in ("0", "-8"):
        file.write_text(f"device,count,bandwidth,dollars_per_hour\nh200,{count},400 Gbit/s,3\n")
        with pytest.raises(InputError, match="line 2: count must be a whole number of at least 1"):
            read_prices(file)
    file.write_text("device,dollars_per_hour\nh200,3\nh200,3,4,5\n")
    with pytest.raises(InputError, match="line 3 has more cells than the first names columns"):
        read_prices(file)


SKYPILOT = {
    "azure": "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,GpuInfo,Price,SpotPrice,Region,Generation\n"
    "Standard_ND96isr_H100_v5,H100,8,96.0,1900,H100,98.32,98.32,eastus,V2\n"
    "Standard_D2s_v3,,,2.0,8,,0.096,0.02,eastus,V2\n",
    "gcp": "InstanceType,vCPUs,MemoryGiB,AcceleratorName,AcceleratorCount,GpuInfo,Region,AvailabilityZone,Price,SpotPrice\n"
    "a3-highgpu-8g,208.0,1872.0,,,,us-central1,us-central1-a,9.46,5.68\n"
    "a3-highgpu-8g,208.0,1872.0,,,,us-central1,us-central1-c,9.46,5.72\n"
    ",,,H100,8,{'Gpus': [{'MemoryInfo': {'SizeInMiB': 81920}}]},us-central1,us-central1-a,78.37,47.02\n"
    ",,,H100,8,{'Gpus': [{'MemoryInfo': {'SizeInMiB': 81920}}]},us-central1,us-central1-c,78.37,47.02\n",
    "runpod": "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Region,SpotPrice,Price,AvailabilityZone,GpuInfo\n"
    "4x_A100-80GB_SECURE,A100-80GB,4.0,32.0,468.0,IN,5.56,5.56,AP-IN-1,\"{'Gpus': [{'Name': 'A100 PCIe', "
    "'MemoryInfo': {'SizeInMiB': 80}}]}\"\n",
}


def test_tables_of_skypilots_catalog(tmp_path: Path) -> None:
    for cloud, text in SKYPILOT.items():
        (tmp_path / cloud).mkdir()
        (tmp_path / cloud / "vms.csv").write_text(text)
    offers = read_prices(*(tmp_path / cloud / "vms.csv" for cloud in SKYPILOT))
    market, spot = Market(offers=offers), Market(offers=offers, term="spot")
    assert dollars("4x8xh100-sxm@ib-400g", market) == pytest.approx(4 * 98.32)
    assert dollars("4x8xh100-sxm@ib-400g", spot) is None, "a spot price as high as the list price is none"
    assert dollars("2xgcp:a3-highgpu-8g", market) == pytest.approx(2 * (9.46 + 78.37)), "machine and boards apart"
    assert dollars("gcp:a3-highgpu-8g", spot) == pytest.approx(5.70 + 47.02), "the median of its zones"
    assert dollars("4xa100-80g-pcie", market) == pytest.approx(5.56)
    assert dollars("2x4xa100-80g-pcie", market) is None, "its network is not known"
    [own] = [i for i in offers if i.name == "azure:nd96isr_h100_v5"]
    assert own.between == instance("azure:nd96isr_h100_v5").between


def test_many_rows_of_one_name_are_one_instance_in_their_order(tmp_path: Path) -> None:
    """A table that fits into a question has 28,000 of them, and is read while somebody waits."""
    (tmp_path / "ours.csv").write_text("device,dollars_per_hour\n" + "".join(f"h200,{n}\n" for n in range(1, 2001)))
    [own] = read_prices(tmp_path / "ours.csv")
    assert [offer.dollars_per_hour for offer in own.offers] == list(range(1, 2001))


def test_tables_that_are_gone_are_forgotten(tmp_path: Path) -> None:
    """A service reads a table with every search: what it keeps of them may not grow."""
    for number in range(5):
        file = tmp_path / f"{number}.csv"
        file.write_text(f"device,dollars_per_hour\nh200,{number + 1}\n")
        assert read_prices(file)[0].offers[0].dollars_per_hour == number + 1
        file.write_text(f"device,dollars_per_hour\nh200,{number + 10}.5\n")
        assert read_prices(file)[0].offers[0].dollars_per_hour == number + 10.5
        assert [path for path, _, _ in price_files._read if path.parent == tmp_path] == [file]
        file.unlink()


def test_what_nothing_can_cost_or_be_many_of_is_no_offer(tmp_path: Path) -> None:
    header, file = (
        "InstanceType,AcceleratorName,AcceleratorCount,Price,SpotPrice,Region\n",
        tmp_path / "aws" / "vms.csv",
    )
    file.parent.mkdir()
    for row in (",H100,inf,3,2,here", "x,H100,8,-3,2,here", "x,H100,8,1e400,nan,here", "x,H100,-8,3,2,here"):
        file.write_text(f"{header}{row}\n")
        assert all(offer.term == "spot" for instance in read_prices(file) for offer in instance.offers)


def test_tables_in_a_folder_of_ones_own_count_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "prices" / "azure").mkdir(parents=True)
    (tmp_path / "prices" / "azure" / "vms.csv").write_text(SKYPILOT["azure"].replace("98.32,98.32", "40,20"))
    monkeypatch.setenv("FORETELL_CATALOG", str(tmp_path))
    assert dollars("4x8xh100-sxm@ib-400g") == 160.0
    assert len(offered()) == len(foretell.hardware.instances())
