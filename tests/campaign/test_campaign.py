"""Campaigns on this machine: real workers, real kills, real stores."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import pytest

from foretell.campaign.driver import CampaignStopped, Progress, Summary, run
from foretell.campaign.executor import Ended, LocalExecutor
from foretell.campaign.jobs import Campaign, Job
from foretell.campaign.worker import Place, Worker, WorkerDied, failure
from foretell.errors import InputError
from foretell.measure.record import Point, Record
from foretell.store.store import Store

ROOT = Path(__file__).parents[2]
STAND_IN = "tests.measure.stand_in"
PATIENCE = 300.0  # a safety net: everything here takes seconds, on a busy machine tens of them


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the stand-in writes what it did; locks of devices are the test's own too."""
    monkeypatch.setenv("STAND_IN_LOG", str(tmp_path / "log"))
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}:{ROOT}")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path / "log"


def point(**settings: object) -> Point:
    return Point(source="stand-in", settings={name: str(value) for name, value in settings.items()})


def points(count: int, **settings: object) -> list[Point]:
    return [point(number=n, **settings) for n in range(count)]


def measured(log: Path, what: str = "begin") -> Counter[str]:
    lines = log.read_text().splitlines() if log.exists() else []
    return Counter(line.split()[1] for line in lines if line.startswith(what))


def measure_all(
    jobs: Campaign | Sequence[Point], store: Path, devices: Sequence[str] = ("cpu",), **options: object
) -> Summary:
    campaign = jobs if isinstance(jobs, Campaign) else Campaign.of(jobs)
    return run(campaign, Store(store), LocalExecutor(devices, instrument=STAND_IN), **options)  # type: ignore[arg-type]


def stored(store: Path) -> Counter[str]:
    return Counter(row.point for row in Store(store).steps())


def started(store: Path, count: int, *, seconds: float, more: str = "") -> subprocess.Popen[str]:
    """A campaign in a process of its own."""
    code = f"""
        from foretell.campaign.driver import run
        from foretell.campaign.executor import LocalExecutor
        from foretell.campaign.jobs import Campaign
        from foretell.store.store import Store
        from tests.campaign.test_campaign import STAND_IN, points
        if __name__ == "__main__":
            campaign = Campaign.of(points({count}, seconds={seconds}))
            executor = LocalExecutor(["cpu"], instrument=STAND_IN)
            {more}
            print(run(campaign, Store({str(store)!r}), executor), flush=True)
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, preexec_fn=_heed_interrupts
    )


def _heed_interrupts() -> None:
    """A suite that runs in the background may itself be deaf to them, and its children after it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def wait_until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


# Campaign files


def test_lists_multiply_out(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text("""
        [[points]]
        source = ["timm/resnet18", "timm/resnet50"]
        settings = { batch = [8, 16], channels_last = true }
        device = "h200"

        [[points]]
        source = "hf/llama-small"
        plan = "dp=2"
        repeat = 3
    """)
    campaign = Campaign.load(file)
    assert [str(p) for p in campaign.points] == [
        "timm/resnet18 batch=8 channels_last=true",
        "timm/resnet18 batch=16 channels_last=true",
        "timm/resnet50 batch=8 channels_last=true",
        "timm/resnet50 batch=16 channels_last=true",
        "hf/llama-small dp=2",
    ]
    assert campaign.devices == {"h200", ""}
    assert [job.repeat for job in campaign.jobs] == [1, 1, 1, 1, 3]


def test_json_lines_are_read_back(tmp_path: Path) -> None:
    jobs = [
        Job(point=Point(source="a.py:f", settings={"batch": "8"}, kind="operators", plan="dp=2"), device="é", repeat=2),
        Job(point=Point(source="hf/gpt2")),
    ]
    campaign = Campaign(name="c", jobs=tuple(jobs))
    campaign.save(tmp_path / "c.jsonl")
    assert Campaign.load(tmp_path / "c.jsonl") == campaign
    assert (tmp_path / "c.jsonl").read_text().splitlines()[1] == '{"source": "hf/gpt2"}'


def test_the_same_question_twice_is_one_job() -> None:
    campaign = Campaign.of([point(n=1), point(n=2), point(n=1)])
    assert campaign.points == (point(n=1), point(n=2))


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("c.toml", "[[points]", "is not TOML"),
        ("c.toml", "[[point]]\nsource='a'", "unknown table 'point'"),
        ("c.toml", "\n[[points]]\nbatch=8", "c.toml:2: unknown field 'batch'. Allowed: source"),
        ("c.toml", "[[points]]\nsetings={}", "Did you mean 'settings'?"),
        ("c.toml", "[[points]]\nplan=''", "has no source"),
        ("c.toml", "[[points]]\nsource=''", "source is empty"),
        ("c.toml", "[[points]]\nsource=7", "source must be text"),
        ("c.toml", "[[points]]\nsource='a'\nkind='stepp'", "Did you mean 'step'? Allowed: step, operators"),
        ("c.toml", "[[points]]\nsource='a'\nplan='dq=2'", "'dq=2' is not a setting"),
        ("c.toml", "[[points]]\nsource='a'\nrepeat=0", "repeat must be a whole number of at least 1, got 0"),
        ("c.toml", "[[points]]\nsource='a'\nsettings={batch=[]}", "settings.batch is an empty list"),
        ("c.toml", "[[points]]\nsource='a'\nsettings={batch={}}", "settings.batch must be text, a number"),
        ("c.toml", "[[points]]\nsource='a'\nsettings=8", "settings must be a table"),
        ("c.toml", "points = 8", "two brackets"),
        ("c.toml", "", "holds no points"),
        ("c.jsonl", '{"source": "a"}\n{"source"', "c.jsonl:2 is not JSON"),
        ("c.jsonl", "[1]", "c.jsonl:1: a point is a table"),
        ("c.yaml", "", "must end in .toml, or .jsonl"),
    ],
)
def test_a_mistake_is_reported_where_it_is(tmp_path: Path, name: str, text: str, says: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError) as error:
        Campaign.load(tmp_path / name)
    assert says in str(error.value)


def test_a_missing_file_and_a_near_name(tmp_path: Path) -> None:
    (tmp_path / "campaign.toml").touch()
    with pytest.raises(InputError, match=r"Did you mean '.*campaign\.toml'"):
        Campaign.load(tmp_path / "campain.toml")


# Workers


def test_what_user_code_prints_comes_between_nothing(log: Path) -> None:
    worker = Worker("cpu", instrument=STAND_IN)
    try:
        assert worker.measure(point(do="print"), limit=PATIENCE).step.outcome == "ok"
    finally:
        worker.end()


def test_a_worker_keeps_its_process_and_replaces_one_that_crashed(log: Path) -> None:
    worker = Worker("cpu", instrument=STAND_IN)
    try:
        worker.measure(point(n=1), limit=PATIENCE)
        worker.measure(point(n=2), limit=PATIENCE)
        with pytest.raises(WorkerDied, match=r"SIGABRT.*\n.*an instance of 'Woe'"):
            worker.measure(point(do="abort"), limit=PATIENCE)
        assert worker.measure(point(n=3), limit=PATIENCE).step.outcome == "ok"
    finally:
        worker.end()
    first, second, crashed, fresh = (line.split()[2] for line in log.read_text().splitlines() if "begin" in line)
    assert first == second == crashed != fresh


def test_a_worker_and_its_children_die_with_the_parent(log: Path, tmp_path: Path) -> None:
    parent = started(tmp_path / "store", 1, seconds=0, more="campaign = Campaign.of(points(1, do='hang'))")
    wait_until(lambda: measured(log))
    worker = int(log.read_text().split()[2])
    session = _session(Path(f"/proc/{worker}/stat"))
    members = [int(p.parent.name) for p in Path("/proc").glob("[0-9]*/stat") if _session(p) == session]
    assert len(members) == 3  # the worker, what it started, and its guard
    parent.kill()
    wait_until(lambda: not any(map(is_running, members)))
    parent.communicate()


def _session(stat: Path) -> int:
    try:
        return int(stat.read_text().rpartition(")")[2].split()[3])
    except (FileNotFoundError, ProcessLookupError):
        return 0


def test_one_worker_at_a_time_on_a_device(log: Path, tmp_path: Path) -> None:
    """Two campaigns with stores of their own share the machine's CPU."""
    both = [started(tmp_path / name, 3, seconds=0.1) for name in ("one", "two")]
    assert [campaign.wait(PATIENCE) for campaign in both] == [0, 0]
    times = sorted((float(line.split()[3]), line.split()[0]) for line in log.read_text().splitlines())
    assert [what for _, what in times] == ["begin", "end"] * 6
    for campaign in both:
        campaign.communicate()


# Campaigns


def test_whatever_happens_to_a_point_the_rest_goes_on(log: Path, tmp_path: Path) -> None:
    doings = ("sleep", "abort", "abort once", "input error", "bug", "exit", "memory", "nan", "print")
    seen: list[Progress] = []
    summary = measure_all([point(do=what) for what in doings], tmp_path / "store", retries=1, progress=seen.append)
    rows = {json.loads(row.settings)["do"]: row for row in Store(tmp_path / "store").steps()}
    assert {what: row.outcome for what, row in rows.items()} == {
        "sleep": "ok", "abort": "error", "abort once": "ok", "input error": "error",
        "bug": "error", "exit": "error", "memory": "out-of-memory", "nan": "nan-loss", "print": "ok",
    }  # fmt: skip
    assert "given up after 2 tries" in rows["abort"].error
    assert "instance of 'Woe'" in rows["abort"].error
    assert rows["input error"].error == "the batch must be even, got 7. Give an even one."
    assert "KeyError: 'nothing'" in rows["bug"].error
    assert all(row.device_name == "a plain CPU" and row.source == "stand-in" for row in rows.values())
    assert summary.outcomes == {"ok": 3, "error": 4, "out-of-memory": 1, "nan-loss": 1}
    assert (summary.measured, summary.failed, summary.retried, summary.left) == (3, 6, 2, ())
    assert (seen[-1].done, seen[-1].total, seen[-1].failed, seen[-1].running) == (9, 9, 6, 0)
    assert all(p.seconds_left is None or p.seconds_left >= 0 for p in seen)


def test_a_point_that_hangs_is_stopped_and_the_next_one_measured(log: Path, tmp_path: Path) -> None:
    summary = measure_all([point(do="hang"), point(do="sleep")], tmp_path / "store", limit=2)
    assert summary.outcomes == {"time-limit": 1, "ok": 1}
    [hung] = Store(tmp_path / "store").steps("outcome = 'time-limit'")
    assert "longer than 2 s" in hung.error


def test_what_is_stored_is_not_measured_again(log: Path, tmp_path: Path) -> None:
    measure_all([*points(2), point(do="input error")], tmp_path / "store")
    summary = measure_all([*points(4), point(do="input error")], tmp_path / "store")
    assert (summary.skipped, summary.measured, summary.failed) == (2, 2, 1)  # an error may have gone meanwhile
    assert all(measured(log)[p.key] == 1 for p in points(4))


def test_stored_on_another_device_is_not_stored_on_this(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    campaign = Campaign.of(points(1), device="cpu")
    measure_all(campaign, tmp_path / "store")
    monkeypatch.setenv("STAND_IN_DEVICE", "another CPU")
    assert measure_all(campaign, tmp_path / "store").measured == 1


def test_repetitions_are_counted_in_the_store(log: Path, tmp_path: Path) -> None:
    [one] = points(1)
    for repeat, fresh in ((1, 1), (3, 2), (3, 0)):
        assert measure_all(Campaign.of([one], repeat=repeat), tmp_path / "store").measured == fresh
    assert stored(tmp_path / "store") == {one.key: 3}


def test_a_killed_campaign_goes_on_where_it_was(log: Path, tmp_path: Path) -> None:
    first = started(tmp_path / "store", 6, seconds=0.3)
    wait_until(lambda: len(measured(log, "end")) >= 2)
    first.kill()
    first.communicate()
    kept = sum(stored(tmp_path / "store").values())
    assert kept >= 1
    summary = measure_all(points(6, seconds=0.3), tmp_path / "store")
    assert (summary.skipped, summary.measured) == (kept, 6 - kept)
    assert stored(tmp_path / "store") == {p.key: 1 for p in points(6, seconds=0.3)}
    assert sum(measured(log).values()) <= 7  # the one in hand, twice


def test_two_campaigns_on_one_store_measure_each_point_once(log: Path, tmp_path: Path) -> None:
    both = [started(tmp_path / "store", 8, seconds=0.1) for _ in range(2)]
    message = [campaign.communicate(timeout=PATIENCE) for campaign in both]
    assert [campaign.returncode for campaign in both] == [0, 0], message
    assert measured(log) == {p.key: 1 for p in points(8, seconds=0.1)}
    assert stored(tmp_path / "store") == {p.key: 1 for p in points(8, seconds=0.1)}


def test_an_interrupt_ends_the_workers_and_says_how_to_go_on(log: Path, tmp_path: Path) -> None:
    hanging = "campaign = Campaign.of([*points(1), *points(3, do='hang')])"
    campaign = started(tmp_path / "store", 0, seconds=0, more=hanging)
    wait_until(lambda: sum(measured(log).values()) == 2)
    worker = int(log.read_text().split()[2])
    campaign.send_signal(signal.SIGINT)
    _, message = campaign.communicate(timeout=PATIENCE)
    assert "Interrupted: 1 of 4 points are stored. Run the same command to go on" in message
    assert not is_running(worker)
    assert sum(stored(tmp_path / "store").values()) == 1


def test_a_point_for_a_device_that_is_not_here_is_left(log: Path, tmp_path: Path) -> None:
    campaign = Campaign(name="c", jobs=(Job(point=point(n=1), device="h200"), Job(point=point(n=2))))
    summary = measure_all(campaign, tmp_path / "store")
    assert summary.measured == 1
    [(job, why)] = summary.left
    assert job.device == "h200"
    assert why == "no device here is 'h200'; there is cpu (a plain CPU)."


def test_a_device_in_use_is_left_out(log: Path, tmp_path: Path) -> None:
    summary = measure_all(Campaign.of(points(2), device="cpu"), tmp_path / "store", ["cuda:7", "cpu"])
    assert summary.measured == 2
    summary = measure_all(points(1, n=1), tmp_path / "store", ["cuda:7"])
    assert summary.left[0][1] == (
        "there is no device to measure on; there is none. "
        "no worker starts on cuda:7: CUDA-capable device(s) is/are busy or unavailable"
    )


def test_a_damaged_store_takes_new_records(log: Path, tmp_path: Path) -> None:
    measure_all(points(2), tmp_path / "store")
    segment = next((tmp_path / "store").rglob("steps/*.parquet"))
    segment.write_bytes(segment.read_bytes()[:-50])
    with pytest.warns(UserWarning, match="is left out"):
        summary = measure_all(points(2), tmp_path / "store")
    assert (summary.skipped, summary.measured) == (1, 1)


def test_a_full_disk_loses_no_record(log: Path, tmp_path: Path) -> None:
    """A store on a disk of its own, which another file then fills."""
    small = tmp_path / "small"
    small.mkdir()
    fill = f"""
def fill(progress, ballast=open({str(small / "ballast")!r}, "wb")):
    if progress.done == 2:
        import contextlib
        with contextlib.suppress(OSError):
            while True: ballast.write(bytes(4096)); ballast.flush()
"""
    code = f"""
from foretell.campaign.driver import run
from foretell.campaign.executor import LocalExecutor
from foretell.campaign.jobs import Campaign
from foretell.store.store import Store
from tests.campaign.test_campaign import STAND_IN, points
{fill}
if __name__ == "__main__":
    try:
        run(Campaign.of(points(4)), Store({str(small / "store")!r}), LocalExecutor(["cpu"], instrument=STAND_IN), progress=fill)
    except Exception as error:
        print(type(error).__name__, error)
    print(len(list(Store({str(small / "store")!r}).steps())), "whole")
"""
    script = tmp_path / "full.py"
    script.write_text(code)
    mount = f"mount -t tmpfs -o size=1m tmpfs {small} && PYTHONPATH={ROOT}/src:{ROOT} exec {sys.executable} {script}"
    ended = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount],
        cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    if "unshare" in ended.stderr or "mount:" in ended.stderr:
        pytest.skip("no disk can be mounted here")
    assert "CampaignStopped" in ended.stdout, ended
    assert "the disk is full" in ended.stdout
    assert "2 of 4 points are stored" in ended.stdout
    assert "2 whole" in ended.stdout
    [rescued] = tmp_path.glob("foretell-rescued-*.jsonl")
    assert f"foretell store import {rescued}" in ended.stdout
    assert Record.from_line(rescued.read_text()).step.point == points(4)[2].key


class Echo:
    """An executor that gives every answer twice."""

    patience = 0.0
    troubles: Mapping[str, str] = MappingProxyType({})

    def __init__(self) -> None:
        self.answers: list[Ended] = []

    def places(self) -> list[Place]:
        return [Place(id="cpu", columns={"device_name": "echo"})]

    def start(self, place: Place, point: Point, limit: float) -> None:
        self.answers += [Ended(place=place.id, record=failure(point, "ok", "", place.columns))] * 2

    def wait(self, seconds: float) -> list[Ended]:
        answers, self.answers = self.answers, []
        return answers

    def close(self) -> None: ...


def test_an_answer_that_comes_twice_is_stored_once(tmp_path: Path) -> None:
    summary = run(Campaign.of(points(3)), Store(tmp_path / "store"), Echo())
    assert summary.measured == 3
    assert sum(stored(tmp_path / "store").values()) == 3


def test_a_campaign_says_once_what_it_waits_for(tmp_path: Path) -> None:
    class Late(Echo):
        """The device that is asked for comes after a while."""

        patience, asked = 60.0, 0

        def places(self) -> list[Place]:
            self.asked += 1
            return [Place(id="0", columns={"device": "h200", "device_name": "H200"})] if self.asked > 20 else []

    said: list[str] = []
    jobs = Campaign.of(points(2), device="h200")
    assert run(jobs, Store(tmp_path / "store"), Late(), limit=600, progress=lambda now: said.append(now.event)).measured
    assert said[0] == "waiting for a device 'h200', for stand-in number=0 and 1 more; there is none"
    assert said.count(said[0]) == 1
    assert any("waiting until it is built, warmed up and timed, 10 min at most" in event for event in said)


def test_a_point_that_another_campaign_measures_is_waited_for_by_name(tmp_path: Path) -> None:
    store, (only,), said = Store(tmp_path / "store"), points(1), list[str]()
    with store.claim(f"{only.key} 0 echo") as mine:
        assert mine

        class Patient(Echo):
            def wait(self, seconds: float) -> list[Ended]:
                if len(said) == 1:
                    raise KeyboardInterrupt
                return super().wait(seconds)

        with pytest.raises(KeyboardInterrupt):
            run(Campaign.of([only]), store, Patient(), progress=lambda now: said.append(now.event))
    assert said == ["waiting for another campaign, which measures stand-in number=0"]


def test_a_store_that_cannot_be_written_is_reported(log: Path, tmp_path: Path) -> None:
    (tmp_path / "store").write_text("a file")
    with pytest.raises((CampaignStopped, InputError), match="is a file, and a store is a folder"):
        measure_all(points(1), tmp_path / "store")


@pytest.mark.parametrize(
    ("wanted", "fits"),
    [("", True), ("h200", True), ("h200-sxm", True), ("H200", True), ("nvidia", True), ("h100", False), ("cpu", False)],
)
def test_devices_are_asked_for_by_name(wanted: str, fits: bool) -> None:
    place = Place(id="cuda:0", columns={"device": "h200", "device_name": "NVIDIA H200"})
    assert place.fits(wanted) is fits


def test_a_real_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    (tmp_path / "tiny.py").write_text(
        textwrap.dedent("""
        import torch
        import foretell

        def tiny(batch: int = 4) -> foretell.Workload:
            return foretell.Workload(
                name="tiny",
                model=lambda: torch.nn.Linear(8, 8),
                batch=lambda: torch.randn(batch, 8),
                loss=lambda model, x: model(x).sum() / (batch - 3),
                optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
            )
    """)
    )
    source = f"{tmp_path}/tiny.py:tiny"
    campaign = Campaign.of(
        [Point(source=source, settings={"batch": "8"}), Point(source=source, settings={"batch": "x"})]
    )
    summary = run(campaign, Store(tmp_path / "store"), LocalExecutor(["cpu"]))
    good, bad = sorted(Store(tmp_path / "store").steps(), key=lambda row: row.outcome, reverse=True)
    assert summary.outcomes == {"ok": 1, "error": 1}
    assert good.workload == "tiny"
    assert good.step_seconds is not None
    assert "must be a whole number" in bad.error
    assert bad.torch == good.torch != ""
    assert os.cpu_count() == good.host_cores
