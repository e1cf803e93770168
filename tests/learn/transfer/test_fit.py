"""Operators of devices that were not measured here: read from public files, learned, each chip left out."""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from foretell_bench.research.op_errors import errors_left_out, mean_errors

from foretell.cost.features import describe
from foretell.cost.flops import flops
from foretell.cost.model import OTHER_DEVICES, CostModel
from foretell.cost.operators import OperatorModels
from foretell.cost.transfer import plain, seconds_on_others, transferred
from foretell.hardware import device
from foretell.learn.dataset import OpTable
from foretell.learn.transfer.fit import chip, fit_other_devices, without_each
from foretell.learn.transfer.intervals import fit_others
from foretell.learn.transfer.published_ops import _SIGNATURES, product, public_ops
from foretell.store.importers import formats

pytest.importorskip("lightgbm")
H200 = device("h200")
NOTHING = OperatorModels(families={})  # our device at its roofline
DATA = Path(__file__).parents[4] / "shared" / "data"


def write(folder: Path, name: str, rows: Sequence[dict[str, Any]]) -> None:
    columns = [c.theirs for c in formats()[name].columns]
    with (folder / f"{name}.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, restval="")
        writer.writeheader()
        writer.writerows(rows)


def neusight(op: str, card: str, ms: float, **shape: int) -> dict[str, Any]:
    return {"op": op, "device": card, "latency_ms": ms, "torch": "p2.1.0", "cuda": "cu121", **shape}


def test_public_ops_are_read_in_seconds_under_the_devices_they_ran_on(tmp_path: Path) -> None:
    rows = [neusight("bmm", "Tesla T4", 0.03 * 2**i, B=4, M=64 * 2**i, N=64, K=64) for i in range(6)]
    rows += [neusight("add", "AMD Instinct MI100", 0.02 * 2**i, B=2**i, H=4096) for i in range(6)]
    write(tmp_path, "neusight_ops", rows)
    kinds = {"kernel_source": "x", "source": "y"}
    write(
        tmp_path,
        "gemm",
        [
            {"system": "l40s", "device": "NVIDIA L40S", "gemm_dtype": dtype, "m": m, "n": 512, "k": 512, "latency": 0.5}
            | kinds
            for dtype, m in (("bfloat16", 1024), ("bfloat16", 4), ("fp8", 1024))
        ],
    )
    tables = public_ops(tmp_path, H200, NOTHING)
    assert set(tables) == {"t4", "mi100", "l40s"}
    assert list(tables["l40s"].seconds) == [5e-4]  # thin products are decoding, fp8 nobody trains in
    # Calls that take no longer than twice the shortest tell of the host that issued them.
    assert sorted(tables["t4"].seconds) == pytest.approx([3e-5 * 2**i for i in range(2, 6)])
    assert set(tables["mi100"].names) == {"aten.add"}
    assert {d.family for d in tables["t4"].descriptions} == {"matmul"}


def test_gpts_products_follow_from_its_weights(tmp_path: Path) -> None:
    width, tokens, mib = 2048, 4096, 2**20
    sizes = {"enc-attention-qkv": 3, "enc-attention-dense": 1, "enc-MLP-GEMM-1": 4, "enc-MLP-GEMM-2": 4}
    rows = [
        {"family": "gpt", "size": "1_3B", "mbs": 2, "tp": 1, "algo": 0, "op_name": name, "forward-compute": 1000.0,
         "backward-compute": 1.0, "input_size": 0.0, "output_size": 0.0, "weights": 2 * n * width**2 / mib,
         "activations": 0.0, "fwd_reserved": 0.0, "bwd_reserved": 0.0}
        for name, n in sizes.items()
    ]  # fmt: skip
    norm = rows[0] | {"op_name": "enc-1st-layernorm", "input_size": 2 * width * tokens / mib, "weights": 0.0}
    write(tmp_path, "v100_tensor_parallel_ops", [*rows, norm])
    [(name, table)] = public_ops(tmp_path, H200, NOTHING).items()
    assert name == "v100-32g-sxm"
    assert list(table.seconds) == [1e-3] * 4
    arithmetic = sorted(2 ** d.values["arithmetic"] * 1e-6 * device(name).peak("fp16") for d in table.descriptions)
    assert arithmetic == pytest.approx(sorted(2 * tokens * n * width**2 for n in sizes.values()))


def test_signatures_of_public_ops_count_as_they_should() -> None:
    conv = _SIGNATURES["conv"](
        {
            "b": 2,
            "input_channels": 16,
            "output_channels": 32,
            "kernel_size": 3,
            "input_size": 10,
            "stride": 1,
            "padding": 1,
        }
    )
    assert conv.outputs[0].shape == (2, 32, 10, 10)
    assert flops(conv) == 2 * 2 * 32 * 10 * 10 * 16 * 9
    linear = _SIGNATURES["linear"]({"b": 1, "m": 8, "n": 16, "k": 32})
    assert flops(linear) == flops(product(8, 16, 32, "float32")) == 2 * 8 * 16 * 32


def made_up(name: str, efficiency: float, count: int, seed: int) -> OpTable:
    """fp32 products that run at a part of a device's peak, or of its bandwidth, on a device that is near its own."""
    card, draw = device(name), np.random.default_rng(seed)
    signatures = [
        product(m, n, k, "float32") for m, n, k in (2 ** draw.uniform(8, 13, (count, 3))).astype(int).tolist()
    ]
    descriptions = transferred(signatures, H200, NOTHING, card, tf32=False)
    return OpTable.alone(signatures, descriptions, np.array([plain(d).roofline for d in descriptions]) / efficiency)


_at_home = made_up("h200", 0.4, 200, 9)
OWN = dataclasses.replace(_at_home, descriptions=[plain(d) for d in _at_home.descriptions])


@pytest.fixture(scope="module")
def public() -> dict[str, OpTable]:
    cards = ("a100-40g-pcie", "a100-80g-sxm", "l40s", "h100-sxm")
    return {name: made_up(name, 0.4, 300, seed) for seed, name in enumerate(cards)}


def test_a_chip_is_left_out_on_all_its_boards_and_predicted_by_the_others(public: dict[str, OpTable]) -> None:
    models = without_each(public, OWN)
    assert set(models) == {"a100", "l40s", "h100"}
    errors = errors_left_out(public, models, NOTHING)
    assert {e.device for e in errors} == set(public)
    [means] = mean_errors(errors).values()
    assert means["learned"] < means["clocks"] < means["roofline"] == means["distance"] == pytest.approx(0.6)
    assert means["linear"] < means["roofline"]


def test_what_is_learned_for_others_is_deterministic(public: dict[str, OpTable]) -> None:
    ops = next(iter(public.values()))
    one, two = (fit_other_devices(public, OWN).seconds(ops.names, ops.descriptions) for _ in range(2))
    assert (one == two).all()


def test_ops_are_carried_by_clocks_and_never_under_the_roofline() -> None:
    slow = OperatorModels(families={})
    thin, wide = product(64, 64, 64, "bfloat16"), product(8192, 8192, 8192, "bfloat16")
    for name in ("rtx-3090", "p4", "b200", "mi100", "k80"):
        card = device(name)
        clocks = H200.compute_units * H200.clock_hz / (card.compute_units * card.clock_hz)
        for signature in (thin, wide):
            [there] = transferred([signature], H200, slow, card, tf32=False)
            here = describe(signature, H200, tf32=False).roofline
            least = describe(signature, card, tf32=False).roofline
            assert plain(there).roofline == pytest.approx(least)
            assert max(least, here * clocks) < there.roofline < 2 * max(least, here * clocks)


def test_models_of_many_devices_price_what_they_know_and_the_rest_is_carried(public: dict[str, OpTable]) -> None:
    models, card = fit_other_devices(public, OWN), device("a10")
    signatures = [product(2048, 2048, 2048, dtype) for dtype in ("float32", "float16")]
    ops = transferred(signatures, H200, NOTHING, card, tf32=False)
    single, half = seconds_on_others(["aten.mm"] * 2, ops, models)
    assert half == ops[1].roofline
    assert single == pytest.approx((ops[0].roofline * plain(ops[0]).roofline / 0.4) ** 0.5, rel=0.1)


def test_half_runs_on_the_units_of_fp32_where_there_are_no_others() -> None:
    half = product(512, 512, 512, "float16")
    kinds = {name: describe(half, device(name), tf32=False).values["type"] for name in ("h200", "t4", "titan-xp", "p4")}
    assert kinds == {"h200": 4.0, "t4": 4.0, "titan-xp": 1.0, "p4": 1.0}


def test_fitting_writes_what_a_model_reads(tmp_path: Path) -> None:
    rows = [neusight("bmm", "Tesla T4", 0.03 * 1.2**i, B=4, M=64 + 8 * i, N=64, K=64) for i in range(60)]
    write(tmp_path, "neusight_ops", rows)
    model = CostModel(name="mine", device="h200", operators=NOTHING)
    assert fit_others(OWN, model, tmp_path, tmp_path / "mine", intervals=False) == {
        "t4": 55
    }  # the first five tell of the host
    assert set(OperatorModels.load(tmp_path / "mine" / OTHER_DEVICES).families) == {"matmul"}


def test_groups_of_devices() -> None:
    assert chip("a100-40g-pcie") == chip("a100-80g-sxm") != chip("v100-32g-pcie")


@pytest.mark.skipif(not DATA.is_dir(), reason="the public measurements are not here")
def test_every_device_of_the_public_files_is_in_the_catalogue() -> None:
    from foretell.hardware import recognise
    from foretell.store.importers import read_public

    for name in ("gemm", "neusight_ops"):
        table = read_public(DATA / f"{name}.csv.gz").table
        assert all(recognise(card) for card in table["device"].unique().to_pylist())
