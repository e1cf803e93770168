from __future__ import annotations

from pathlib import Path

import pytest

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


@pytest.fixture
def example() -> str:
    """A device file with nothing but what is required, and an alias."""
    return EXAMPLE


@pytest.fixture(autouse=True)
def _no_catalog_of_the_person_testing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("FORETELL_CATALOG", raising=False)


@pytest.fixture
def user_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder of the user's own, with a place for each kind of file."""
    folder = tmp_path / "catalog"
    for kind in ("devices", "links", "hosts", "instances"):
        (folder / kind).mkdir(parents=True)
    monkeypatch.setenv("FORETELL_CATALOG", str(folder))
    return folder
