"""`foretell measure`: what it prints, keeps and refuses, and how it ends."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from foretell import cli
from foretell.campaign.driver import Progress
from foretell.campaign.executor import LocalExecutor
from foretell.cli.campaign import progress_bar
from foretell.errors import StoreError
from foretell.forecasting.forecast import forecast
from foretell.graph import Graph
from foretell.measure.record import OpRow, Record, SeriesRow, StepRow
from foretell.report.measured import measured, measured_dict, measured_ranks
from foretell.store.lines import RecordFile
from foretell.store.store import Store
from tests.measure.examples import step

ROOT = Path(__file__).parents[2]
SMALL = Path(__file__).parent / "small.py"
STAND_IN = "tests.measure.stand_in"


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder of its own, with the locks of devices for itself."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv("FORETELL_STORE", raising=False)


def call(*arguments: object) -> Result:
    return CliRunner().invoke(cli.app, ["measure", *map(str, arguments)], env={"COLUMNS": "110"})


def ask(function: str, *arguments: object) -> Result:
    """A short measurement in a real worker on the CPU."""
    return call(f"{SMALL}:{function}", "--device", "cpu", "--seconds", "0.02", *arguments)


@pytest.fixture
def _stand_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Workers with an instrument that does as it is asked, and needs no torch: they start at once."""
    monkeypatch.setenv("STAND_IN_LOG", str(tmp_path / "log"))
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}:{ROOT}")
    monkeypatch.setattr(
        "foretell.cli.measure._executor",
        lambda devices, wanted, ray, seconds: LocalExecutor(devices, wanted=wanted, instrument=STAND_IN),
    )


def stand_in(do: str, *arguments: object) -> Result:
    return call("stand-in", "--set", f"do={do}", "--device", "cpu", *arguments)


class TestASource:
    """In real workers."""

    def test_it_is_measured_shown_and_stored(self) -> None:
        # Wide, so that it runs for longer than a sampler on a busy machine may sleep.
        result = ask("perceptron", "--set", "batch=4", "--set", "width=2048", "--compare", "--top", "3")
        assert result.exit_code == 0, result.output
        for words in ("MEASURED", "perceptron", "batch=4", "p10 – p90 of", "samples/s", "forward", "backward",
                      "optimizer", "/proc/net/dev", "Top ops", "torch 2"):  # fmt: skip
            assert words in result.stdout
        [row] = Store("measurements").steps()
        assert f"Stored in measurements as {row.id[:8]}" in result.stderr
        assert "is not in the catalog, so there is no forecast" in result.stderr

    def test_again_it_is_measured_again_and_shown_in_json(self) -> None:
        result = ask("perceptron", "--repeat", "2", "--json", "--out", "r.jsonl")
        assert result.exit_code == 0, result.output
        first, second = json.loads(result.stdout)
        kept = [record.step for record in RecordFile("r.jsonl").records()]
        assert [first["id"], second["id"]] == [row.id for row in kept]
        assert first["point"] == second["point"]
        assert first["step_seconds"] == kept[0].step_seconds
        assert first["schema_version"] == 1
        assert not Path("measurements").exists()
        assert "foretell store import r.jsonl" in result.stderr

    def test_one_that_fails_does_not_stop_the_next(self) -> None:
        result = call(f"{SMALL}:nosuch", f"{SMALL}:wrong", f"{SMALL}:perceptron", "--device", "cpu", "--seconds", "0.02",
                      "--json", "--out", "r.jsonl")  # fmt: skip
        assert result.exit_code == 2
        assert [answer["outcome"] for answer in json.loads(result.stdout)] == ["error", "nan-loss", "ok"]
        assert "2 of 3 measurements failed" in result.stderr
        assert "no function 'nosuch'" in result.stderr
        kept = [record.step.outcome for record in RecordFile("r.jsonl").records()]
        assert kept == ["nan-loss", "ok"], "a slip is reported, and kept nowhere"


@pytest.mark.usefixtures("_stand_in")
class TestHowItEnds:
    @pytest.mark.parametrize(
        ("do", "code", "message"),
        [
            ("memory", 3, "out of memory: the host's memory is full. Ask for a smaller batch"),
            ("nan", 3, "nan loss: "),
            ("hang", 3, "time limit: it ran longer than 1 s and was stopped"),
            ("input error", 2, "the batch must be even, got 7"),
            ("bug", 2, "failed in its own code with KeyError"),
            ("abort", 2, "given up after 1 try: the measuring process was ended by SIGABRT"),
        ],
    )
    def test_by_what_went_wrong(self, do: str, code: int, message: str) -> None:
        limit = "1s" if do == "hang" else "1min"
        result = stand_in(do, "--limit", limit, "--retries", 0, "--json", "--out", "r.jsonl")
        assert result.exit_code == code, result.output
        assert message in " ".join(result.stderr.split())
        assert json.loads(result.stdout)["outcome"] in ("out-of-memory", "nan-loss", "time-limit", "error")
        assert Path("r.jsonl").exists() == (code == 3), "what a device could not do is kept, a slip is not"

    def test_a_crash_is_tried_again(self) -> None:
        assert stand_in("abort once").exit_code == 0


@pytest.mark.usefixtures("_stand_in")
class TestWhereItIsKept:
    def test_without_pyarrow_in_a_record_file(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("foretell.store.place.missing", lambda: ["pyarrow", "duckdb"])
        result = stand_in("sleep")
        assert result.exit_code == 0, result.output
        assert "Without pyarrow and duckdb there is no store. Written to measurements.jsonl" in result.stderr
        assert len(list(RecordFile("measurements.jsonl").records())) == 1

    def test_in_the_store_that_the_environment_names(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("FORETELL_STORE", "elsewhere")
        assert stand_in("sleep").exit_code == 0
        assert len(list(Store("elsewhere").steps())) == 1

    def test_a_full_disk_loses_nothing(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """The disk is full once the measurement is done; the error is the store's own."""

        def full(self: Store, records: Iterable[Record]) -> int:
            raise StoreError("cannot write to the store measurements: No space left on device.")

        monkeypatch.setattr(Store, "append", full)
        result = stand_in("sleep")
        assert result.exit_code == 2
        assert "MEASURED" in result.stdout, "it is shown all the same"
        assert "No space left on device" in result.stderr
        [rescued] = tmp_path.glob("foretell-rescued-*.jsonl")
        assert str(rescued) in result.stderr
        assert len(list(RecordFile(rescued).records())) == 1

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ((), "takes one or more SOURCEs, or --campaign FILE, got neither"),
            (("a", "--campaign", "c.toml"), "got both"),
            (("a", "--store", "s", "--out", "r.jsonl"), "two places for the same records"),
            (("a", "--out", "r.csv"), "must end in .jsonl"),
            (("a", "--out", "/dev/null/r.jsonl"), "Choose another file"),
            (("a", "--store", "/dev/null/s"), "cannot write to the store"),
            (("a", "--limit", "0"), "leaves no time"),
            (("a", "--seconds", "soon"), "is not a number with a unit"),
            (("a", "--set", "batch"), "is not a setting"),
            (("a", "--plan", "dp=2"), "--plan is for a step of several ranks"),
            (("a", "--backend", "gloo"), "--backend is for a step of several ranks"),
            (("a", "--device", "cpu", "--ray", "auto"), "Give one"),
            (("--campaign", "c.toml", "--repeat", "2"), "--repeat is for SOURCEs"),
            (("--campaign", "c.toml", "--set", "batch=1"), "--set is for SOURCEs"),
            (("--campaign", "c.toml"), "no campaign file 'c.toml'"),
        ],
    )
    def test_slips(self, arguments: tuple[str, ...], message: str) -> None:
        result = call(*arguments)
        assert result.exit_code == 2, result.output
        assert message in " ".join(result.stderr.split())

    def test_a_device_in_use(self) -> None:
        result = call("stand-in", "--device", "cuda:7")
        assert result.exit_code == 2
        assert "no worker starts on cuda:7: CUDA-capable device(s) is/are busy or unavailable" in result.stderr
        assert list(Store("measurements").steps()) == []

    def test_a_newer_store_is_reported_before_anything_is_measured(self) -> None:
        Path("s/v9").mkdir(parents=True)
        result = call("nosuch.py:f", "--store", "s")
        assert result.exit_code == 2
        assert "has version 9" in result.stderr


@pytest.mark.usefixtures("_stand_in")
class TestACampaign:
    @pytest.fixture
    def file(self) -> Path:
        path = Path("small.toml")
        path.write_text('[[points]]\nsource = "stand-in"\nsettings = { do = ["sleep", "print", "bug"] }\n')
        return path

    def test_it_goes_on_where_it_was(self, file: Path) -> None:
        first = call("--campaign", file, "--device", "cpu", "--out", "r.jsonl")
        assert first.exit_code == 0, "points that fail do not fail the campaign"
        assert "small: 2 measured, 1 error in" in first.stdout
        assert "[3/3]" in first.stderr
        again = call("--campaign", file, "--device", "cpu", "--out", "r.jsonl", "--json")
        summary = json.loads(again.stdout)
        assert (summary["skipped"], summary["outcomes"]) == (2, {"error": 1})
        assert [record.step.outcome for record in RecordFile("r.jsonl").records()] == ["ok", "ok", "error", "error"]
        assert not Path("r.jsonl.claims").exists()

    def test_a_person_sees_a_bar(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class Terminal(io.StringIO):
            def isatty(self) -> bool:
                return True

        screen = Terminal()
        monkeypatch.setattr(sys, "stderr", screen)
        with progress_bar() as tell:
            tell(Progress(done=1, total=4, failed=0, running=1, seconds_left=None, event="tiny batch=2 on cpu"))
            tell(Progress(done=2, total=4, failed=1, running=1, seconds_left=90, event="tiny batch=4: error: why"))
        seen = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", screen.getvalue())
        assert "2/4 · 1 failed · 1.5 min left · tiny batch=4: error: why" in seen
        assert any(line.strip() == "tiny batch=4: error: why" for line in seen.replace("\r", "\n").split("\n"))

    def test_points_without_a_device_are_left(self) -> None:
        Path("far.toml").write_text('[[points]]\nsource = "stand-in"\ndevice = "h200"\n')
        result = call("--campaign", "far.toml", "--device", "cpu")
        assert result.exit_code == 3
        assert "1 left" in result.stdout
        assert "1 points were not measured: no device here is 'h200'" in result.stderr


@pytest.mark.nightly
def test_ranks_under_torchrun(tmp_path: Path) -> None:
    """Two ranks of this host, over gloo."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "29571",
               "-m", "foretell.cli", "measure", f"{SMALL}:perceptron", "--backend", "gloo", "--plan", "dp=2",
               "--seconds", "0.05", "--out", "r.jsonl"]  # fmt: skip
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False,
                           env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "110"})  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert "dp=2 over gloo" in ended.stdout
    assert ended.stdout.count("MEASURED") == 1, "rank 0 alone speaks"
    kept = [record.step for record in RecordFile(tmp_path / "r.jsonl").records()]
    assert [(row.rank, row.world_size, row.plan) for row in kept] == [(0, 2, "dp=2"), (1, 2, "dp=2")]
    assert sorted(path.name for path in tmp_path.glob("r*")) == ["r.jsonl"]


def drawn(what: Any, width: int = 120) -> str:
    console = Console(width=width, color_system=None)
    with console.capture() as text:
        console.print(what)
    return text.get()


def gpu_step(**changed: object) -> StepRow:
    """As the instrument tells of a GPU; made up."""
    return step(1, **({
        "workload": "resnet18", "step_low": 0.0019, "step_high": 0.0022, "forward_seconds": 0.0007,
        "backward_seconds": 0.001, "optimizer_seconds": 0.0003, "device_seconds": 0.0008, "host_seconds": 0.0017,
        "issue_seconds": 0.0018, "bound": "host", "kernels": 312, "peak_reserved": 2**31, "resting_allocated": 2**28,
        "used_outside": 2**29, "device_idle_seconds": 0.0012, "device_active_seconds": 0.0008, "device_peak": 0.9,
        "memory_bandwidth_idle_seconds": 0.0015, "memory_bandwidth_active_seconds": 0.0005,
        "memory_bandwidth_peak": 0.4, "power_watts": 431.0, "energy_joules": 0.86, "sm_clock_hz": 1.98e9,
        "device_name": "NVIDIA H200", "temperature_celsius": 54.0, "driver": "580.1",
    } | changed))  # fmt: skip


class TestWhatIsShown:
    def test_a_gpu(self) -> None:
        kernel = "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::X<float>>(int)"
        op = OpRow(op=0, target="aten._foreach_add_.Scalar", phase="optimizer", device_seconds=1e-5,
                   dispatch_seconds=2e-5, issue_seconds=2e-5, kernels=(kernel, "sm90_xmma_gemm"),
                   kernel_seconds=(6e-6, 4e-6))  # fmt: skip
        series = tuple(SeriesRow(resource=resource, counter=counter, unit="fraction", seconds=(0.0,), values=(1.0,))
                       for resource, counter in (("device", "kernel trace"), ("memory_bandwidth", "traffic"),
                                                 ("memory_bandwidth", "NVML")))  # fmt: skip
        message = drawn(measured(Record(step=gpu_step(), ops=(op,), series=series)))
        for words in (
            "2 ms (1.9 ms – 2.2 ms: p10 – p90 of 10 repetitions)",
            "the host: the device waits for it 60 % of the step",
            "800 µs busy · 1.2 ms idle · 312 kernels",
            "1.7 ms to issue the step",
            "1 GiB allocated at the peak · 2 GiB reserved · 256 MiB between steps · 512 MiB outside the allocator",
            "431 W · 0.86 J per step",
            "_foreach_add_ ",
            "multi_tensor_apply_kernel, sm90_xmma_gemm",
            "NVIDIA H200 at 1,980 MHz, 54 °C",
            "driver 580.1",
        ):
            assert words in message, message
        assert "memory bandwidth 1.5 ms 500 µs 40 % traffic" in " ".join(message.split())

    def test_marks_are_seen(self) -> None:
        message = drawn(measured(Record(step=gpu_step(marks=("throttled: power cap",)))))
        assert "Mark" in message
        assert "throttled: power cap" in message

    def test_a_failed_step(self) -> None:
        row = step(1, outcome="out-of-memory", step_seconds=None, error="CUDA out of memory. Tried to allocate 2 GiB")
        message = drawn(measured(Record(step=row)))
        assert "OUT OF MEMORY" in message
        assert "Tried to allocate 2 GiB" in message

    def test_beside_its_forecast(self) -> None:
        [graph, *_] = (r.graph for r in RecordFile(ROOT / "examples/measurements.jsonl.gz").records() if r.graph)
        said_before = forecast(Graph.from_bytes(graph.file, name=graph.name), on="h200")
        message = drawn(measured(Record(step=gpu_step()), forecast=said_before))
        assert measured_dict(Record(step=gpu_step()), said_before)["forecast"]["cluster"] == "h200"
        for words in ("Forecast and measured", "memory, allocated", "error", "−"):
            assert words in message

    def test_ranks(self) -> None:
        rows = [
            gpu_step(rank=n, world_size=2, plan="dp=2", backend="nccl", step_seconds=0.002 + n / 1000) for n in (0, 1)
        ]
        message = drawn(measured_ranks([Record(step=row) for row in rows]))
        assert "dp=2 over nccl" in message
        assert "3 ms" in message

    @pytest.mark.parametrize("width", [60, 80, 200])
    def test_any_width(self, width: int) -> None:
        message = drawn(measured(Record(step=gpu_step())), width)
        assert max(map(len, message.splitlines())) <= width
