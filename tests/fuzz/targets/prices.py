"""Tables of prices, one's own and SkyPilot's: CSV with changed cells; what is read puts a price on a cluster."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Final

from foretell import Cluster, read_prices
from foretell.hardware import Market, price_files
from tests.fuzz.answers import check_finite
from tests.fuzz.harness import Nonsense
from tests.fuzz.mutate import VALUES, damaged

QUICK_WEIGHT = 0.5
TABLES: Final = (
    (
        ("instance", "device", "count", "link", "bandwidth", "term", "region", "dollars_per_hour", "date", "source"),
        ("mine", "h200", "8", "ib-400g", "3.2 Tbit/s", "spot", "here", "12.5", "2026-01-02", "a bill"),
        ("aws:p5.48xlarge", "", "", "", "", "on-demand", "us-east-1", "55", "", ""),
    ),
    (
        ("InstanceType", "vCPUs", "AcceleratorName", "AcceleratorCount", "Region", "AvailabilityZone", "Price", "SpotPrice"),
        ("a3-highgpu-8g", "208.0", "", "", "europe-west4", "europe-west4-a", "11.3", "6.2"),
        ("", "", "H100", "8.0", "europe-west4", "europe-west4-a", "77.0", "42.0"),
        ("p5.48xlarge", "192.0", "H100", "8.0", "us-east-1", "us-east-1a", "98.3", ""),
    ),
)  # fmt: skip
CLOUDS: Final = ("aws", "gcp", "azure", "nosuch")
CLUSTERS: Final = ("8xh200", "2x8xh100-sxm@ib-400g", "aws:p5.48xlarge")


def make(rng: random.Random) -> bytes:
    rows = [list(row) for row in rng.choice(TABLES)]
    for _ in range(rng.choice((1, 2, 4))):
        row = rng.choice(rows)
        row[rng.randrange(len(row))] = str(rng.choice((*VALUES, rng.choice(row))))
    data = "\n".join(",".join(row) for row in rows).encode("utf-8", "surrogatepass")
    return damaged(rng, data) if rng.random() < 0.2 else data


def use(data: bytes, rng: random.Random) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / rng.choice(CLOUDS) / "vms.csv"
        path.parent.mkdir()
        path.write_bytes(data)
        try:
            offers = read_prices(path)
        finally:
            price_files._read.clear()  # one file after another, none of them twice
    market = Market(offers=offers, term=rng.choice(("on-demand", "spot")))
    dollars = Cluster.parse(rng.choice(CLUSTERS)).priced(market).dollars_per_hour
    check_finite(dollars)
    if dollars is not None and dollars < 0:
        raise Nonsense(f"a cluster costs {dollars} an hour")
