"""The files we ship, and the user's own beside them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from foretell.cost.generations import bandwidth, clock_hz
from foretell.cost.transfer import Generations
from foretell.errors import CatalogError
from foretell.hardware import (
    Cluster,
    Market,
    catalog,
    device,
    devices,
    fabric_of,
    host,
    hosts,
    instance,
    instances,
    link,
    links,
)
from foretell.hardware.device import Device, Instance
from foretell.precision import UNITS

# A device file with nothing but what is required, and an alias.
EXAMPLE = """
title = "Example X1"
aliases = ["x"]
vendor = "Example"
kind = "accelerator"
architecture = "One"

[memory]
size = "64 GiB"
bandwidth = "2 TB/s"
l2 = "32 MiB"
source = "Example X1 datasheet"

[peaks]
fp32 = "50 TFLOP/s"
bf16 = "400 TFLOP/s"
source = "Example X1 datasheet"

[chip]
units = 64
clock_mhz = 1500
power_watts = 400
source = "Example X1 datasheet"

[node]
size = 4
inside = "pcie-5"
between = "eth-100g"
host = "epyc-genoa"
source = "Example X1 server guide"
"""


NARROWER = [("fp64", "fp32"), ("fp32", "tf32"), ("tf32", "bf16"), ("tf32", "fp16"), ("bf16", "fp8"), ("fp16", "fp8")]


def test_there_is_enough_of_everything() -> None:
    assert len(devices()) >= 30
    assert len(links()) >= 10
    assert len(instances()) >= 20
    assert {"NVIDIA", "AMD", "Intel", "Apple"} <= {d.vendor for d in devices()}


@pytest.mark.parametrize("d", devices(), ids=lambda d: d.name)
def test_every_device_is_sane(d: Device) -> None:
    assert 0.85 * d.memory_bytes * (d.vendor != "Apple") <= d.usable_bytes <= d.memory_bytes
    assert 50e9 < d.bandwidth < 20e12
    assert 1e12 < d.peak("fp32") < 1e15
    for wide, narrow in NARROWER:
        if wide in d.peaks and narrow in d.peaks:
            assert d.peaks[wide] <= d.peaks[narrow], f"{wide} is faster than {narrow}"
    for dtype in UNITS:
        assert d.vector_peak(dtype) <= d.peak("fp64" if dtype == "fp64" else "fp32")
    assert 100e6 < d.clock_hz < 5e9
    assert d.sources.keys() >= {"memory", "usable", "context", "peaks", "chip", "node"}
    assert all(d.sources.values())
    assert link(d.inside).kind in ("inside", "both")
    assert link(d.between).kind in ("between", "both")
    assert host(d.host)
    shares_memory = d.kind == "cpu" or d.vendor == "Apple"
    assert shares_memory if d.host_link is None else link(d.host_link).kind in ("inside", "both")


def test_what_is_no_number_is_said_by_the_file_not_by_a_title_or_a_size() -> None:
    assert [device(name).consumer for name in ("rtx-4090", "titan-v", "rtx-a6000")] == [True, True, False]
    assert [device(name).inline_ecc for name in ("t4", "a100-80g-sxm", "m2-ultra")] == [True, False, False]
    attained, renamed = Generations().attained, replace(device("rtx-4090"), title="a board")
    assert clock_hz(renamed, attained) == clock_hz(device("rtx-4090"), attained) > renamed.clock_hz
    small = replace(device("a100-80g-sxm"), usable_bytes=60 * 2**30)
    assert bandwidth(small, attained) == bandwidth(device("a100-80g-sxm"), attained)


@pytest.mark.parametrize("d", [d for d in devices() if d.vendor == "NVIDIA"], ids=lambda d: d.name)
def test_fp32_of_nvidia_is_units_times_lanes_times_clock(d: Device) -> None:
    """A rate with sparsity, or one of the wrong card, would not fit its own clock."""
    lanes = {"Kepler": 192, "Volta": 64, "Turing": 64}.get(d.architecture, 128)
    lanes = 64 if d.compute_capability in ((6, 0), (8, 0)) else lanes
    assert d.vector_peak() == pytest.approx(2 * lanes * d.compute_units * d.clock_hz, rel=0.07)


@pytest.mark.parametrize("i", instances(), ids=lambda i: i.name)
def test_every_instance_is_sane(i: Instance) -> None:
    assert device(i.device).name == i.device, "an instance names a device by its name, so that prices are found"
    assert host(i.host)
    assert link(i.between).kind == "between"
    assert i.source
    if i.dollars_per_device_hour is not None:
        assert 0.1 < i.dollars_per_device_hour < 20
        assert i.price_date is not None
        assert i.price_date >= "2024"


def test_links_and_hosts_are_sane() -> None:
    for li in links():
        assert 1e8 < li.bandwidth < 2e12
        assert 5e-7 <= li.latency <= 1e-4
        assert fabric_of(li).source
        assert li.source
    assert all(2e-6 < h.op_seconds < 1e-4 and h.source for h in hosts())


def test_rates_of_links_are_bytes_a_second_one_way() -> None:
    assert link("ib-400g").bandwidth == 50e9
    assert link("nvlink-4").bandwidth == 450e9
    assert link("eth-100g").bandwidth == 12.5e9
    assert link("ib-ndr") is link("ib-400g")


def test_the_network_of_an_instance_is_shared_by_its_devices() -> None:
    assert instance("aws:p5.48xlarge").bandwidth == link("ib-400g").bandwidth
    assert instance("aws:p3.16xlarge").bandwidth == pytest.approx(25e9 / 8 / 8)


@pytest.mark.parametrize("files", [catalog._DEVICES, catalog._LINKS, catalog._HOSTS], ids=lambda f: f.kind)
def test_no_shipped_alias_means_two_things(files: catalog._Files[object]) -> None:
    things = files.all()
    names = Counter(name for _, aliases in files._parsed.values() for name in aliases)
    names.update(getattr(thing, "name") for thing in things)  # noqa: B009
    assert [name for name, times in names.items() if times > 1] == []


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("h100", "h100-sxm"),
        ("a100", "a100-80g-sxm"),
        ("2080ti", "rtx-2080-ti"),
        ("V100", "v100-16g-sxm"),
        ("v100-sxm", "v100-16g-sxm"),
    ],
)
def test_aliases(alias: str, name: str) -> None:
    assert device(alias) is device(name)


def test_a_misspelt_name_gets_a_suggestion() -> None:
    with pytest.raises(CatalogError) as error:
        device("h10o")
    assert str(error.value) == (
        "no device 'h10o' in the catalog. Did you mean 'h100-sxm'? "
        "To add one, write a TOML file (see docs/reference/hardware.md)."
    )
    with pytest.raises(CatalogError, match=r"no link 'ib-4oog' in the catalog\. Did you mean 'ib-400g'"):
        link("ib-4oog")
    with pytest.raises(CatalogError, match=r"no host 'qqqqqqqqqq' in the catalog\. To add one"):
        host("qqqqqqqqqq")


@pytest.mark.parametrize("name", ["", "../devices/h200", "/etc/passwd", "a/b", "h200.toml", ":", "a:b"])
def test_no_name_leaves_the_folder(name: str) -> None:
    with pytest.raises(CatalogError, match="no device"):
        device(name)


def test_cheapest() -> None:
    offer = catalog.cheapest("h100-sxm")
    assert offer is not None
    assert all(
        offer.dollars_per_device_hour <= i.dollars_per_device_hour
        for i in instances()
        if i.device == "h100-sxm" and i.dollars_per_device_hour is not None and offer.dollars_per_device_hour
    )
    assert catalog.cheapest("cpu") is None


def test_one_device_reads_one_file() -> None:
    code = (
        "from foretell.hardware import catalog as c; c.device('h200'); assert len(c._DEVICES._parsed) == 1;"
        "import sys; assert not {'torch', 'numpy', 'pydantic'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# The user's own folders


def test_the_user_adds_a_device(user_folder: Path) -> None:
    (user_folder / "devices" / "x1.toml").write_text(EXAMPLE)
    x1 = device("x1")
    assert x1 is device("x")
    assert x1 in devices()
    assert x1.usable_bytes == round(0.975 * 64 * 2**30)
    assert x1.sources["usable"].startswith("estimate: 97.5%")
    assert x1.sources["context"].startswith("estimate: ")


def test_the_user_overrides_a_device(user_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (user_folder / "devices" / "h200.toml").write_text(EXAMPLE)
    assert device("h200").title == "Example X1"
    assert len([d for d in devices() if d.name == "h200"]) == 1
    monkeypatch.delenv("FORETELL_CATALOG")
    assert device("h200").vendor == "NVIDIA"


def test_a_name_wins_over_a_shipped_alias(user_folder: Path) -> None:
    (user_folder / "devices" / "h100.toml").write_text(EXAMPLE)
    assert device("h100").title == "Example X1"
    assert device("h100-sxm").vendor == "NVIDIA"


def test_the_first_folder_wins_and_home_is_a_folder_too(user_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = Path(os.environ["HOME"]) / ".config" / "foretell" / "catalog"
    other = user_folder.parent / "other"
    for folder, title in ((user_folder, "First"), (other, "Second"), (home, "Home")):
        (folder / "devices").mkdir(parents=True, exist_ok=True)
        (folder / "devices" / "x1.toml").write_text(EXAMPLE.replace("Example X1", title))
    monkeypatch.setenv("FORETELL_CATALOG", os.pathsep.join([str(user_folder), str(other)]))
    assert device("x1").title == "First"
    monkeypatch.setenv("FORETELL_CATALOG", str(other))
    assert device("x1").title == "Second"
    monkeypatch.delenv("FORETELL_CATALOG")
    assert device("x1").title == "Home"


def test_an_answer_rests_on_one_state_of_the_files(user_folder: Path) -> None:
    file = user_folder / "devices" / "x1.toml"
    file.write_text(EXAMPLE)
    with catalog.catalog_as_it_is():
        assert device("x1").title == "Example X1"
        file.write_text(EXAMPLE.replace("Example X1", "Another X1"))
        assert device("x1").title == "Example X1"
    assert device("x1").title == "Another X1"


def test_a_folder_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORETELL_CATALOG", "/no/such/folder")
    with pytest.raises(CatalogError, match=r"\$FORETELL_CATALOG names '/no/such/folder', which is no folder"):
        devices()


def test_the_user_adds_an_instance(user_folder: Path) -> None:
    (user_folder / "instances" / "mylab").mkdir()
    (user_folder / "instances" / "mylab" / "big.box.toml").write_text(
        'title = "The lab"\ndevice = "t4"\ncount = 4\nhost = "desktop"\n'
        '[network]\nlink = "eth-10g"\nbandwidth = "10 Gbit/s"\nsource = "the label on it"\n'
        '[price]\ndollars_per_hour = 0.04\ndate = "2025-01"\nsource = "electricity"\n'
    )
    assert instance("mylab:big.box").count == 4
    offer = catalog.cheapest("t4")
    assert offer is not None
    assert offer.dollars_per_device_hour == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('title = "Example X1"', "", "missing field 'title'. Add it"),
        ('size = "64 GiB"', "", "missing field 'memory.size'. Add it"),
        ('source = "Example X1 server guide"', "", "missing field 'node.source'. Add it"),
        ("[memory]", "[memori]", "unknown field 'memori'. Did you mean 'memory'.*Allowed: title, "),
        (
            "units = 64",
            "units = 64\ncores = 3",
            "unknown field 'chip.cores'.*Allowed: units, clock_mhz, power_watts, host_link, source",
        ),
        ("units = 64", "units = 6.4", "field 'chip.units': must be a whole number of at least 1, got 6.4"),
        ('"64 GiB"', '"64 GHz"', "field 'memory.size': size '64 GHz' has the unknown unit 'GHz'. Use B, KB"),
        ('"64 GiB"', "64", "field 'memory.size': must be a text with its unit, like '80 GiB', got 64"),
        ('"2 TB/s"', '"2 TB"', "field 'memory.bandwidth': bandwidth '2 TB' has the unknown unit"),
        ('"400 TFLOP/s"', '"400 TFLOPS"', "field 'peaks.bf16': rate '400 TFLOPS' has the unknown unit"),
        ('fp32 = "50 TFLOP/s"', "", "device 'bad' needs a peak for fp32, got bf16"),
        ('kind = "accelerator"', 'kind = "gpuu"', "unknown kind 'gpuu'. Did you mean 'gpu'"),
        ('aliases = ["x"]', 'aliases = "x"', "field 'aliases': must be a list of names, got 'x'"),
        ('aliases = ["x"]', 'aliases = ["X Y"]', "field 'aliases': must be a name of lower-case letters"),
        ('architecture = "One"', "architecture = 1", "field 'architecture': must be a text, got 1"),
        (
            'architecture = "One"',
            'architecture = "One"\ncompute_capability = 9.0',
            "must be a text like '9.0', got 9.0",
        ),
        ("clock_mhz = 1500", "clock_mhz = true", "field 'chip.clock_mhz': must be a number, got True"),
        ("[peaks]", 'usable = "60 GiB"\n[peaks]', "unknown field 'memory.usable'"),
        ("[memory]", 'usable = "60 GiB"\n[memory]', r"field 'usable' must be a table \[usable\], got '60 GiB'"),
        ("[memory]", "[memory", "cannot be read"),
    ],
)
def test_a_wrong_file_says_where_and_what(user_folder: Path, old: str, new: str, message: str) -> None:
    path = user_folder / "devices" / "bad.toml"
    path.write_text(EXAMPLE.replace(old, new))
    with pytest.raises(CatalogError, match=message) as error:
        device("bad")
    assert str(error.value).startswith(str(path))
    assert error.value.exit_code == 2


def test_a_file_name_in_capitals(user_folder: Path) -> None:
    (user_folder / "devices" / "X1.toml").write_text(EXAMPLE)
    with pytest.raises(CatalogError, match=r"X1\.toml: a file name is lower-case letters"):
        devices()


def test_a_price_needs_a_date(user_folder: Path) -> None:
    (user_folder / "instances" / "a.toml").write_text(
        'title = "A"\ndevice = "t4"\ncount = 1\nhost = "desktop"\n'
        '[network]\nlink = "eth-1g"\nbandwidth = "1 Gbit/s"\nsource = "s"\n'
        '[price]\ndollars_per_hour = 1\ndate = "yesterday"\nsource = "s"\n'
    )
    with pytest.raises(CatalogError, match=r"field 'price\.date': must be a date like '2025-07', got 'yesterday'"):
        instance("a")


def test_offers_on_other_terms(user_folder: Path) -> None:
    rack = (
        'title = "A"\ndevice = "t4"\ncount = 2\nhost = "desktop"\n'
        '[network]\nlink = "eth-1g"\nbandwidth = "1 Gbit/s"\nsource = "s"\n'
    )
    offer = 'region = "north"\ndollars_per_hour = 0.01\ndate = "2026-01"\nsource = "contract"\n'
    for name, added in (("a", f'[[offers]]\nterm = "spot"\n{offer}'), ("b", f'[[offers]]\nterm = "soon"\n{offer}')):
        (user_folder / "instances" / f"{name}.toml").write_text(rack + added)
    spot = instance("a").offer("spot")
    assert spot is not None
    assert (spot.region, spot.dollars_per_hour, spot.date) == ("north", 0.01, "2026-01")
    assert instance("a").offer("spot", "south") is None
    with pytest.raises(CatalogError, match="term='soon' is not possible"):
        instance("b")
    (user_folder / "instances" / "b.toml").write_text(f"offers = 3\n{rack}")
    with pytest.raises(CatalogError, match=r"field 'offers' must be tables \[\[offers\]\], got 3"):
        instance("b")
    (user_folder / "instances" / "b.toml").unlink()
    cluster = Cluster.parse("2xt4").priced(Market(term="spot", region="north"))
    assert (cluster.price_source, cluster.dollars_per_hour) == ("a, spot in north, 2026-01", 0.01)


def test_instances_are_suggested_without_their_cloud_and_other_accelerators_named() -> None:
    with pytest.raises(CatalogError, match=r"Did you mean 'aws:p5\.48xlarge'"):
        Cluster.parse("2xp5.48xlarge")
    for name, kind in (("8xtpu-v5e", "TPU"), ("trn1.32xlarge", "Trainium")):
        with pytest.raises(CatalogError, match=f"knows no {kind}"):
            Cluster.parse(name)
