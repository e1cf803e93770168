"""`foretell store`: what each verb prints, writes and refuses."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from foretell import cli
from foretell.measure.record import Record
from foretell.store.lines import RecordFile
from foretell.store.store import Store
from tests.measure.examples import record, step
from tests.store.test_importers import SAMPLES


@pytest.fixture
def at(tmp_path: Path) -> Path:
    """A store with three measured steps and one that failed."""
    path = tmp_path / "store"
    store = Store(path)
    store.append([record(1), record(2, marks=("throttled",)), record(3, device="", device_name="Odd GPU")])
    store.append([Record(step=step(4, outcome="out-of-memory", step_seconds=None, error="CUDA out of memory"))])
    return path


def call(at: Path, *arguments: object) -> Result:
    command = ["store", *map(str, arguments), "--store", str(at)]
    return CliRunner().invoke(cli.app, command, env={"COLUMNS": "100"})


def good(at: Path, *arguments: object) -> str:
    result = call(at, *arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


class TestLs:
    def test_what_is_there(self, at: Path) -> None:
        message = good(at, "ls")
        for words in ("4 steps, 9 ops", "h200", "Odd GPU", "ok 3", "out-of-memory 1", "throttled 1", "timm/resnet18 4"):
            assert words in message

    def test_as_json(self, at: Path) -> None:
        facts = json.loads(good(at, "ls", "--json"))
        assert facts["rows"] == {"steps": 4, "ops": 9, "graphs": 3, "series": 3, "allocations": 3}
        assert facts["devices"][0] | {"device": "h200", "steps": 3, "ok": 2, "architectures": 1} == facts["devices"][0]
        assert facts["outcomes"] == {"ok": 3, "out-of-memory": 1}
        assert facts["marks"] == {"throttled": 1}
        assert facts["damaged"] == {}

    def test_damage_is_reported(self, at: Path) -> None:
        [path, *_] = sorted((at / "v1" / "ops").iterdir())
        path.write_bytes(b"PAR1")
        result = call(at, "ls")
        assert result.exit_code == 0
        assert str(path) in result.stderr.replace("\n", "")
        assert str(path) in json.loads(good(at, "ls", "--json"))["damaged"]

    def test_no_store(self, tmp_path: Path) -> None:
        for verb in (("ls",), ("show", "x"), ("merge",), ("export", "x.csv")):
            result = call(tmp_path / "nosuch", *verb)
            assert result.exit_code == 2
            assert "there is no store at" in result.stderr
            assert not (tmp_path / "nosuch").exists()

    def test_a_newer_store(self, tmp_path: Path) -> None:
        (tmp_path / "v9").mkdir()
        result = call(tmp_path, "ls")
        assert result.exit_code == 2
        assert "has version 9" in result.stderr

    def test_the_environment_names_it(self, at: Path) -> None:
        result = CliRunner().invoke(cli.app, ["store", "ls", "--json"], env={"FORETELL_STORE": str(at)})
        assert json.loads(result.stdout)["rows"]["steps"] == 4


class TestShow:
    def test_one_step(self, at: Path) -> None:
        id = record(2, marks=("throttled",)).step.id
        message = good(at, "show", id[:8])
        for words in (
            id,
            "timm/resnet18",
            "MEASURED",
            "throttled",
            "3 ms",
            "1 GiB allocated at the peak",
            "op0",
            "nvml",
        ):
            assert words in message
        shown = json.loads(good(at, "show", id, "--json", "--top", "2"))
        assert shown["step"]["step_seconds"] == 0.003
        assert [op["op"] for op in shown["top_ops"]] == [2, 1]
        assert shown["ops"] == 3

    def test_a_failed_step(self, at: Path) -> None:
        id = step(4, outcome="out-of-memory", step_seconds=None, error="CUDA out of memory").id
        message = good(at, "show", id)
        assert "OUT OF MEMORY" in message
        assert "CUDA out of memory" in message

    def test_any_question(self, at: Path) -> None:
        question = "SELECT outcome, count(*) AS n FROM steps GROUP BY ALL ORDER BY n"
        assert "out-of-memory  1" in good(at, "show", "--sql", question)
        rows = json.loads(good(at, "show", "--sql", question, "--json"))
        assert rows == [{"outcome": "out-of-memory", "n": 1}, {"outcome": "ok", "n": 3}]

    def test_odd_values_are_json(self, at: Path) -> None:
        question = (
            "SELECT 'nan'::DOUBLE AS a, '\\x00'::BLOB AS b, DATE '2026-01-02' AS c, 1.5::DECIMAL(4, 2) AS d, [1] AS e"
        )
        [row] = json.loads(good(at, "show", "--sql", question, "--json"))
        assert row == {"a": None, "b": "AA==", "c": "2026-01-02", "d": 1.5, "e": [1]}

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ((), "takes the ID of a step, or --sql"),
            (("abc", "--sql", "SELECT 1"), "takes the ID of a step, or --sql"),
            (("zzzz",), "'zzzz' begins the id of no step"),
            (("' OR 1",), "is not the id of a step"),
            (("--sql", "SELECT nosuch FROM steps"), "nosuch"),
            (("--sql", "SELEC"), "the store cannot answer"),
        ],
    )
    def test_slips(self, at: Path, arguments: tuple[str, ...], message: str) -> None:
        result = call(at, "show", *arguments)
        assert result.exit_code == 2
        assert message in result.stderr

    def test_an_id_that_is_too_short(self, tmp_path: Path) -> None:
        Store(tmp_path).append(record(n) for n in range(40))
        first = next(c for c in "0123456789abcdef" if sum(record(n).step.id[0] == c for n in range(40)) > 1)
        assert "Give more of it" in call(tmp_path, "show", first).stderr


def test_merge(at: Path, tmp_path: Path) -> None:
    Store(tmp_path / "other").append([record(1), record(9)])
    assert "1 step taken in. " in good(at, "merge", tmp_path / "other")
    done = json.loads(good(at, "merge", "--json"))
    assert done["segments_after"] == 5
    assert "0 steps of another store, there already" in good(at, "import", tmp_path / "other")
    assert call(at, "merge", tmp_path / "nosuch").exit_code == 2


def test_merge_into_a_new_store(at: Path, tmp_path: Path) -> None:
    good(tmp_path / "new", "merge", at)
    assert len(list(Store(tmp_path / "new").records())) == 4


class TestExportAndImport:
    @pytest.mark.parametrize("name", ["out.jsonl", "out.jsonl.gz"])
    def test_records_travel(self, at: Path, tmp_path: Path, name: str) -> None:
        good(at, "export", tmp_path / name)
        message = good(tmp_path / "new", "import", tmp_path / name)
        assert f"{name}: 4 records" in message
        assert {r.step.id: r for r in Store(tmp_path / "new").records()} == {r.step.id: r for r in Store(at).records()}
        assert "there already" in good(tmp_path / "new", "import", tmp_path / name)

    def test_some_records(self, at: Path, tmp_path: Path) -> None:
        good(at, "export", tmp_path / "ok.jsonl", "--where", "outcome = 'ok' AND len(marks) = 0")
        assert len(list(RecordFile(tmp_path / "ok.jsonl").records())) == 2

    def test_a_table(self, at: Path, tmp_path: Path) -> None:
        good(at, "export", tmp_path / "steps.csv", "--where", "outcome = 'ok'")
        assert len((tmp_path / "steps.csv").read_text().splitlines()) == 4
        good(at, "export", tmp_path / "out.parquet", "--sql", "SELECT target, device_seconds FROM ops;")
        import pyarrow.parquet

        assert pyarrow.parquet.read_table(tmp_path / "out.parquet").shape == (9, 2)

    def test_every_table(self, at: Path, tmp_path: Path) -> None:
        written = json.loads(good(at, "export", tmp_path / "all", "--json", "--where", "'throttled' IN marks"))
        assert written | {"steps": 1, "ops": 3, "graphs": 1, "series": 1, "allocations": 1} == written
        assert sorted(path.name for path in (tmp_path / "all").iterdir()) == [
            "allocations.parquet", "graphs.parquet", "ops.parquet", "series.parquet", "steps.parquet",
        ]  # fmt: skip

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("out.xlsx",), "has an ending we do not write"),
            (("out.csv.gz",), "has an ending we do not write"),
            (("out.jsonl", "--sql", "SELECT 1"), "--sql writes one table"),
            (("out.csv", "--where", "nosuch = 1"), "nosuch"),
            (("/dev/null/x/out.csv",), "cannot be written"),
            (("/dev/null/folder",), "cannot be written"),
        ],
    )
    def test_slips(self, at: Path, tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
        name, *rest = arguments
        result = call(at, "export", tmp_path / name, *rest)
        assert result.exit_code == 2, result.output
        assert message in result.stderr
        assert list(tmp_path.iterdir()) == [at]

    def test_broken_lines_are_reported_by_number(self, tmp_path: Path) -> None:
        lines = [record(1).to_line(), "nonsense", record(2).to_line(), record(3).to_line()[:50]]
        (tmp_path / "r.jsonl").write_text("\n".join(lines))
        result = call(tmp_path / "new", "import", tmp_path / "r.jsonl")
        assert result.exit_code == 0
        assert "2 records, 2 lines left out" in result.stdout
        assert "line 2 is left out" in result.stderr
        assert "line 4 is left out" in result.stderr

    def test_a_wrong_value_is_named_and_the_rest_is_kept(self, tmp_path: Path) -> None:
        wrong = json.loads(record(2).to_line())
        wrong["step"]["step_seconds"] = "fast"
        (tmp_path / "r.jsonl").write_text("\n".join([record(1).to_line(), json.dumps(wrong), record(3).to_line()]))
        result = call(tmp_path / "new", "import", tmp_path / "r.jsonl", "--json")
        assert result.exit_code == 0
        [done] = json.loads(result.stdout)
        assert (done["rows"], done["new"], done["broken_lines"]) == (2, 2, [2])
        assert "line 2 is left out: step_seconds must be a number, got 'fast'" in " ".join(result.stderr.split())

    def test_a_file_without_a_record(self, tmp_path: Path) -> None:
        (tmp_path / "r.jsonl").write_text("nonsense\n" * 50)
        result = call(tmp_path / "new", "import", tmp_path / "r.jsonl")
        assert result.exit_code == 2
        assert "has no record: line 1 is left out" in " ".join(result.stderr.split())
        assert "30 more lines are left out" in " ".join(result.stderr.split())

    @pytest.mark.parametrize("verb", [("ls",), ("merge",), ("import", "r.jsonl"), ("show", "x")])
    @pytest.mark.parametrize("place", ["/dev/null", "/dev/null/x"])
    def test_a_store_that_cannot_be_there(
        self, verb: tuple[str, ...], place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "r.jsonl").write_text(record(1).to_line())
        result = call(Path(place), *verb)
        assert result.exit_code == 2, result.output
        assert "error: " in result.stderr

    def test_public_files(self, tmp_path: Path) -> None:
        (tmp_path / "a.csv").write_text(SAMPLES["gemm"][0])
        (tmp_path / "b.csv.gz").write_bytes(gzip.compress(SAMPLES["ddp_step_times"][0].encode()))
        message = good(tmp_path / "new", "import", tmp_path / "a.csv", tmp_path / "b.csv.gz")
        assert "1 rows of public_gemm" in message
        assert "2 rows of public_ddp_step_times (evaluation only)" in message
        facts = json.loads(good(tmp_path / "new", "ls", "--json"))
        assert [table["table"] for table in facts["public"]] == ["public_ddp_step_times", "public_gemm"]
        assert "evaluation only" in good(tmp_path / "new", "ls")

    def test_one_bad_file_does_not_stop_the_rest(self, tmp_path: Path) -> None:
        (tmp_path / "a.csv").write_text("what,is,this\n")
        (tmp_path / "b.csv").write_text(SAMPLES["gemm"][0])
        result = call(tmp_path / "new", "import", tmp_path / "a.csv", tmp_path / "x.txt", tmp_path / "b.csv")
        assert result.exit_code == 2
        assert "no public file we know" in result.stderr
        assert "2 of 3 files could not be imported" in result.stderr
        assert "1 rows of public_gemm" in result.stdout

    def test_nothing_we_import(self, tmp_path: Path) -> None:
        result = call(tmp_path / "new", "import", tmp_path / "x.txt")
        assert result.exit_code == 2
        assert "is nothing we import" in result.stderr
