"""The instrument on this machine's CPU: real steps, measured end to end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from foretell.errors import InputError, PlanError, SourceError
from foretell.graph import Graph
from foretell.measure.instrument import Measurement, measure
from foretell.measure.record import Point, Record

SMALL = f"{Path(__file__).parent / 'small.py'}"


def measured(function: str = "perceptron", *, seconds: float = 0.05, plan: str = "", **settings: object) -> Record:
    point = Point(source=f"{SMALL}:{function}", settings={k: str(v) for k, v in settings.items()}, plan=plan)
    return measure(point, device="cpu", seconds=seconds)


def graph_of(record: Record) -> Graph:
    assert record.graph is not None
    return Graph.from_bytes(record.graph.file, name=record.graph.name)


def op_seconds(record: Record) -> float:
    """Over the step, each op as often as it runs."""
    ops = graph_of(record).ops
    return sum((row.device_seconds or 0.0) * ops[row.op].times for row in record.ops)


@pytest.fixture(scope="module")
def plain() -> Record:
    return measured(batch=256, width=256, seconds=0.2)  # large enough that ops, not Python, take the time


class TestAStep:
    def test_its_time_is_a_median_between_percentiles(self, plain: Record) -> None:
        step = plain.step
        assert step.outcome == "ok"
        assert 5 <= step.repetitions <= 100
        assert step.step_seconds
        assert step.step_low
        assert step.step_high
        assert 0 < step.step_low <= step.step_seconds <= step.step_high
        unsteady = step.step_high > 1.25 * step.step_low
        assert any(mark.startswith("unsteady") for mark in step.marks) == unsteady

    def test_no_part_is_longer_than_it(self, plain: Record) -> None:
        step = plain.step
        parts = (step.forward_seconds, step.backward_seconds, step.optimizer_seconds)
        assert step.step_seconds
        # Each is a median of its own, so that on a busy machine they do not add up exactly.
        assert all(part and part <= step.step_seconds for part in parts)

    def test_its_ops_are_those_of_its_graph(self, plain: Record) -> None:
        ops = graph_of(plain).ops
        assert [row.op for row in plain.ops] == list(range(len(ops)))
        assert [(row.target, row.phase) for row in plain.ops] == [(op.target, op.phase) for op in ops]
        assert plain.step.graph == graph_of(plain).content_hash
        assert {row.phase for row in plain.ops} == {"forward", "backward", "optimizer"}

    def test_its_ops_take_about_as_long_as_it(self, plain: Record) -> None:
        # The quietest of three repetitions of each op, and whole steps: others on the machine slow both, not alike.
        assert plain.step.step_seconds
        assert 0.01 < op_seconds(plain) / plain.step.step_seconds < 10

    def test_the_largest_product_is_among_the_slowest_ops(self, plain: Record) -> None:
        slowest = sorted(plain.ops, key=lambda row: -(row.device_seconds or 0.0))[:4]
        assert any("mm" in row.target for row in slowest)

    def test_resources(self, plain: Record) -> None:
        step = plain.step
        assert step.step_seconds
        assert step.device_idle_seconds is not None
        assert step.device_active_seconds is not None
        assert step.device_idle_seconds + step.device_active_seconds == pytest.approx(step.step_seconds)
        assert step.memory_bandwidth_peak is None, "a CPU's memory traffic is not counted, and no zero stands for it"
        assert {s.resource for s in plain.series} == {"network_rx", "network_tx"}
        for series in plain.series:
            assert "/proc/net/dev" in series.counter
            assert len(series.seconds) == len(series.values)

    def test_where_and_with_what(self, plain: Record) -> None:
        step = plain.step
        assert step.device == ""
        for value in (step.device_name, step.torch, step.python, step.host_cpu, step.foretell, step.occasion):
            assert value
        assert step.date.endswith("+00:00")
        assert (step.workload, step.precision, step.training, step.samples) == ("perceptron", "fp32", True, 256)

    def test_it_travels_as_a_line(self, plain: Record) -> None:
        line = plain.to_line()
        assert "\n" not in line
        assert Record.from_line(line) == plain
        assert Record.from_line(line).step.id == plain.step.id


def test_inference_has_a_forward_part_alone() -> None:
    step = measured(training=False).step
    assert (step.outcome, step.training) == ("ok", False)
    assert step.forward_seconds == step.step_seconds
    assert step.backward_seconds is None
    assert step.optimizer_seconds is None


def test_accumulated_micro_steps_are_recorded_twice_and_counted_often() -> None:
    record = measured(grad_accumulation=4)
    times = {op.times for op in graph_of(record).ops if op.phase == "forward"}
    assert times == {1, 3}
    assert record.step.grad_accumulation == 4
    assert len(record.ops) == len(graph_of(record).ops)


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # a CPU without bf16
def test_autocast_casts() -> None:
    record = measured(precision="amp-bf16")
    assert record.step.precision == "amp-bf16"
    assert any(op.target.startswith("aten._to_copy") for op in graph_of(record).ops)


def test_the_parts_of_a_step_of_ones_own_are_not_known() -> None:
    step = measured(own_step=True).step
    assert step.outcome == "ok"
    assert step.step_seconds
    assert (step.forward_seconds, step.backward_seconds, step.optimizer_seconds) == (None, None, None)


class TestWhatGoesWrong:
    def test_a_loss_that_is_not_finite(self) -> None:
        record = measured("wrong", kind="nan")
        assert record.step.outcome == "nan-loss"
        assert "not a finite number" in record.step.error
        assert record.step.step_seconds, "times are kept"
        assert record.ops

    @pytest.mark.parametrize(
        ("kind", "message"),
        [("memory", "memory: you tried to allocate"), ("full", "memory is full"), ("cublas", "ALLOC")],
    )
    def test_memory_that_runs_out_in_the_middle(self, kind: str, message: str) -> None:
        step = measured("wrong", kind=kind).step
        assert step.outcome == "out-of-memory"
        assert message in step.error
        assert step.step_seconds is None
        assert step.device_name

    def test_after_it_the_next_one_is_measured(self) -> None:
        assert measured("wrong", kind="memory").step.outcome == "out-of-memory"
        assert measured("wrong", kind="nothing").step.outcome == "ok"

    def test_an_error_of_the_workload_is_its_own(self) -> None:
        with pytest.raises(KeyError, match="nothing"):
            measured("wrong", kind="bug")

    @pytest.mark.parametrize(
        ("device", "message"), [("gpu", "Give auto, cpu, cuda or cuda:N"), ("cuda:99", "is not on this machine")]
    )
    def test_no_such_device(self, device: str, message: str) -> None:
        with pytest.raises(InputError, match=message):
            measure(Point(source=f"{SMALL}:perceptron"), device=device)

    def test_no_such_source(self) -> None:
        with pytest.raises(SourceError, match="perceptrn"):
            measured("perceptrn")

    @pytest.mark.parametrize("plan", ["dp=2", "checkpointing=full"])
    def test_a_plan_is_not_ignored(self, plan: str) -> None:
        with pytest.raises(PlanError, match="torchrun"):
            measured(plan=plan)

    def test_no_plan_by_another_name(self) -> None:
        assert measured(plan="dp=1").step.plan == "dp=1"


class TestALightStep:
    def point(self, function: str = "perceptron", **settings: object) -> Point:
        return Point(source=f"{SMALL}:{function}", settings={k: str(v) for k, v in settings.items()})

    def test_has_a_time_and_no_ops(self) -> None:
        record = Measurement(self.point(batch=8), "cpu").prepare(light=True).take(0.01).record()
        assert record.step.outcome == "ok"
        assert record.step.step_seconds
        assert record.step.samples == 8
        assert record.step.device_seconds is None
        assert record.graph is None
        assert not record.ops

    def test_at_another_batch_has_the_model_of_the_first(self) -> None:
        first = Measurement(self.point(batch=8), "cpu").prepare(light=True)
        second = Measurement(self.point(batch=32), "cpu").prepare(first, light=True)
        assert second.step.model is first.step.model
        assert [one.take(0.01).record().step.samples for one in (first, second)] == [8, 32]

    def test_another_model_is_not_taken_for_the_same(self) -> None:
        first = Measurement(self.point(batch=8), "cpu").prepare(light=True)
        with pytest.raises(ValueError, match="differ in more than their batch"):
            Measurement(self.point(batch=8, width=32), "cpu").prepare(first)


def test_it_needs_torch_and_no_more(tmp_path: Path) -> None:
    """What Foretell's extras and its terminal need is hidden from it."""
    code = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("typer", "rich", "click", "pyarrow", "duckdb", "ray", "cloudpickle", "pynvml"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Hidden())
from foretell.measure.instrument import Measurement, measure
from foretell.measure.record import Point
from foretell.store.lines import RecordFile

RecordFile(sys.argv[2]).append([measure(Point(source=sys.argv[1]), device="cpu", seconds=0.02)])
"""
    command = [sys.executable, "-c", code, f"{SMALL}:perceptron", str(tmp_path / "r.jsonl")]
    subprocess.run(command, check=True, timeout=600)
    assert '"outcome":"ok"' in (tmp_path / "r.jsonl").read_text()
