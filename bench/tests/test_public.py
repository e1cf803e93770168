"""`foretell bench scripts public`: checkouts made here, examined through the real command line."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from foretell_bench.cli import app
from foretell_bench.studies.scripts import outcomes, public, public_list, public_page
from typer.testing import CliRunner

import foretell

TRAINS = """
import sys, torch
model = torch.nn.Linear(int(sys.argv[1]), 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(100):
    model(torch.randn(8, int(sys.argv[1])).cuda()).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
BREAKS = (
    "import foretell\nraise RuntimeError(__file__ + ' of ' + foretell.__file__ + ' wants no_such_library_anywhere')\n"
)


@pytest.fixture(scope="module")
def checkouts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder of checkouts with one repository of three scripts, and its commit."""
    folder = tmp_path_factory.mktemp("checkouts")
    root = folder / "someone+project"
    (root / "scripts").mkdir(parents=True)
    (root / "scripts" / "train.py").write_text(TRAINS)
    (root / "broken.py").write_text(BREAKS)
    (root / "slow.py").write_text("import time\ntime.sleep(600)\n")
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "."], [*who, "commit", "-q", "-m", "all"]):
        subprocess.run(["git", "-C", str(root), *command], check=True)
    head = subprocess.run(["git", "-C", str(root), "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    return folder, head.stdout.strip()


def one(commit: str, script: str, **facts: object) -> public_list.PublicScript:
    given = {"repository": "someone/project", "commit": commit, "on": "h100-sxm", "drawn": 1, **facts}
    return public_list.PublicScript(script=script, **given)  # type: ignore[arg-type]


def test_scripts_are_run_as_a_user_would_and_compared(checkouts: tuple[Path, str], tmp_path: Path) -> None:
    folder, commit = checkouts
    right = one(commit, "train.py", folder="scripts", arguments=("16",), parameters=68, batch=8, precision="torch-fp32")
    wrong = one(commit, "train.py", folder="scripts", arguments=("32",), parameters=68)
    missing = one("0" * 40, "train.py", arguments=("1",))
    out = tmp_path / "out.json"
    exam = public.Examination(checkouts=folder)
    results = exam.run([right, wrong, missing], out)
    assert results[right.name]["outcome"] == "right"
    assert results[right.name]["cpu_seconds"] > 0
    assert results[wrong.name]["outcome"] == "wrong"
    assert results[wrong.name]["differs"] == {"parameters": [132, 68]}
    assert missing.name not in results  # another commit is checked out
    before = out.read_bytes()
    assert exam.run([right, wrong, missing], out) == results  # nothing is run again
    assert out.read_bytes() == before
    by_set = public.sets(results, {right.name: results[right.name]}, [right, wrong, missing])
    text = public.show(by_set)
    assert "first drawn: 2 scripts of 1 repositories, 2 forecasts (100%); 1 of 2 checked are right (50%)" in text
    assert "open: 1 scripts of 1 repositories" in text  # a drawn one that was run again
    public_page.write_page(tmp_path / "page.md", by_set, public_list.left_out())
    page = (tmp_path / "page.md").read_text()
    assert "someone/project: scripts/train.py | parameters | 132 | 68 |" in page
    assert "| | first drawn | open |" in page


def test_a_script_that_fails_keeps_its_message_and_one_that_hangs_is_ended(checkouts: tuple[Path, str]) -> None:
    folder, commit = checkouts
    found = public.Examination(checkouts=folder).result(one(commit, "broken.py"))
    assert found["outcome"] in ("clear refusal", "bad failure")
    assert "no_such_library_anywhere" in found["message"]
    assert str(Path(foretell.__file__).parents[2]) not in found["message"]
    assert str(folder) not in json.dumps(found)  # results are published
    late = public.Examination(checkouts=folder, limit=0.5).result(one(commit, "slow.py"))
    assert late["outcome"] == "bad failure"
    assert "no answer in 0.5 s" in late["message"]


def test_a_command_line_is_what_a_user_types() -> None:
    exam = public.Examination(checkouts=Path("x"), python=Path("/python"))
    typed = exam.command(one("c", "train.py", arguments=("--lr", "1")))
    assert typed == [
        "/python", "-m", "foretell.cli", "predict", "train.py", "--on", "h100-sxm", "--fake-data", "--json", "--no-cache",
        "--", "--lr", "1",
    ]  # fmt: skip
    line = "torchrun --nproc-per-node 8 -m pkg.train"
    assert exam.command(one("c", "", launch=line))[4:6] == ["--launch", line]


@pytest.mark.parametrize(
    ("message", "clear"),
    [
        ("error: line 3 of train.py reads a.bin, which is not there. Put it there, or give --data FOLDER.", True),
        ("error: line 3 of a.py asks for a connection. What was downloaded is read: run that line once.", True),
        ("error: train.py:12 needs lmdb. Install it: pip install lmdb", True),
        ("error: it failed with KeyError: 'image'. --debug shows the whole traceback.", False),
        ("error: line 3 of train.py failed. --debug shows the whole traceback.", False),
        ("error: this is a bug in Foretell (KeyError, line 3). Set FORETELL_DEBUG.", False),
        ("error: line 3 of train.py failed.\nIt printed:\nUse --lr 1.", False),
        ("error: KeyError\nIn your code:\n  line 3\n    # Use --lr 1\n--debug shows the whole traceback.", False),
        ("error: a.py has made no update of its parameters in 270 s. Line 3 is being run. Give it less data.", False),
        ("", False),
    ],
)
def test_a_refusal_is_clear_with_a_line_a_cause_and_a_way_out(message: str, clear: bool) -> None:
    script = one("c", "train.py")
    assert outcomes.is_clear(message) is clear
    assert outcomes.outcome_of(script, 1, "", message)["outcome"] == "bad failure"
    assert outcomes.outcome_of(script, 2, "", message)["outcome"] == ("clear refusal" if clear else "bad failure")
    assert outcomes.outcome_of(script, 0, "no json", message)["outcome"] == "bad failure"


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("error: line 3 of a.py failed with KeyError. That may come from what Foretell stood in for (x.csv), not from the script. Put "
         "a small one there.", "stand-in failed"),
        ("error: Foretell's stand-in for x.npz (numbers) has no array called 'y' (line 3 of a.py). Put one there.", "stand-in failed"),
        ("error: line 3 of a.py failed. That line is the script's own: it fails so on any machine with torch 2.13. Mend it.",
         "clear refusal"),
        ("error: line 3 of a.py imports sh, which is not installed. pip install sh\nIt printed:\nForetell's stand-in for x has no y",
         "clear refusal"),
        ("error: That may come from what Foretell stood in for (x.csv).", "bad failure"),
    ],
)  # fmt: skip
def test_a_refusal_that_blames_a_stand_in_is_counted_as_ours(message: str, kind: str) -> None:
    found = outcomes.outcome_of(one("c", "train.py"), 2, "", message)
    assert found["outcome"] == kind
    assert public.judged_anew({"a": {**found, "outcome": "clear refusal"}})["a"]["outcome"] == kind


def test_work_of_a_child_that_nobody_waits_for_is_counted(checkouts: tuple[Path, str]) -> None:
    child = "import time\nwhile time.process_time() < 1.5: pass"
    parent = f"import os, subprocess, sys, time\np = subprocess.Popen([sys.executable, '-c', {child!r}])\n"
    parent += "while p.poll() is None: time.sleep(0.1)\n"
    unwaited = parent.replace(
        "while p.poll() is None: time.sleep(0.1)",
        "time.sleep(0.5)\nos.waitid(os.P_PID, p.pid, os.WEXITED | os.WNOWAIT)",
    )
    with subprocess.Popen([sys.executable, "-c", unwaited], start_new_session=True) as running:
        code, worked = public._end_of(running, 60)
    assert code == 0
    assert worked > 1


def test_the_list_is_whole() -> None:
    listed = public_list.scripts()
    assert len({script.name for script in listed}) == len(listed) >= 80
    assert sum(script.drawn == 1 for script in listed) >= 40
    assert sum(script.drawn == 2 for script in listed) >= 48
    assert sum(script.drawn == 4 for script in listed) >= 40
    assert sum(script.checked for script in listed) >= 30
    for script in listed:
        assert len(script.commit) == 40
        assert bool(script.script) != bool(script.launch), script.name
    assert not {(one.repository, one.drawn) for one in public_list.left_out()} & {
        (s.repository, s.drawn) for s in listed
    }


def test_results_are_shown_without_checkouts(tmp_path: Path) -> None:
    script = public_list.scripts()[0]
    found = {"outcome": "unchecked", "repository": script.repository, "cpu_seconds": 3.0, "parameters": 5}
    public.write_results(tmp_path / "out.json", {script.name: found})
    ran = CliRunner().invoke(
        app, ["scripts", "public", "--out", str(tmp_path / "out.json"), "--later", str(tmp_path / "no.json")]
    )
    assert ran.exit_code == 0, ran.output
    assert "1 forecasts (100%)" in ran.output
    assert json.loads((tmp_path / "out.json").read_text())["scripts"] == {script.name: found}
    assert sys.executable == public.Examination(checkouts=Path("x")).command(script)[0]
