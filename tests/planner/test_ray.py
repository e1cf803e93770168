"""A search on a real Ray cluster of two nodes, of which one is lost while it works."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import foretell
from foretell.errors import ForetellError, InputError
from foretell.planner.pool import Processes
from foretell.planner.ray import RayRunner
from tests.campaign.test_campaign import ROOT, wait_until
from tests.campaign.test_ray import kill_tree, name_of, parent
from tests.planner.tasks import tell_and_wait

pytest.importorskip("ray")
pytestmark = pytest.mark.nightly
SMALL = f"{Path(__file__).parent / 'small.py'}:llama"
QUESTION = {
    "space": foretell.Space(gpus=("l40s",), max_devices=4, global_batch=8, batches=(1, 2)),
    "job": foretell.JobLength.usual(samples=1e8), "model": "roofline",
}  # fmt: skip


@pytest.fixture(scope="module")
def runner() -> Iterator[RayRunner]:
    """On a head that answers nothing, and two nodes of one processor."""
    environment = {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    command = [sys.executable, "-m", "tests.campaign.ray_cluster", *[json.dumps(environment)] * 2]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as program:
        try:
            assert program.stdout is not None
            runner = RayRunner(json.loads(program.stdout.readline())["address"])
            yield runner
            runner.close()
        finally:
            kill_tree(program.pid)


@pytest.mark.slow
def test_the_same_is_chosen_on_a_cluster(runner: RayRunner) -> None:
    found, here = (
        foretell.plan(SMALL, search=foretell.Search(runner=where, cache=False), **QUESTION)  # type: ignore[arg-type]
        for where in (runner, Processes(1))
    )
    assert runner.workers == 2
    assert found.recommended == here.recommended


@pytest.mark.slow
def test_a_node_that_dies_loses_nothing(runner: RayRunner, tmp_path: Path) -> None:
    def began() -> list[tuple[int, int]]:
        return [(int(a), int(b)) for a, _, b in (f.name.partition(".") for f in tmp_path.glob("*.*"))]

    def kill_a_node() -> None:
        wait_until(lambda: len(began()) == 2)
        above = began()[0][1]
        while name_of(above) != "raylet":
            above = parent(above)
        kill_tree(above)
        (tmp_path / "go").touch()

    killer = threading.Thread(target=kill_a_node)
    killer.start()
    answers = sorted(runner.each(tell_and_wait, str(tmp_path), range(6)))
    killer.join()
    assert answers == [0, 10, 20, 30, 40, 50]
    again = [number for number, _ in began()]
    assert len(again) == 7, "the question of the node that was lost is asked again"
    assert sorted(set(again)) == list(range(6))


def _fails(shared: str, one: int) -> int:
    raise InputError(f"{shared} {one}")


@pytest.mark.slow
def test_what_goes_wrong_on_a_node_is_said_here(runner: RayRunner) -> None:
    with pytest.raises(InputError, match="no such thing 3"):
        list(runner.each(_fails, "no such thing", [3]))


def test_where_no_cluster_is() -> None:
    with pytest.raises(InputError, match=r"no Ray cluster at '127.0.0.1:9'.*ray start --head"):
        list(RayRunner("127.0.0.1:9").each(tell_and_wait, "", [1]))


def test_processes_here_and_a_cluster_are_not_both() -> None:
    from foretell.cli import options

    with pytest.raises(ForetellError, match="Give one"):
        options.runner("auto", 2)
