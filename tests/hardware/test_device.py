from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, replace

import pytest

from foretell.errors import CatalogError
from foretell.hardware import device, host, link


def test_the_h200_as_its_datasheet_and_our_measurements_say() -> None:
    h200 = device("h200")
    assert h200.peak("bf16") == pytest.approx(989.4e12)
    assert h200.peak("tf32") == pytest.approx(494.7e12)
    assert h200.bandwidth == pytest.approx(4.8e12)
    assert h200.l2_bytes == 60 * 2**20
    assert h200.usable_bytes == 150_109_880_320
    assert (h200.compute_units, h200.compute_capability) == (132, (9, 0))
    assert host(h200.host).op_seconds == pytest.approx(19e-6)


def test_capacity_of_the_h100_is_the_one_in_the_contract() -> None:
    assert device("h100-sxm").usable_bytes == 84929413120


def test_peak_times_time_is_flops() -> None:
    """A matrix product of 8192³ takes about 1.1 ms at an H200's bf16 peak: pins the factor of 1000."""
    assert 2 * 8192**3 / device("h200").peak("bf16") == pytest.approx(1.111e-3, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "dtype", "runs_as"),
    [
        ("t4", "bf16", "fp32"),
        ("t4", "tf32", "fp32"),
        ("p100", "fp16", "fp32"),
        ("a100", "fp8", "bf16"),
        ("v100", "int8", "fp16"),
    ],
)
def test_a_type_without_a_unit_runs_as_another(name: str, dtype: str, runs_as: str) -> None:
    assert dtype not in device(name).peaks
    assert device(name).peak(dtype) == device(name).peak(runs_as)


def test_fp8_on_turing_falls_through_bf16_to_fp32() -> None:
    assert device("t4").peak("fp8") == device("t4").peak("fp32")


def test_fp64_is_emulated_where_there_is_none() -> None:
    assert device("m4-max").peak("fp64") == device("m4-max").peak("fp32") / 32


def test_unknown_dtype() -> None:
    with pytest.raises(CatalogError, match=r"unknown dtype 'fp61'\. Did you mean .*'fp16'.*Allowed: fp64, fp32"):
        device("h200").peak("fp61")


def test_elementwise_work_does_not_run_on_matrix_units() -> None:
    assert device("h200").vector_peak("bf16") == device("h200").peak("fp32")
    assert device("mi250x").vector_peak() == device("mi250x").peak("fp32") / 2 == pytest.approx(23.95e12, rel=0.01)
    assert device("a100").vector_peak("fp64") == pytest.approx(9.7e12)


def test_devices_are_frozen_hashable_and_pickle() -> None:
    h200 = device("h200")
    with pytest.raises(FrozenInstanceError):
        h200.name = "h201"  # type: ignore[misc]
    assert {h200: 1}[pickle.loads(pickle.dumps(h200))] == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"usable_bytes": 2**60}, "at most the memory's size"),
        ({"bandwidth": 0.0}, "bandwidth must be more than 0, got 0.0"),
        ({"bandwidth": float("nan")}, "bandwidth must be more than 0, got nan"),
        ({"kind": "toaster"}, "unknown kind 'toaster'.*Allowed: gpu, cpu, accelerator"),
        ({"peaks": {"bf16": 1e12}}, "needs a peak for fp32, got bf16"),
        ({"peaks": {"fp32": 1e12, "fp12": 1e12}}, "unknown peak 'fp12'"),
        ({"context_bytes": -1}, "context_bytes must not be negative, got -1"),
    ],
)
def test_a_device_is_checked_when_made(change: dict[str, object], message: str) -> None:
    with pytest.raises(CatalogError, match=message):
        replace(device("h200"), **change)  # type: ignore[arg-type]


def test_links_and_hosts_are_checked_when_made() -> None:
    with pytest.raises(CatalogError, match="link 'pcie-4': latency must be more than 0"):
        replace(link("pcie-4"), latency=0.0)
    with pytest.raises(CatalogError, match="host 'desktop': op_seconds must be more than 0"):
        replace(host("desktop"), op_seconds=-1.0)
