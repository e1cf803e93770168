"""Campaigns on a real Ray cluster of several nodes, one of which is killed while it works, and then the head."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from foretell.campaign.driver import CampaignStopped, Summary, run
from foretell.campaign.executor import LocalExecutor
from foretell.campaign.jobs import Campaign, Job
from foretell.campaign.ray import RayExecutor
from foretell.errors import InputError
from foretell.store.store import Store
from tests.campaign.test_campaign import PATIENCE, ROOT, STAND_IN, measured, points, stored, wait_until

pytest.importorskip("ray")
pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ray") / "log"


@dataclass(frozen=True)
class RayCluster:
    address: str
    server: int  # the pid of the head's


@pytest.fixture(scope="module")
def cluster(log: Path) -> Iterator[RayCluster]:
    """A head that measures nothing, two plain nodes and one that says it has an H200."""
    environments = []
    for number, name in enumerate(("a plain CPU", "a plain CPU", "NVIDIA H200")):
        own = log.parent / f"node{number}"  # so that nodes of one machine do not wait for each other
        own.mkdir()
        environment = {"STAND_IN_DEVICE": name, "STAND_IN_LOG": str(log), "TMPDIR": str(own)}
        environments.append(json.dumps(environment | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}))
    command = [sys.executable, "-m", "tests.campaign.ray_cluster", *environments]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as program:
        try:
            assert program.stdout is not None
            yield RayCluster(**json.loads(program.stdout.readline()))
        finally:
            kill_tree(program.pid)


def on_ray(cluster: RayCluster, campaign: Campaign, store: Path, **options: Any) -> Summary:
    executor = RayExecutor(cluster.address, wanted=campaign.devices, instrument=STAND_IN, silence=6.0)
    return run(campaign, Store(store), executor, **options)


def kill_a_node_at_work(log: Path) -> None:
    """As a power cut does: daemon, seat and worker at once, in the middle of a point."""
    stopped: list[int] = []

    def stop_one() -> bool:
        for key, worker in at_work(log):
            os.kill(worker, signal.SIGSTOP)  # so that it cannot end between being found and being killed
            if not ended(log, key):
                stopped.append(worker)
                return True
            os.kill(worker, signal.SIGCONT)
        return False

    wait_until(stop_one)
    above = stopped[0]
    while name_of(above) != "raylet":
        above = parent(above)
    kill_tree(above)


def at_work(log: Path) -> list[tuple[str, int]]:
    return [(key, int(pid)) for what, key, pid, _ in lines(log) if what == "begin" and not ended(log, key)]


def lines(log: Path) -> list[list[str]]:
    return [line.split() for line in log.read_text().splitlines()]


def ended(log: Path, key: str) -> bool:
    return any(line[:2] == ["end", key] for line in lines(log))


def kill_tree(pid: int) -> None:
    assert pid > 1, "a process without a parent is not one of ours"
    above = {int(path.name): parent(int(path.name)) for path in Path("/proc").glob("[0-9]*")}
    tree = {pid}
    while below := {child for child, its_parent in above.items() if its_parent in tree} - tree:
        tree |= below
    for process in tree:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def name_of(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


def parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0


@pytest.mark.slow
def test_a_node_that_dies_loses_nothing_and_doubles_nothing(cluster: RayCluster, log: Path, tmp_path: Path) -> None:
    jobs = [Job(point=p, device="plain") for p in points(8, seconds=1)]
    jobs += [Job(point=p, device="h200") for p in points(2, seconds=0, on="h200")]
    campaign = Campaign(name="c", jobs=tuple(jobs))

    def kill_while_it_works() -> None:
        wait_until(lambda: len(measured(log)) >= 5)
        kill_a_node_at_work(log)

    killer = threading.Thread(target=kill_while_it_works)
    killer.start()
    summary = on_ray(cluster, campaign, tmp_path / "store", limit=PATIENCE)
    killer.join()
    assert summary.outcomes == {"ok": 10}
    assert summary.left == ()
    assert summary.retried == 1
    assert stored(tmp_path / "store") == {job.point.key: 1 for job in jobs}
    assert sum(measured(log).values()) == 11  # the one it was at, again
    where = {row.point: row.device_name for row in Store(tmp_path / "store").steps()}
    assert {where[job.point.key] for job in jobs if job.device == "h200"} == {"NVIDIA H200"}
    assert {where[job.point.key] for job in jobs if job.device == "plain"} == {"a plain CPU"}

    again = on_ray(cluster, campaign, tmp_path / "store")
    assert (again.skipped, again.outcomes) == (10, {})


@pytest.mark.slow
def test_a_head_that_goes_away_ends_the_campaign_in_good_order(
    cluster: RayCluster, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    campaign = Campaign.of(points(40, seconds=0.5, head=1), device="plain")  # what this machine has too
    store = tmp_path / "store"

    def kill_the_head() -> None:
        wait_until(lambda: list(store.rglob("steps/*.parquet")))
        os.kill(cluster.server, signal.SIGKILL)

    killer = threading.Thread(target=kill_the_head)
    killer.start()
    with pytest.raises(CampaignStopped, match=r"does not answer any more.* of 40 points are stored. Run the same"):
        on_ray(cluster, campaign, store)
    killer.join()
    kept = stored(store)
    assert sum(kept.values()) >= 1
    assert max(kept.values()) == 1
    monkeypatch.setenv("STAND_IN_LOG", str(log))
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}:{ROOT}")
    # Goes on wherever there is a device of the kind; which points were first, Ray decides.
    some = Campaign.of(sorted(campaign.points, key=lambda point: point.key not in kept)[:4])
    summary = run(some, Store(store), LocalExecutor(["cpu"], instrument=STAND_IN))
    assert summary.skipped >= 1
    assert summary.skipped + summary.measured == 4


def test_where_no_cluster_is(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no Ray cluster at '127.0.0.1:9'.*ray start --head"):
        run(Campaign.of(points(1)), Store(tmp_path), RayExecutor("127.0.0.1:9"))


def test_without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install 'foretell\[ray\]'"):
        RayExecutor("auto")
