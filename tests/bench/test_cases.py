"""Questions made of rows, and answers calibrated: on answers whose truth is known."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from foretell.bench import cases, gpt_steps, llm_sweep, mpt
from foretell.bench.cases import Answer, Refusal, ask, calibrate, sample
from foretell.hardware import Cluster
from foretell.workload import Plan

TRUE_FACTORS = (1.3, 2.0, 1.5, 0.8)


def quiet(text: str) -> None:
    """Nobody watches."""


def answer(device: float, host: float = 0.0, waiting: float = 0.0, bubble: float = 0.0, memory: int = 10**9) -> Answer:
    held = {"parameters": 0, "gradients": 0, "optimizer": 0, "allocated": memory, "total": memory}
    return Answer(device=device, host=host, waiting=waiting, bubble=bubble, memory=held)


def test_factors_are_found_again() -> None:
    rng = np.random.default_rng(0)
    answers = [answer(*rng.uniform(0.1, 1.0, 4).tolist()) for _ in range(60)]
    found = calibrate(answers, [a.seconds(TRUE_FACTORS) for a in answers])
    assert found == pytest.approx(TRUE_FACTORS, rel=0.1)


def test_host_and_device_run_side_by_side_and_a_bubble_stretches_both() -> None:
    ones = (1.0, 1.0, 1.0, 1.0)
    assert answer(1.0, host=0.5).seconds(ones) == pytest.approx(1.0, rel=0.01)
    assert answer(0.5, host=1.0).seconds(ones) == pytest.approx(1.0, rel=0.01)
    assert answer(1.0, host=2.0, bubble=0.5).seconds(ones) == pytest.approx(3.0, rel=0.01)


def test_a_sample_takes_of_every_kind() -> None:
    rows = [{"kind": "rare" if i < 3 else "common", "i": str(i)} for i in range(50)]
    taken = sample(rows, 10, by=["kind"])
    assert len(taken) == 10
    assert sum(row["kind"] == "rare" for row in taken) == 3
    assert taken == sample(rows[::-1], 10, by=["kind"])


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any, Cluster, Plan], Answer | Refusal]:
    """Stands in for forecasts: time by the batch and plan alone."""

    def stand_in(graph: Any, cluster: Cluster, plan: Plan) -> Answer | Refusal:
        if plan.pp > 2:
            return Refusal(why="plan asks for pp, which this version does not model yet", impossible=False)
        if plan.tp > 8:
            return Refusal(why="tp must divide the heads", impossible=True)
        steps = plan.grad_accumulation or 1
        batch = int(graph)
        return answer(
            0.01 * batch * steps / plan.tp, 0.02 * steps, 0.001 * plan.tp * steps, 0.01 * (plan.pp - 1), batch * 10**10
        )

    for module in (llm_sweep, gpt_steps):
        monkeypatch.setattr(module, "ask", stand_in)
    monkeypatch.setattr(cases.Models, "graph", lambda self, config, settings, batch: str(batch))
    return stand_in


def test_a_sweep(tmp_path: Path, asked: Callable[[Any, Cluster, Plan], Answer | Refusal]) -> None:
    rows = []
    for model in ("1B", "8B"):
        for dp, tp, pp in ((8, 1, 1), (4, 2, 1), (2, 4, 1), (4, 1, 2), (2, 2, 2), (1, 2, 4), (1, 16, 1)):
            for batch in (1, 2, 4, 16):
                plan = Plan(dp=dp, tp=tp, pp=pp, grad_accumulation=4)
                said = asked(str(batch), Cluster.parse("8xh100"), plan)
                crashed = isinstance(said, Refusal) or batch == 16
                seconds = 1.0 if isinstance(said, Refusal) else said.seconds(TRUE_FACTORS)
                rows.append({
                    "model": model, "nodes": 1, "gpus": 8, "micro_batch": batch, "grad_accum": 4, "global_batch": 0,
                    "dp": dp, "pp": pp, "tp": tp, "zero": 0, "seq_len": 10, "mfu": "" if crashed else 0.2,
                    "tokens_per_s": "" if crashed else dp * batch * 4 * 10 / seconds,
                    "memory_gb": "" if crashed else batch * 10, "status": "crashed" if crashed else "ok",
                })  # fmt: skip
    _write(tmp_path / "llm_h100_sweep.csv", rows)
    found = llm_sweep.figures(tmp_path, quiet, 1000)
    assert [figure.met for figure in found] == [True] * 6
    assert "8 not run, plan not modelled yet: pp" in found[0].note


def test_steps_of_a_gpt(tmp_path: Path, asked: Callable[[Any, Cluster, Plan], Answer | Refusal]) -> None:
    rows = []
    for hidden, layers in ((1024, 12), (1024, 24), (2048, 12)):
        for dp, tp, pp in ((8, 1, 1), (4, 2, 1), (2, 4, 1), (4, 1, 2)):
            for batch in (1, 2, 4):
                said = asked(str(batch), Cluster.parse("8xa100"), Plan(dp=dp, tp=tp, pp=pp, grad_accumulation=2))
                assert isinstance(said, Answer)
                rows.append({
                    "# GPUs": 8, "global batch": 2 * batch * dp, "micro batch": batch, "hidden size": hidden,
                    "attention heads": 16, "# layers": layers, "sequence length": 1024, "tensor parallelism": tp,
                    "data parallelism": dp, "pipeline parallelism": pp,
                    "iteration time (ms)": said.seconds(TRUE_FACTORS) * 1e3,
                })  # fmt: skip
    _write(tmp_path / "vtrain_single_node.csv", rows)
    [figure] = gpt_steps.figures(tmp_path, quiet, 1000)
    assert figure.met
    assert figure.rows == 36


def test_steps_under_fsdp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in whose steps are linear in layers; the graph of a row is what the row asks for."""

    def stand_in(graph: tuple[int, int, int], cluster: Cluster, plan: Plan) -> Answer:
        layers, batch, width = graph
        return answer(1e-5 * (layers + 1) * batch * width, 1e-3 * layers, 1e-5 * layers * plan.dp)

    monkeypatch.setattr(mpt, "ask", stand_in)
    monkeypatch.setattr(
        mpt, "_graph", lambda models, row, depth: (depth, int(row["MicroBatchSize"]), mpt._SHAPES[row["Model"]][0])
    )
    rows = []
    for model in ("125m", "1b", "7b"):
        width, layers, _ = mpt._SHAPES[model]
        for devices in (8, 16, 64):
            for batch in (1, 2, 4):
                seconds = stand_in((layers, batch, width), Cluster.parse("8xa100"), Plan(dp=devices)).seconds(
                    TRUE_FACTORS
                )
                rows.append({
                    "Model": model, "SeqLen (T)": 2048, "# GPUs": devices, "GPU": "a100_80gb", "MicroBatchSize": batch,
                    "GradAccum": 1, "GlobalBatchSize (T)": 1000, "Throughput (T/s)": 1000 / seconds,
                    "Sharding Strategy": "FULL_SHARD", "Activation Checkpointing": True,
                })  # fmt: skip
    _write(tmp_path / "fsdp_mpt.csv", rows)
    [figure] = mpt.figures(tmp_path, quiet, 1000)
    assert figure.met
    assert figure.rows == 27


def test_an_impossible_plan_is_told_from_one_that_is_not_modelled(small_graph: Any) -> None:
    refused = ask(small_graph, Cluster.parse("8xh100"), Plan(dp=4))
    assert isinstance(refused, Refusal)
    assert refused.impossible
    found = ask(small_graph, Cluster.parse("8xh100"), Plan(dp=8))
    assert isinstance(found, Answer)
    assert found.device > 0
    assert found.host > 0
    assert found.memory["allocated"] > 0


@pytest.fixture
def small_graph() -> Any:
    from foretell.graph import Graph

    return Graph.load(Path(__file__).parents[1] / "data" / "version-1.graph")
