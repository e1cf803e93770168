"""Public runs whose power is known: those at a board's full limit, of networks whose inputs are known."""

from __future__ import annotations

from pathlib import Path

import pytest
from foretell_bench.tables.public_power import BoardPower, at_full_limit, figures

ROWS = """dataset,network,batch_size,optimizer,power_limit,time_per_epoch,average_power,gpu
imagenet,resnet50,64,adadelta,250,3754,222.9,v100
imagenet,resnet50,64,adadelta,200,4100,190.0,v100
movielens-1m,ncf,64,adam,250,262,37.6,v100
squad,bert_base_uncased,8,adamw,300,941,262.8,a40
"""


def test_rows_at_the_full_limit_of_known_networks(tmp_path: Path) -> None:
    (tmp_path / "power_limit_sweeps.csv").write_text(ROWS)
    assert [(r["device"], r["power_watts"]) for r in at_full_limit(tmp_path)] == [("v100", 222.9), ("a40", 262.8)]


def test_errors_are_counted_by_board() -> None:
    found = [
        BoardPower(device=device, network="resnet50", batch=64, measured=200.0, forecast=watts)
        for device, watts in (("a40", 220.0), ("v100-32g-pcie", 160.0))
    ]
    by_name = {(f.source, f.measure): f for f in figures(found)}
    assert by_name["public power, all boards", "mean error"].value == pytest.approx(0.15)
    assert by_name["public power, a40", "mean error"].met
    assert not by_name["public power, v100-32g-pcie", "mean error"].met
