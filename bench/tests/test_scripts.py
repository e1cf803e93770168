"""`foretell bench scripts` on small data: a script measured in its own process, and the table of forecasts."""

import json
from pathlib import Path

import pytest
from foretell_bench.checkout import EXAMPLES
from foretell_bench.studies.scripts import coverage, forecasts, jobs, on_device, public_jobs, same_steps

SCRIPT = """
import torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(100):
    model(torch.randn(2, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_every_job_is_there() -> None:
    for script, _ in jobs.JOBS.values():
        assert (EXAMPLES / "scripts" / script).is_file()
    for example in coverage.EXAMPLE_JOBS.values():
        if example.archive is None and example.package is None:
            assert (EXAMPLES / example.path).is_file()


def test_a_script_is_followed_from_update_to_update(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    monkeypatch.setattr(on_device, "JOBS", {"linear": (str(script), []), "broken": ("no-such-script.py", [])})
    monkeypatch.setattr(on_device, "LIMIT", 600.0)  # a safety net: the machine may be busy
    monkeypatch.setattr(on_device, "make_data", lambda folder: None)
    on_device.run(tmp_path / "out.json", ["linear", "broken"])
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["linear"]["step"] > 0
    assert found["linear"]["wall"] > found["linear"]["step"]
    assert "no-such-script.py" in found["broken"]["error"]


def test_a_public_script_runs_in_its_checkout_with_the_data_it_looks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "someone+project" / "examples"
    folder.mkdir(parents=True)
    (folder / "train.py").write_text("import helper\nopen('data/train.bin', 'rb').read(8)\n" + SCRIPT)
    (tmp_path / "someone+project" / "helper.py").touch()
    job = public_jobs.PublicJob(
        repository="someone/project", commit="0" * 40, script="train.py", folder="examples", data={"data": "tokens"},
        warm_steps=2, measured_steps=3,
    )  # fmt: skip
    monkeypatch.setattr(on_device, "PUBLIC_JOBS", {"linear": job})
    monkeypatch.setattr(on_device, "_PUBLIC_LIMIT", 600.0)
    on_device.run_public(tmp_path / "out.json", tmp_path)
    assert json.loads((tmp_path / "out.json").read_text())["linear"]["step"] > 0


def test_forecasts_and_measurements_become_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured = {"step": 0.010, "allocated": 2**30, "reserved": 2**31}
    (tmp_path / "measured.json").write_text(json.dumps({"gan": measured, "clip": {"error": "late"}}))
    row = forecasts.Row(step=0.011, low=0.009, high=0.012, allocated=2**30, reserved=2**30, measured=measured)
    monkeypatch.setattr(forecasts, "predicted", lambda script, on, of, profile: row)
    forecasts.run(tmp_path / "measured.json", [], "h200", tmp_path / "out.json")
    shown = capsys.readouterr().out
    assert "| gan | 11.0 ms (9.0 – 12.0) | 10.0 ms | +10.0% | 1.00 GiB | 1.00 GiB | +0.0% |" in shown
    assert "reserved: 50.0% mean" in shown
    assert "Steps inside their interval: 1." in shown
    assert json.loads((tmp_path / "out.json").read_text())["gan"]["step"] == 0.011


@pytest.mark.slow
def test_a_script_and_a_workload_by_hand_are_the_same_step(capsys: pytest.CaptureFixture[str]) -> None:
    same_steps.run(["lstm"])
    assert "1 of 1 are the same" in capsys.readouterr().out
