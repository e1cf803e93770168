"""What drivers, nvidia-smi and published tables call a device."""

from __future__ import annotations

from dataclasses import replace

import pytest

from foretell.errors import CatalogError
from foretell.hardware import Cluster, Device, device, devices, recognise
from foretell.units import GIB


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("NVIDIA A100-SXM4-80GB", "a100-80g-sxm"),
        ("NVIDIA A100-SXM4-40GB", "a100-40g-sxm"),
        ("NVIDIA A100-PCIE-40GB", "a100-40g-pcie"),
        ("NVIDIA A100 80GB PCIe", "a100-80g-pcie"),
        ("NVIDIA A100-SXM-80GB CTS", "a100-80g-sxm"),
        ("NVIDIA A100-PCIe-40GB(250W)", "a100-40g-pcie"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H100 NVL", "h100-nvl"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA H200 NVL", "h200-nvl"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("NVIDIA GH200-GraceHopper-Superchip_96GB", "gh200"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA B300 SXM6 AC", "b300"),
        ("NVIDIA GB200", "gb200"),
        ("NVIDIA GB300", "gb300"),
        ("NVIDIA L40", "l40"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA A10", "a10"),
        ("NVIDIA A10G", "a10g"),
        ("NVIDIA A30-PCIE-24GB", "a30"),
        ("Tesla V100-SXM2-16GB", "v100-16g-sxm"),
        ("Tesla V100-SXM3-32GB", "v100-32g-sxm"),
        ("Tesla V100-PCIE-32GB", "v100-32g-pcie"),
        ("Tesla V100S-PCIE-32GB", "v100s-32g-pcie"),
        ("Nvidia Tesla V100", "v100-16g-sxm"),
        ("Tesla T4", "t4"),
        ("T4 (g4dn.12xlarge, 4/node)", "t4"),
        ("Tesla K80", "k80"),
        ("Tesla P100-PCIE-16GB", "p100-pcie"),
        ("Quadro P4000", "quadro-p4000"),
        ("Quadro RTX 6000", "quadro-rtx-6000"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"),
        ("NVIDIA RTX A6000", "rtx-a6000"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "rtx-pro-6000"),
        ("NVIDIA RTX PRO 6000 Blackwell", "rtx-pro-6000"),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "rtx-pro-6000-max-q"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000-server"),
        ("NVIDIA RTX 5000 Ada Generation", "rtx-5000-ada"),
        ("NVIDIA GeForce RTX 5060 Ti", "rtx-5060-ti"),
        ("NVIDIA L20", "l20"),
        ("NVIDIA TITAN RTX", "titan-rtx"),
        ("TITAN RTX", "titan-rtx"),
        ("TITAN Xp", "titan-xp"),
        ("NVIDIA GeForce RTX 2080 Ti", "rtx-2080-ti"),
        ("RTX 2080Ti (8/node)", "rtx-2080-ti"),
        ("GeForce GTX 1080 Ti", "gtx-1080-ti"),
        ("rtx3090", "rtx-3090"),
        ("4090", "rtx-4090"),
        ("AMD Instinct MI250", "mi250"),
        ("AMD Instinct MI250X", "mi250x"),
        ("AMD Instinct MI250X/MI250", "mi250x"),
        ("AMD_Instinct_MI100", "mi100"),
        ("AMD Instinct MI300X 192GB HBM3", "mi300x"),
        ("Habana Gaudi", "gaudi"),
        ("Habana Gaudi HL-205", "gaudi"),
        ("Habana Gaudi2", "gaudi2"),
        ("Intel Gaudi 2", "gaudi2"),
        ("Apple M3 Max", "m3-max"),
        ("NVIDIA GeForce RTX 2080 with Max-Q Design", "rtx-2080-max-q"),
        ("NVIDIA GeForce RTX 2080", "rtx-2080"),
        ("NVIDIA GeForce RTX 2070 with Max-Q Design", "rtx-2070-max-q"),
        ("GeForce RTX 2070 Super with Max-Q Design", "rtx-2070-super-max-q"),
        ("NVIDIA GeForce RTX 2080 Super with Max-Q Design", "rtx-2080-super-max-q"),
        ("Quadro T1000", "quadro-t1000"),
        ("NVIDIA Quadro T2000", "quadro-t2000"),
        ("Quadro M6000", "quadro-m6000"),
        ("Quadro M6000 24GB", "quadro-m6000-24g"),
        ("NVIDIA RTX A5000", "rtx-a5000"),
        ("NVIDIA RTX A5000 Laptop GPU", "rtx-a5000-laptop"),
        ("NVIDIA GeForce RTX 3080 Ti", "rtx-3080-ti"),
        ("NVIDIA A800-SXM4-80GB", "a800-80g-sxm"),
        ("NVIDIA A800 80GB PCIe", "a800-80g-pcie"),
        ("NVIDIA H800", "h800-sxm"),
        ("NVIDIA H20", "h20"),
        ("Quadro RTX 8000", "quadro-rtx-8000"),
        ("NVIDIA TITAN V", "titan-v"),
        ("TITAN X (Pascal)", "titan-x-pascal"),
        ("Tesla V100-DGXS-32GB", "v100-32g-sxm"),
        # A relative is not the device itself.
        ("Quadro RTX 6000 with Max-Q Design", None),
        ("NVIDIA GeForce RTX 2060 with Max-Q Design", None),
        ("Quadro T2000 with Max-Q Design", None),
        ("NVIDIA T1000", None),
        ("NVIDIA RTX A4000 Laptop GPU", None),
        ("NVIDIA GeForce RTX 3060 Laptop GPU", None),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None),
        ("NVIDIA A100-SXM-64GB", None),
        ("Intel CPU", None),
        ("cpu", None),
        ("TPU v3", None),
        ("", None),
    ],
)
def test_a_device_by_what_others_call_it(written: str, name: str | None) -> None:
    found = recognise(written)
    assert (found.name if found else None) == name


def test_memory_tells_variants_of_one_name_apart() -> None:
    found = [recognise("NVIDIA A100", round(size * GIB)) for size in (39.4, 79.2, 20)]
    assert [f and f.memory_bytes for f in found] == [40 * GIB, 80 * GIB, None]


@pytest.mark.parametrize("d", [d for d in devices() if d.kind != "cpu"], ids=lambda d: d.name)
def test_every_device_is_recognised_by_its_own_title_and_name(d: Device) -> None:
    assert recognise(d.title) == d
    assert recognise(d.name) == d


@pytest.mark.parametrize(
    ("written", "means"),
    [
        ("NVIDIA A100-SXM4-80GB", "1x1xa100-80g-sxm"),
        ("8 x NVIDIA A100 80GB PCIe", "1x8xa100-80g-pcie"),
        ("2×8×NVIDIA H100 80GB HBM3 @ ib-400g", "2x8xh100-sxm@ib-400g"),
        ("TITAN X (Pascal)", "1x1xtitan-x-pascal"),
        ("4xAMD Instinct MI300X OAM", "1x4xmi300x"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "1x1xrtx-4090-laptop"),
    ],
)
def test_a_cluster_is_written_as_a_driver_writes_its_devices(written: str, means: str) -> None:
    assert replace(Cluster.parse(written), name="").__str__() == means


def test_a_card_the_catalog_lacks_is_not_taken_for_its_neighbour() -> None:
    with pytest.raises(CatalogError, match="NVIDIA GeForce RTX 3080 SUPER"):
        device("NVIDIA GeForce RTX 3080 SUPER")
