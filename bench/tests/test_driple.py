"""Driple's own benchmark: rows of workers that share a device, and when tailoring is as good as training."""

from __future__ import annotations

import math
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from foretell_bench.sources.box import shared_runs

from foretell.methods.driple.method import setting_of

ROOT = Path(__file__).parents[2]
SECOND = 10**9  # nanoseconds


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT), str(ROOT / "bench" / "scripts"), *sys.path])


def told(begin: int, kernels: list[list[int]]) -> dict[str, Any]:
    ends = [begin + SECOND // 10, begin + SECOND // 5]
    return {"batch": 128, "begin": begin, "ends": ends, "finite": True, "busy": kernels, "kernels": 2, "staged_ns": 0}


def test_rows_have_device_and_network_of_the_same_steps(tmp_path: Path) -> None:
    import box_gpu
    from box_gpu_collect import collect

    zero = 1_800_000_000 * SECOND
    ms = SECOND // 1000
    # Two steps of 100 ms. The first worker's kernels run 30 ms, the second's 30 ms more, 10 ms of them at once.
    workers = [told(zero, [[0, 30 * ms]]), told(zero, [[20 * ms, 30 * ms]])]
    # Half a megabyte every 5 ms in the first 50 ms of each step; sent by one, received by the other.
    moments = [(i * 5 * ms, sum(500_000 for j in range(i) if j % 20 < 10)) for i in range(41)]
    row = {"workers": workers, "zero": [zero], "readings": [[at, sent, sent, sent, sent, 0, 0] for at, sent in moments]}
    row |= box_gpu.device_of(workers)
    about = dict.fromkeys(("joined", "date", "torch", "python", "machine", "cores"), "")
    line = {
        "network": "mlp-512x1",
        "setting": "dp=2@500",
        "plan": "dp=2",
        "mbit": 500,
        "servers": 0,
        **about,
        "rows": [row],
    }
    collect([line], [], tmp_path)
    shutil.copytree(ROOT / "bench" / "data" / "box-gpu" / "graphs", tmp_path / "graphs")
    [example] = shared_runs(tmp_path)
    assert setting_of(example.query) == "dp=2 on 2xh200@500Mbit/s"
    assert example.query.graph is not None
    assert any(128 in op.signature.outputs[0].shape for op in example.query.graph.ops if op.signature.outputs)
    found = example.measured
    assert found["step_time"] == pytest.approx(0.1)
    assert found["device_active_seconds"] == pytest.approx(0.025)
    assert found["device_idle_seconds"] == pytest.approx(0.075)
    assert found["device_peak"] == pytest.approx(1.0)
    assert found["network_tx_active_seconds"] == pytest.approx(0.05, rel=0.1)
    assert found["network_rx_peak"] == pytest.approx(1e8, rel=1e-3)
    assert "memory_bandwidth_peak" not in found  # nothing counted it


def test_equal_is_sustained_and_never_counts_as_no_saving() -> None:
    from driple_report import EPOCHS, saved, times_less

    def fit(*errors: float) -> dict[str, Any]:
        return {"curve": [[i + 1, 2.0 * (i + 1), error] for i, error in enumerate(errors)], "error": errors[-1]}

    scratch = fit(*[4.0] * 5, *[1.0] * 15)
    once = fit(4.0, 1.0, *[4.0] * 18)  # touches it, and leaves again
    seed = {
        "fits": {"all": {"from scratch": scratch, "transfer, frozen": fit(*[1.0] * 20), "transfer, all tuned": once}}
    }
    assert saved(seed, "transfer, frozen") == saved(seed, "transfer, frozen", EPOCHS) == 8 / 5
    assert saved(seed, "transfer, all tuned") == 0
    found = times_less({"source": {}, "there": {"0": seed, "1": seed}}, "source")
    assert found["transfer, all tuned"]["never"] == 2
    assert math.isclose(found["transfer, frozen"]["median"], 1.6)
