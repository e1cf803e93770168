"""The command line: what it prints where, its exit codes, and how fast it starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner, Result

import foretell
from foretell import cli
from foretell.errors import CaptureError, WorkloadError
from foretell.forecasting.result import Forecast
from foretell.graph import Graph
from foretell.units import GIB
from tests.report.examples import small_forecast, small_graph

SMALL_DEVICE = "2xl4"


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "foretell.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, **environment},
    )


def call(*arguments: str) -> Result:
    """In this process, which is quick; colours and width are those of a pipe."""
    return CliRunner().invoke(cli.app, arguments, env={"COLUMNS": "100"})


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """SOURCE is always the small transformer; the device called SMALL_DEVICE is too small for it."""

    def forecast(graph: Graph, on: object, **asked: object) -> Forecast:
        return small_forecast(cluster=str(on), capacity=GIB if str(on) == SMALL_DEVICE else 80 * GIB)

    monkeypatch.setattr(foretell, "capture_graph", lambda *args, **kwargs: small_graph()[0])
    monkeypatch.setattr(foretell, "forecast", forecast)


def test_help_starts_light() -> None:
    heavy = ("torch", "numpy", "rich.console", "foretell.graph", "foretell.hardware")
    check = f"import sys, foretell.cli; print([m for m in {heavy!r} if m in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=60, check=True)
    assert loaded.stdout.strip() == "[]"
    helped = run("--help")
    assert helped.returncode == 0
    for verb in ("predict", "inspect", "devices"):
        assert verb in helped.stdout


def test_version() -> None:
    assert run("--version").stdout == f"foretell {foretell.__version__}\n"


@pytest.mark.parametrize("arguments", [(), ("predict",), ("predict", "x"), ("nosuchverb",), ("devices", "--nosuch"),
                                       ("predict", "x.py", "--on", "h200", "--headroom", "0.1")])  # fmt: skip
def test_wrong_use_is_bad_input(arguments: tuple[str, ...]) -> None:
    assert call(*arguments).exit_code == 2


def test_bench_that_is_not_installed_says_what_to_install() -> None:
    without = (
        "import importlib.metadata as m, sys; m.entry_points = lambda **_: (); from foretell.cli import main; main()"
    )
    ended = subprocess.run(
        [sys.executable, "-c", without, "bench", "accuracy", "--json"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 2
    assert "pip install foretell-bench" in ended.stderr


@pytest.mark.parametrize("first", ["foretell.cli", "other.cli"])
def test_verbs_of_other_distributions_load_when_they_are_asked_for(first: str, tmp_path: Path) -> None:
    """They import our command line, so ours cannot load them while it is being imported."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other/cli.py").write_text(
        "import typer, foretell.cli.terminal\napp = typer.Typer(name='other')\n"
        "@app.callback()\ndef _other(): 'Something else.'\n@app.command()\ndef go(): print('gone')\n"
    )
    script = f"""
import importlib.metadata as m, sys
found = m.EntryPoint(name="other", value="other.cli:app", group="foretell.commands")
m.entry_points = lambda group: [found]
import {first}
from foretell.cli import main
assert "{first}" == "other.cli" or "other.cli" not in sys.modules
main()
"""
    ended = [
        subprocess.run(
            [sys.executable, "-c", script, *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        )
        for arguments in (("other", "go"), ("--help",))
    ]
    assert ended[0].stdout == "gone\n", ended[0].stderr
    assert "Something else." in ended[1].stdout


@pytest.mark.usefixtures("captured")
class TestPredict:
    def test_one_cluster_is_a_panel(self) -> None:
        result = call("predict", "x", "--on", "8xh100-sxm")
        assert result.exit_code == 0
        assert "FITS" in result.stdout
        assert "Where the step goes" in result.stdout

    def test_several_clusters_are_one_table(self) -> None:
        result = call("predict", "x", "--on", "h200", "--on", SMALL_DEVICE)
        assert result.exit_code == 0
        assert "on 2 clusters" in result.stdout

    def test_json_is_the_forecast_and_nothing_else(self, tmp_path: Path) -> None:
        result = call("predict", "x", "--on", "h200", "--json", "--html", str(tmp_path / "r.html"))
        assert result.stdout == small_forecast(cluster="h200").to_json() + "\n"
        assert "Report written" in result.stderr

    def test_json_of_several_is_an_array(self) -> None:
        answers = json.loads(call("predict", "x", "--on", "h200", "--on", "l4", "--json").stdout)
        assert [a["cluster"] for a in answers] == ["h200", "l4"]

    def test_require_fit_prints_and_exits_3(self) -> None:
        result = call("predict", "x", "--on", "h200", "--on", SMALL_DEVICE, "--json", "--require-fit")
        assert result.exit_code == 3
        assert len(json.loads(result.stdout)) == 2
        assert f"does not fit on {SMALL_DEVICE}" in result.stderr
        assert call("predict", "x", "--on", "h200", "--require-fit").exit_code == 0

    def test_files_are_written(self, tmp_path: Path) -> None:
        page, trace = tmp_path / "r.html", tmp_path / "t.json"
        assert call("predict", "x", "--on", "h200", "--html", str(page), "--trace", str(trace)).exit_code == 0
        assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
        assert json.loads(trace.read_text())["traceEvents"]

    @pytest.mark.parametrize("option", ["--html", "--trace"])
    def test_a_file_that_cannot_be_written_is_bad_input(self, option: str, tmp_path: Path) -> None:
        result = call("predict", "x", "--on", "h200", option, str(tmp_path / "missing" / "file"))
        assert result.exit_code == 2
        assert "cannot be written" in result.stderr

    def test_trace_takes_one_cluster(self) -> None:
        result = call("predict", "x", "--on", "h200", "--on", "l4", "--trace", "t.json")
        assert result.exit_code == 2
        assert "one --on" in result.stderr

    @pytest.mark.parametrize("settings", [("batch",), ("=3",), ("batch=1", "batch=2")])
    def test_settings_are_checked(self, settings: tuple[str, ...]) -> None:
        result = call("predict", "x", "--on", "h200", *(part for s in settings for part in ("--set", s)))
        assert result.exit_code == 2
        assert "--set" in result.stderr

    def test_an_unknown_model_is_bad_input(self) -> None:
        result = call("predict", "x", "--on", "h200", "--model", "h200-2026.1")
        assert result.exit_code == 2
        assert "Did you mean 'h200-2026.11'" in result.stderr
        assert "foretell fit" in result.stderr

    def test_fit_batch_shows_the_batch_and_captures_again_when_asked(self, monkeypatch: pytest.MonkeyPatch) -> None:
        asked: list[object] = []

        def fit_batch(source: str, on: str, *, cache: bool, **rest: object) -> foretell.BatchFit:
            asked.append(cache)
            return foretell.BatchFit(batch=512, forecast=small_forecast(cluster=on))

        monkeypatch.setattr(foretell, "fit_batch", fit_batch)
        assert "512, the largest that fits" in call("predict", "x", "--on", "h200", "--fit-batch").stdout
        again = call("predict", "x", "--on", "h200", "--fit-batch", "--json", "--no-cache")
        assert json.loads(again.stdout)["batch"] == 512
        assert asked == [True, False]

    def test_options_are_grouped_in_the_help(self) -> None:
        text = call("predict", "--help").stdout
        titles = ("What runs, and where:", "Output:", "Around the step:", "A whole job:", "Model and cache:")
        places = [text.index(title) for title in titles]
        assert places == sorted(places)
        assert text.index("A whole job:") < text.index("--job-tokens") < text.index("Model and cache:")
        assert "--samples" not in text

    def test_old_names_still_work_with_a_notice(self, monkeypatch: pytest.MonkeyPatch) -> None:
        jobs: list[foretell.JobLength] = []

        def forecast(graph: Graph, on: str, *, job: foretell.JobLength, **asked: object) -> Forecast:
            jobs.append(job)
            return small_forecast(cluster=on)

        monkeypatch.setattr(foretell, "forecast", forecast)
        for given in (("--samples", "1e6"), ("--samples=1e6",), ("--job-samples", "1e6")):
            result = call("predict", "x", "--on", "h200", *given)
            assert result.exit_code == 0
            assert ("--samples is now called --job-samples" in result.stderr) == (given[0] != "--job-samples")
        assert [job.samples for job in jobs] == [1e6] * 3


@pytest.mark.usefixtures("captured")
class TestInspect:
    def test_shows_ops_modules_and_memory(self) -> None:
        text = call("inspect", "x", "--depth", "2", "--top", "3").stdout
        for expected in ("Top operators", "Modules", "Memory over the step"):
            assert expected in text

    def test_json(self) -> None:
        facts = json.loads(call("inspect", "x", "--json", "--top", "2").stdout)
        assert len(facts["top_operators"]) == 2

    def test_saved_graph_can_be_read_back(self, tmp_path: Path) -> None:
        path = tmp_path / "small.graph"
        assert call("inspect", "x", "--save", str(path)).exit_code == 0
        assert Graph.load(path).content_hash == small_graph()[0].content_hash

    def test_save_needs_the_ending(self, tmp_path: Path) -> None:
        result = call("inspect", "x", "--save", str(tmp_path / "small.zip"))
        assert result.exit_code == 2
        assert list(tmp_path.iterdir()) == []


class TestDevices:
    def test_filter_finds_by_name_and_title(self) -> None:
        assert "h100-sxm" in call("devices", "h100").stdout
        assert "t4" not in call("devices", "h100").stdout
        assert "rtx-4090" in call("devices", "geforce").stdout

    def test_vendor(self) -> None:
        names = {d["vendor"] for d in json.loads(call("devices", "--vendor", "amd", "--json").stdout)}
        assert names == {"AMD"}
        unknown = call("devices", "--vendor", "nope")
        assert unknown.exit_code == 2
        assert "nvidia" in unknown.stderr

    def test_links_and_instances(self) -> None:
        assert "inside a node" in call("devices", "nvlink", "--links").stdout
        assert "$" in call("devices", "aws", "--instances").stdout
        assert call("devices", "--links", "--instances").exit_code == 2
        assert call("devices", "--links", "--vendor", "amd").exit_code == 2

    def test_nothing_found_is_said(self) -> None:
        result = call("devices", "zzzz")
        assert result.exit_code == 0
        assert "Nothing in the catalog" in result.stderr

    @pytest.mark.parametrize("columns", ["80", "120"])
    def test_whole_catalog_fits_the_width(self, columns: str) -> None:
        text = run("devices", COLUMNS=columns).stdout
        assert "h200" in text
        assert "…" not in text
        assert max(map(len, text.splitlines())) <= int(columns)


class TestErrors:
    @pytest.mark.parametrize(
        ("options", "expected"),
        [(("--on", "h10o"), "Did you mean"), (("--on", "h200", "--plan", "pd=2"), "not a setting")],
    )
    def test_slips_are_told_before_anything_is_captured(
        self, options: tuple[str, ...], expected: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(foretell, "capture_graph", lambda *args, **kwargs: pytest.fail("captured first"))
        result = call("predict", "x", *options)
        assert result.exit_code == 2
        assert expected in result.stderr

    @pytest.fixture
    def failing(self, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
        failing = SimpleNamespace(error=ValueError("seven"))

        def capture(*args: object, **kwargs: object) -> Graph:
            raise failing.error

        monkeypatch.setattr(foretell, "capture_graph", capture)
        monkeypatch.delenv("FORETELL_DEBUG", raising=False)
        return failing

    @pytest.mark.parametrize(("error", "code"), [(WorkloadError("no [model]"), 2), (CaptureError("no [model]"), 1)])
    def test_our_errors_are_a_paragraph_and_a_code(self, failing: SimpleNamespace, error: Exception, code: int) -> None:
        failing.error = error
        result = call("predict", "x", "--on", "h200")
        assert result.exit_code == code
        assert result.stderr == "error: no [model]\n"
        assert result.stdout == ""

    def test_anything_else_is_a_bug(self, failing: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
        result = call("predict", "x", "--on", "h200")
        assert result.exit_code == 1
        assert "bug in Foretell (ValueError: seven)" in result.stderr
        assert "Traceback" not in result.stderr
        monkeypatch.setenv("FORETELL_DEBUG", "1")
        assert "Traceback" in call("predict", "x", "--on", "h200").stderr

    def test_debug_may_stand_anywhere_before_a_scripts_arguments(
        self, failing: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("FORETELL_DEBUG", "")  # so that it is put back
        assert "Traceback" not in call("predict", "x.py", "--on", "h200", "--", "--debug").stderr
        assert "Traceback" in call("predict", "x", "--on", "h200", "--debug").stderr

    def test_debug_shows_where_in_a_script_it_failed(self, tmp_path: Path) -> None:
        path = tmp_path / "train.py"
        path.write_text("def halve(x):\n    return 1 / x\n\nhalve(0)\n")
        failed = run("--debug", "predict", str(path), "--on", "h200")
        assert failed.returncode == 2
        assert 'train.py", line 2, in halve' in failed.stderr
        assert failed.stderr.index("train.py") < failed.stderr.index("foretell/capture")  # user frames first
        assert "The whole traceback" in failed.stderr

    def test_an_error_that_cannot_say_what_it_is(self, failing: SimpleNamespace) -> None:
        class Mute(Exception):
            def __str__(self) -> str:
                raise RuntimeError

        failing.error = Mute()
        assert "str() failed" in call("predict", "x", "--on", "h200").stderr

    @pytest.mark.parametrize("columns", ["0", "-1", "1", "many"])
    def test_errors_and_tables_are_seen_whatever_the_width(self, columns: str) -> None:
        for arguments, seen in ((("predict", "x", "--on", "nosuch"), "nosuch"), (("devices", "h200"), "141 GiB")):
            assert seen in CliRunner().invoke(cli.app, arguments, env={"COLUMNS": columns}).output

    def test_files_that_cannot_be_are_bad_input(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        long = "b" * 3000
        for arguments in (("predict", long, "--on", "h200"), ("predict", "x", "--on", long), ("store", "ls", "--store", long),
                          ("predict", "x", "--on", "+".join(["h200"] * 3000)), ("measure", "\ud800", "--device", "cpu"),
                          ("predict", "x", "--on", "h200", "--model", long), ("store", "merge", "--store", "/dev/null")):  # fmt: skip
            ended = call(*arguments)
            assert ended.exit_code == 2, arguments
            assert len(ended.stderr) < 1000

    def test_interrupt(self, failing: SimpleNamespace) -> None:
        failing.error = KeyboardInterrupt()
        assert call("predict", "x", "--on", "h200").exit_code == 130

    def test_reader_that_goes_away_is_no_error(self) -> None:
        command = f"{sys.executable} -m foretell.cli devices --json | true; echo ${{PIPESTATUS[0]}}"
        result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
        assert result.stderr == ""
        assert result.stdout.strip() in ("0", "141")  # 0 if all was written before the reader went

    @pytest.mark.parametrize(
        ("redirected", "code", "said"),
        [
            ("devices t4 >&-", 0, ""),
            ("predict x --on nosuch >&- 2>&-", 2, ""),
            ("devices t4 --json 1</dev/null", 141, ""),
            ("--help 1</dev/null", 141, ""),
            ("devices t4 >/dev/full", 2, "error: standard output cannot be written: No space left on device."),
        ],
    )
    def test_output_that_nobody_takes(self, redirected: str, code: int, said: str) -> None:
        command = f"{sys.executable} -m foretell.cli {redirected}"
        ended = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
        assert (ended.returncode, ended.stdout) == (code, "")
        assert ended.stderr.startswith(said) if said else not ended.stderr


NET = """
import foretell, torch

def net(batch: int = 4) -> foretell.Workload:
    return foretell.Workload(
        name="net",
        model=lambda: torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10)),
        batch=lambda: {"x": torch.randn(batch, 64), "y": torch.randint(10, (batch,))},
        loss=lambda model, b: torch.nn.functional.cross_entropy(model(b["x"]), b["y"]),
        optimizer=lambda params: torch.optim.AdamW(params),
    )
"""


class TestWholePath:
    """From a file of the user's to an answer, with nothing replaced."""

    @pytest.fixture(autouse=True)
    def _whole(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("FORETELL_CACHE", str(tmp_path / "cache"))
        monkeypatch.chdir(tmp_path)
        Path("net.py").write_text(NET)

    def test_source_to_graph_to_answer(self) -> None:
        inspected = run("inspect", "net.py:net", "--set", "batch=8", "--save", "net.graph", "--json")
        assert inspected.returncode == 0, inspected.stderr
        facts = json.loads(inspected.stdout)
        assert (facts["samples"], facts["workload"]) == (8, "net")
        predicted = run("predict", "net.graph", "--on", "h200", "--on", "8xh100-sxm", "--json", "--html", "net.html")
        assert predicted.returncode == 0, predicted.stderr
        answers = json.loads(predicted.stdout)
        assert [a["cluster"] for a in answers] == ["h200", "8xh100-sxm"]
        assert all(a["memory"]["fits"] and a["step_time"]["seconds"] > 0 for a in answers)
        assert "Fits" in Path("net.html").read_text(encoding="utf-8")
        ignored = call("predict", "net.graph", "--on", "h200", "--set", "batch=4096", "--set", "nonsense=1")
        assert ignored.exit_code == 2
        assert "net.graph is captured already" in ignored.stderr

    @pytest.mark.parametrize(
        ("arguments", "expected"),
        [
            (("nosuch.graph", "--on", "h200"), "nosuch.graph"),
            (("net.py:nosuch", "--on", "h200"), "nosuch"),
        ],
    )
    def test_bad_input_is_a_paragraph(self, arguments: tuple[str, ...], expected: str) -> None:
        result = run("predict", *arguments)
        assert result.returncode == 2
        assert result.stderr.startswith("error: ")
        assert expected in result.stderr
        assert "Traceback" not in result.stderr
        assert result.stdout == ""
