"""Operators of devices that were not measured here: read from public files, learned, each chip left out."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from foretell_bench.research.op_errors import errors_left_out, mean_errors

from foretell.cost.features import describe
from foretell.cost.flops import flops
from foretell.cost.model import CostModel
from foretell.cost.operators import OperatorModels
from foretell.cost.transfer import FILE, Generations, transferred
from foretell.hardware import device
from foretell.learn.transfer.fit import chip, fit_generations, offsets, without_each
from foretell.learn.transfer.published_ops import _SIGNATURES, PublicOps, product, public_ops
from foretell.learn.uncertainty.other_devices import fit_others
from foretell.store.importers import formats

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
    tables = public_ops(tmp_path, H200)
    assert set(tables) == {"t4", "mi100", "l40s"}
    assert list(tables["l40s"].seconds) == [5e-4]  # thin products are decoding, fp8 nobody trains in
    # Calls that take no longer than twice the shortest tell of the host that issued them, which all others pay too.
    least = float(np.quantile([3e-5 * 2**i for i in range(6)], 0.01))
    assert sorted(tables["t4"].seconds) == pytest.approx([3e-5 * 2**i - 0.6 * least for i in range(2, 6)])
    assert {s.name for s in tables["mi100"].signatures} == {"aten.add"}
    assert {s.name for s in tables["t4"].signatures} == {"aten.bmm"}


def test_gpts_products_follow_from_its_weights(tmp_path: Path) -> None:
    """One is as short as issuing it takes, and one was timed with a copy: neither tells of a product."""
    width, tokens, mib = 2048, 4096, 2**20
    sizes = {"enc-attention-qkv": 3, "enc-attention-dense": 1, "enc-MLP-GEMM-1": 4, "enc-MLP-GEMM-2": 4}
    rows = [
        {"family": "gpt", "size": "1_3B", "mbs": 2, "tp": 1, "algo": 0, "op_name": name,
         "forward-compute": 100.0 if n == 1 else 1000.0, "backward-compute": 1.0, "input_size": 0.0, "output_size": 0.0,
         "weights": 2 * n * width**2 / mib, "activations": 0.0, "fwd_reserved": 0.0, "bwd_reserved": 0.0}
        for name, n in sizes.items()
    ]  # fmt: skip
    norm = rows[0] | {"op_name": "enc-1st-layernorm", "input_size": 2 * width * tokens / mib, "weights": 0.0}
    write(tmp_path, "v100_tensor_parallel_ops", [*rows, norm])
    [(name, table)] = public_ops(tmp_path, H200).items()
    assert name == "v100-32g-sxm"
    assert list(table.seconds) == pytest.approx([1e-3 - 0.6e-4] * 2)
    assert list(map(flops, table.signatures)) == [2 * tokens * 4 * width**2] * 2


def test_signatures_of_public_ops_count_as_they_should() -> None:
    linear = _SIGNATURES["linear"]({"b": 1, "m": 8, "n": 16, "k": 32})
    assert flops(linear) == flops(product(8, 16, 32, "float32")) == 2 * 8 * 16 * 32


def made_up(name: str, factor: float, count: int, seed: int, noise: float = 0.1, products: bool = False) -> PublicOps:
    """fp32 softmaxes, or products, that take some times what is transferred to their device."""
    card, draw = device(name), np.random.default_rng(seed)
    sizes = (2 ** draw.uniform(8, 13, (count, 3))).astype(int).tolist()
    signatures = [
        product(m, n, k, "float32") if products else _SIGNATURES["softmax"]({"b": m, "h": n}) for m, n, k in sizes
    ]
    seconds, _ = transferred(signatures, H200, NOTHING, card, Generations(), tf32=False)
    return PublicOps(
        device=card, signatures=signatures, seconds=seconds * factor * np.exp(draw.normal(0, noise, count))
    )


@pytest.fixture(scope="module")
def public() -> dict[str, PublicOps]:
    cards = {"a100-40g-pcie": 1.5, "a100-80g-sxm": 1.5, "a30": 1.5, "h100-sxm": 0.8}
    return {name: made_up(name, factor, 120, seed) for seed, (name, factor) in enumerate(cards.items())}


def test_a_chip_is_left_out_on_all_its_boards_and_predicted_by_its_generation(public: dict[str, PublicOps]) -> None:
    off = offsets(public, H200, NOTHING)
    learned = without_each(off, public)
    assert set(learned) == {"a100", "a30", "h100"}
    assert learned["a100"].factor(device("a100-40g-pcie"), "aten._softmax") == pytest.approx(1.5, rel=0.05)
    assert learned["h100"].factor(device("h100-sxm"), "aten._softmax") == 1.0
    errors = errors_left_out(public, learned, H200, NOTHING)
    assert {e.device for e in errors} == set(public)
    means = {e.device: {way: those.mean for way, those in e.errors.items()} for e in errors}
    assert means["a30"]["learned"] < 0.12 < 0.25 < means["a30"]["physics"]
    assert set(next(iter(mean_errors(errors).values()))) == {"learned", "physics", "linear", "roofline"}


def test_no_factor_is_learned_where_ops_have_none_in_common(public: dict[str, PublicOps]) -> None:
    odd = {"t4": made_up("t4", 2.0, 200, 7, noise=1.0), "a30": made_up("a30", 2.0, 20, 8)}
    assert not any(offsets(odd, H200, NOTHING).values())


def test_factors_are_for_what_they_were_learned_of(public: dict[str, PublicOps]) -> None:
    learned, card = fit_generations(offsets(public, H200, NOTHING), public), device("a30")
    pair = [_SIGNATURES["softmax"]({"b": 4096, "h": 4096}), product(2048, 2048, 2048, "float16")]
    with_factor, _ = transferred(pair, H200, NOTHING, card, learned, tf32=False)
    alone, _ = transferred(pair, H200, NOTHING, card, Generations(), tf32=False)
    assert with_factor / alone == pytest.approx([1.5, 1.0], rel=0.05)


def test_products_that_were_timed_one_by_one_say_nothing_of_those_in_steps_where_the_clock_is_known() -> None:
    public = {name: made_up(name, 1.4, 120, seed, products=True) for seed, name in enumerate(("t4", "mi210"))}
    learned = fit_generations(offsets(public, H200, NOTHING), public)
    assert learned.factor(device("t4"), "matmul fp32") == 1.0
    assert learned.factor(device("mi210"), "matmul fp32") == pytest.approx(1.4, rel=0.05)


def test_half_runs_on_the_units_of_fp32_where_there_are_no_others() -> None:
    half = product(512, 512, 512, "float16")
    kinds = {name: describe(half, device(name), tf32=False).values["type"] for name in ("h200", "t4", "titan-xp", "p4")}
    assert kinds == {"h200": 4.0, "t4": 4.0, "titan-xp": 1.0, "p4": 1.0}


def test_fitting_writes_what_a_model_reads(tmp_path: Path) -> None:
    shapes = [{"B": 4, "M": 64 * i, "N": 512, "K": 512} for i in range(1, 130)]
    rows = [neusight("bmm", "AMD Instinct MI210", 0.03 + 2e-4 * s["M"], **s) for s in shapes]
    write(tmp_path, "neusight_ops", rows)
    model = CostModel(name="mine", device="h200", operators=NOTHING)
    assert fit_others(model, tmp_path, tmp_path, intervals=False)["mi210"] > 90
    assert set(Generations.load(tmp_path / FILE).factors) == {"CDNA"}


def test_groups_of_devices() -> None:
    assert chip("a100-40g-pcie") == chip("a100-80g-sxm") != chip("v100-32g-pcie")


@pytest.mark.skipif(not DATA.is_dir(), reason="the public measurements are not here")
def test_every_device_of_the_public_files_is_in_the_catalogue() -> None:
    from foretell.hardware import recognise
    from foretell.store.importers import read_public

    for name in ("gemm", "neusight_ops"):
        table = read_public(DATA / f"{name}.csv.gz").table
        assert all(recognise(card) for card in table["device"].unique().to_pylist())
