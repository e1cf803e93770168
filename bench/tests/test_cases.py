"""Questions made of rows, and answers calibrated: on answers whose truth is known."""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from foretell_bench.sources import cases, gpt_steps, layers, llm_memory, llm_sweep, mpt, nanotron
from foretell_bench.sources.cases import sample
from foretell_bench.sources.layers import Layers, Pace, Parts, Stage, Work, one_forward_one_backward
from foretell_bench.tables.fitting import fitted, foretold_by_others

from foretell.hardware import Cluster
from foretell.hardware import device as hardware_device
from foretell.learn.adapt.factors import Answer, Refusal, ask
from foretell.plan import Plan

TRUE_FACTORS = (1.3, 2.0, 1.5, 0.8)


def quiet(text: str) -> None:
    """Nobody watches."""


def answer(device: float, host: float = 0.0, waiting: float = 0.0, bubble: float = 0.0, memory: int = 10**9) -> Answer:
    held = {"parameters": 0, "gradients": 0, "optimizer": 0, "allocated": memory, "total": memory}
    return Answer(device=device, host=host, waiting=waiting, bubble=bubble, memory=held)


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


TRUE_PARTS = Parts(layer=Work(4e-3, 2e-3, 5e-4), rest=Work(8e-3, 1e-3, 1e-3), update_of_layer=1e-4, update_of_rest=2e-4)


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], Parts]:
    """Stands in for forecasts: parts by micro-batch and tensor parallelism alone."""

    def stand_in(micro_batch: int, tp: int) -> Parts:
        more = micro_batch / tp
        layer = Work(4e-3 * more, 2e-3, 5e-4 * micro_batch)
        return dataclasses.replace(TRUE_PARTS, layer=layer, rest=Work(8e-3 * more, 1e-3, 1e-3 * micro_batch))

    monkeypatch.setattr(
        Layers, "parts", lambda self, config, settings, micro_batch, plan, cluster: stand_in(micro_batch, plan.tp)
    )
    return stand_in


def _sweep_row(model: str, batch: int, plan: Plan) -> dict[str, Any]:
    return {
        "model": model, "nodes": 2, "gpus": 16, "micro_batch": batch, "grad_accum": plan.grad_accumulation, "dp": plan.dp,
        "pp": plan.pp, "tp": plan.tp, "zero": 0, "seq_len": 4096, "mfu": 0.2, "tokens_per_s": 1.0, "memory_gb": 1.0,
        "status": "ok",
    }  # fmt: skip


def test_a_sweep(tmp_path: Path, parts: Callable[[int, int], Parts]) -> None:
    """Steps made with known numbers of software and network: those of one size foretell the other."""
    truth = (1.1, 2.5, 0.9, 1.2, 3e-3, 1.2, 4e-5, 0.03)
    layers, rows = Layers(cases.Models(quiet)), []
    for model in ("1B", "8B"):
        for dp, tp, pp in (
            (16, 1, 1),
            (8, 2, 1),
            (4, 4, 1),
            (8, 1, 2),
            (4, 2, 2),
            (2, 2, 4),
            (1, 16, 1),
            (1, 4, 4),
            (1, 1, 16),
        ):
            for batch in (1, 4, 64):
                made = _sweep_row(model, batch, Plan(dp=dp, tp=tp, pp=pp, grad_accumulation=4))
                row = {key: str(value) for key, value in made.items()}
                known = llm_sweep._held(row)
                case = llm_sweep._case(layers, row)
                if known.called or isinstance(case, Refusal):
                    rows.append({**row, "status": "crashed", "tokens_per_s": "", "memory_gb": "", "mfu": ""})
                else:
                    speed = case.tokens / case.seconds(truth)
                    rows.append({**row, "tokens_per_s": speed, "memory_gb": known.of_first / 1e9})
    assert sum(row["status"] == "crashed" for row in rows) > 8
    _write(tmp_path / "llm_h100_sweep.csv", rows)
    found = llm_sweep.figures(tmp_path, quiet, 1000)
    assert [figure.met for figure in found[:4]] == [True] * 4
    assert found[0].value is not None and found[0].value < 0.03  # noqa: PT018
    assert found[4].rows + sum(row["status"] == "crashed" for row in rows) == found[5].rows == len(rows)


def test_steps_of_a_gpt(tmp_path: Path, parts: Callable[[int, int], Parts]) -> None:
    truth = (1.2, 2.0, 1.4, 0.8, 2e-4, 1.0, 0.005)
    layers, rows = Layers(cases.Models(quiet)), []
    for hidden, depth in ((1024, 12), (1024, 24), (2048, 12)):
        for dp, tp, pp in ((8, 1, 1), (4, 2, 1), (2, 4, 1), (4, 1, 2)):
            for batch in (1, 2, 4):
                row: dict[str, Any] = {
                    "# GPUs": 8, "global batch": 2 * batch * dp, "micro batch": batch, "hidden size": hidden,
                    "attention heads": 16, "# layers": depth, "sequence length": 1024, "tensor parallelism": tp,
                    "data parallelism": dp, "pipeline parallelism": pp, "iteration time (ms)": 1.0,
                }  # fmt: skip
                case = gpt_steps._case(layers, {key: str(value) for key, value in row.items()})
                assert not isinstance(case, Refusal)
                rows.append({**row, "iteration time (ms)": case.seconds(truth) * 1e3})
    rows.append({**rows[0], "pipeline parallelism": 5})
    _write(tmp_path / "vtrain_single_node.csv", rows)
    [figure] = gpt_steps.figures(tmp_path, quiet, 1000)
    assert figure.value is not None and figure.value < 0.02  # noqa: PT018
    assert figure.rows == 36
    assert "1 not run: 12 layers do not divide into 5 stages" in figure.note


def test_parts_are_told_apart_by_two_depths(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in forecast that is linear in layers and micro-steps gives back what it was made of."""
    true = TRUE_PARTS
    asked: list[tuple[int, int]] = []

    def stand_in(depth: int, cluster: Cluster, plan: Plan) -> Answer:
        steps = plan.grad_accumulation or 1
        asked.append((depth, steps))
        total = [
            steps * (depth * getattr(true.layer, n) + getattr(true.rest, n)) for n in ("device", "host", "waiting")
        ]
        total[0] += depth * true.update_of_layer + true.update_of_rest
        return answer(*total)

    monkeypatch.setattr(layers, "ask", stand_in)
    monkeypatch.setattr(cases.Models, "graph", lambda self, config, settings, batch: config["num_hidden_layers"])
    known = Layers(cases.Models(quiet))
    for _ in range(2):
        found = known.parts({"a": 1}, {}, 1, Plan(tp=2), "2xh100")
        assert isinstance(found, Parts)
    assert len(asked) == 4
    for part in ("layer", "rest"):
        assert dataclasses.astuple(getattr(found, part)) == pytest.approx(dataclasses.astuple(getattr(true, part)))
    assert (found.update_of_layer, found.update_of_rest) == pytest.approx((true.update_of_layer, true.update_of_rest))


def test_a_pipeline_goes_at_the_pace_of_its_slowest_stage() -> None:
    pace, one = Pace(), [Stage(4, embedding=True, head=True)]
    whole = one_forward_one_backward(pace, TRUE_PARTS, one, 8)
    assert whole == pytest.approx(8 * pace.micro_step(TRUE_PARTS, one[0]))
    two = [Stage(2, embedding=True), Stage(2, head=True)]
    assert one_forward_one_backward(pace, TRUE_PARTS, two, 8) == pytest.approx(9 * pace.micro_step(TRUE_PARTS, two[1]))
    slow_host = Pace(layer_host=1.0)
    assert slow_host.micro_step(TRUE_PARTS, one[0]) == pytest.approx(4.0, rel=0.01)


@pytest.mark.parametrize(
    ("pipeline", "layers_held"), [(1, [16]), (2, [10, 6]), (4, [5, 5, 5, 1]), (8, [2, 3, 2, 3, 2, 3, 1, 0])]
)
def test_stages_of_a_trainer_that_counts_parameters(pipeline: int, layers_held: list[int]) -> None:
    """The head of this model weighs as much as four layers."""
    found = nanotron.stages(llm_sweep._MODELS["1B"], pipeline)
    assert found is not None
    assert [stage.layers for stage in found] == layers_held
    assert [stage.head for stage in found] == [False] * (pipeline - 1) + [True]
    assert found[0].embedding


def test_stages_without_parameters_do_not_run() -> None:
    assert nanotron.stages(llm_sweep._MODELS["1B"], 16) is None
    assert nanotron.stages(llm_sweep._MODELS["8B"], 16) is not None
    assert nanotron.stages(llm_sweep._MODELS["8B"], 64) is None


def test_memory_of_a_trainer() -> None:
    model = llm_sweep._MODELS["8B"]

    def first(plan: Plan, micro_batch: int = 1) -> int:
        layout = nanotron.stages(model, plan.pp)
        assert layout is not None
        return nanotron.memory(model, layout, plan, micro_batch, 4096)[0]

    plain = Plan(dp=8, tp=4, grad_accumulation=8)
    assert first(dataclasses.replace(plain, zero=1)) < first(plain)
    assert first(dataclasses.replace(plain, tp=8)) < first(plain) < first(plain, micro_batch=2)
    piped = dataclasses.replace(plain, pp=4)
    alone = dataclasses.replace(piped, grad_accumulation=1)
    assert first(alone, 8) < first(piped, 8)  # fewer micro-batches in flight


def test_trees_of_a_fifth_have_not_seen_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of one fifth alone hold twice what the rules say: their own trees cannot know."""
    device, model = hardware_device("h100-sxm"), llm_sweep._MODELS["1B"]
    rows = []
    for i in range(200):
        plan = Plan(dp=8, tp=2, grad_accumulation=4, zero=i % 2)
        made = llm_memory.held(f"row {i}", model, plan, 1 + i % 10, 4096, device, 1)
        odd = int(llm_memory.share(made.key) * 5) == 3
        rows.append(dataclasses.replace(made, measured=made.of_first * (2 if odd else 1)))
    trees = llm_memory.grow(rows)
    monkeypatch.setattr(llm_memory, "shipped", lambda: trees)
    off = llm_memory._corrected(rows) / np.array([row.of_first for row in rows])
    assert np.median(off) == pytest.approx(1.0, abs=0.05)
    assert max(off[llm_memory._folds(rows) == 3]) < 1.2
    memory, crashed = llm_memory.memory_figures("s", rows)
    assert memory.rows == crashed.rows == 200


@dataclasses.dataclass(frozen=True)
class Line:
    """A step that is a multiple of the first number, whatever the second."""

    kind: str
    times: float
    measured: float

    def seconds(self, numbers: Sequence[float]) -> float:
        return self.times * numbers[0]


def test_numbers_nobody_determines_stay_where_they_start() -> None:
    assert fitted((1.0, 3.0), [Line("a", 2, 4.0), Line("a", 5, 10.0)]) == pytest.approx([2.0, 3.0], rel=0.01)


def test_steps_are_foretold_by_numbers_of_other_kinds() -> None:
    steps = [Line("fast", n, 1.0 * n) for n in range(1, 10)] + [Line("slow", n, 2.0 * n) for n in range(1, 10)]
    for step, seconds in foretold_by_others(steps, (1.0, 1.0), kind=lambda step: step.kind):
        assert seconds == pytest.approx(step.times * (2.0 if step.kind == "fast" else 1.0), rel=0.01)
    assert foretold_by_others(steps[:9], (1.0, 1.0), kind=lambda step: step.kind) == []


def test_steps_under_fsdp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in whose steps are linear in layers; the graph of a row is what the row asks for."""

    def stand_in(graph: tuple[int, int, int], cluster: Cluster, plan: Plan) -> Answer:
        layers, batch, width = graph
        return answer(1e-5 * (layers + 1) * batch * width, 1e-3 * layers, 1e-5 * layers * plan.dp)

    monkeypatch.setattr(mpt, "ask", stand_in)
    monkeypatch.setattr(mpt, "_attention", lambda graph, cluster: 2e-6 * graph[0] * graph[1] * graph[2])
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

    return Graph.load(Path(__file__).parents[2] / "tests" / "data" / "version-1.graph")
