"""`fit --method`, `predict --method` and `--resources`, and the tables and records they learn from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from foretell import cli
from foretell.errors import InputError
from foretell.hardware import Cluster
from foretell.measure.record import GraphRow, OpRow, Record, StepRow
from foretell.methods import examples_of, query_of
from foretell.methods.conformance import perceptron
from foretell.methods.protocol import DEVICE_TIME, MEMORY, STEP_TIME
from foretell.store.lines import RecordFile


def call(*arguments: object) -> Result:
    return CliRunner().invoke(cli.app, [str(each) for each in arguments], env={"COLUMNS": "100"})


@pytest.fixture
def steps(tmp_path: Path) -> Path:
    """A table of step times of graphs in files."""
    rows = ["source,cluster,plan,seconds,allocated"]
    for width in (64, 128, 256):
        perceptron(width, layers=2, batch=8).save(tmp_path / f"net{width}.graph")
        rows += [f"{tmp_path}/net{width}.graph,{n}xh200,dp={n},{width * 1e-6 * (1 + n)},1e6" for n in (1, 2, 4)]
    (tmp_path / "steps.csv").write_text("\n".join(rows) + "\n")
    return tmp_path / "steps.csv"


def test_a_method_is_fitted_on_a_table_and_asked_beside_a_forecast(steps: Path) -> None:
    graph, kept = steps.with_name("net128.graph"), steps.with_name("kept")
    fitted = call("fit", kept, "--method", "ernest", "--from", steps)
    assert fitted.exit_code == 0, fitted.output
    shown = call("predict", graph, "--on", "2xh200", "--method", kept, "--resources")
    assert shown.exit_code == 0, shown.output
    assert "The same step by Ernest" in shown.output
    assert "network out" in shown.output
    said = json.loads(call("predict", graph, "--on", "2xh200", "--method", kept, "--resources", "--json").stdout)
    assert said["method"]["values"][STEP_TIME] == pytest.approx(128e-6 * 3, rel=0.05)
    assert set(said["resources_over_step"]) == {"device", "memory_bandwidth", "network_rx", "network_tx"}
    unknown = call("predict", graph, "--on", "a100-80g-sxm", "--method", kept)
    assert "no answer: Ernest knows only workloads it has run" in " ".join(unknown.output.split())


@pytest.mark.parametrize(("arguments", "said"), [
    (("fit", "x", "--method", "ernst"), "Did you mean 'ernest'"),
    (("fit", "x", "--method", "ernest", "--public", "y"), "--public cannot go with --method"),
    (("fit", "x", "--from", "y.csv"), "Give --method NAME too"),
    (("predict", "x.graph", "--on", "h200", "--method", "y", "--fit-batch"), "--method cannot go with --fit-batch"),
    (("predict", "x.graph", "--on", "h200", "--resources", "--server", "http://x"), "--resources cannot go with --server"),
])  # fmt: skip
def test_what_cannot_go_together_is_told(arguments: tuple[str, ...], said: str) -> None:
    result = call(*arguments)
    assert result.exit_code != 0
    assert said in " ".join(result.output.split())


def test_records_become_examples(tmp_path: Path) -> None:
    graph = perceptron(64, layers=2, batch=8)
    row = GraphRow(hash=graph.content_hash, name="net", file=graph.to_bytes())
    ops = tuple(
        OpRow(op=i, target=op.target, phase=op.phase, device_seconds=1e-6, dispatch_seconds=None, issue_seconds=None)
        for i, op in enumerate(graph.ops)
    )

    def record(source: str, device: str, **more: object) -> Record:
        step = StepRow(point="0" * 16, kind="step", source=source, settings='{"batch":"8"}', graph=row.hash, repetitions=10,
                       step_seconds=2e-3, peak_allocated=10**6, device=device, device_peak=1.0, **more)  # type: ignore[arg-type]  # fmt: skip
        return Record(step=step, ops=ops, graph=row)

    file = RecordFile(tmp_path / "kept.jsonl")
    file.append(
        [
            record("net", "h200"),
            record("generated/8", "h200"),
            record("net", ""),
            record("net", "h200", outcome="error"),
        ]
    )
    [example] = examples_of(tmp_path / "kept.jsonl")  # not what judges models, nor an unknown device, nor what failed
    assert example.measured == {STEP_TIME: 2e-3, MEMORY: 1e6, "device_peak": 1.0}
    assert example.query.settings == {"batch": "8"}
    assert (example.query.batch, len(example.ops)) == (8.0, len(graph.ops))
    other = RecordFile(tmp_path / "alone.jsonl")
    other.append([record("net", "h200", device_seconds=9e-3)])  # of other steps than those that were timed
    [alone] = examples_of(tmp_path / "alone.jsonl")
    assert DEVICE_TIME not in alone.measured
    assert not alone.ops
    with pytest.raises(InputError, match="no record file"):
        examples_of(tmp_path / "other.jsonl")


@pytest.mark.parametrize(("columns", "cluster"), [
    ({"device_name": "aarch64", "host_cpu": "aarch64"}, "cpu"),
    ({"device_name": "AMD EPYC 7763", "host_cpu": "AMD EPYC 7763", "world_size": 4, "plan": "dp=4"}, "4xcpu"),
    ({"device_name": "NVIDIA H200", "host_cpu": "AMD EPYC 7763", "cuda": "13.0"}, "h200"),  # the catalog has it by now
    ({"device": "h200", "world_size": 2, "plan": "dp=2"}, "2xh200"),
])  # fmt: skip
def test_steps_of_any_machine_teach_a_method(tmp_path: Path, columns: dict[str, object], cluster: str) -> None:
    graph = perceptron(64, layers=2, batch=8)
    row = GraphRow(hash=graph.content_hash, name="net", file=graph.to_bytes())
    step = StepRow(point="0" * 16, kind="step", source="net", settings="{}", graph=row.hash, repetitions=10,
                   step_seconds=2e-3, **columns)  # type: ignore[arg-type]  # fmt: skip
    RecordFile(tmp_path / "kept.jsonl").append([Record(step=step, ops=(), graph=row)])
    [example] = examples_of(tmp_path / "kept.jsonl")
    assert example.query.cluster == Cluster.parse(cluster)
    assert call("fit", tmp_path / "kept", "--method", "ernest", "--from", tmp_path / "kept.jsonl").exit_code == 0


def test_a_question_counts_the_samples_of_all_replicas() -> None:
    asked = query_of(perceptron(64, layers=2, batch=8), "4xh200", "dp=4,grad_accumulation=2")
    assert asked.batch == 8 * 4 * 2
    assert query_of(perceptron(64, layers=2, batch=8), "4xh200").plan.dp == 4


def test_foretell_itself_is_fitted_on_ones_own_steps(steps: Path) -> None:
    """As any other method: it has learned from the table, so it is closer than what is shipped."""
    graph, kept = steps.with_name("net128.graph"), steps.with_name("kept")
    assert call("fit", kept, "--method", "foretell", "--from", steps).exit_code == 0
    shown = json.loads(call("predict", graph, "--on", "2xh200", "--method", kept, "--json").stdout)
    measured = 128e-6 * 3
    fitted, shipped = shown["method"]["values"][STEP_TIME], shown["step_time"]["seconds"]
    assert abs(fitted / measured - 1) < abs(shipped / measured - 1)
    assert fitted == pytest.approx(measured, rel=0.25)
