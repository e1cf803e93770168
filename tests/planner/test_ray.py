"""A search on a real Ray cluster of two nodes, of which one is lost while it works."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray")

PROGRAM = """
import json, os, signal, sys, threading, time
import foretell
from foretell.planner.ray import RayRunner

runner = RayRunner(sys.argv[1])
import ray
nodes = [n for n in ray.nodes() if n["Alive"] and n["Resources"].get("CPU")]
lost = int(sys.argv[3])
begun = []

def progress(text):
    if not begun and "priced" in text:
        begun.append(text)
        os.kill(lost, signal.SIGKILL)

asked = dict(gpus=("l40s",), max_devices=4, global_batch=8, batches=(1, 2), samples=1e8, model="roofline", cache=False)
found = foretell.plan(sys.argv[2], runner=runner, progress=progress, **asked)
here = foretell.plan(sys.argv[2], **asked)
print(json.dumps([len(nodes), len(begun), found.recommended.plan, here.recommended.plan]))
"""


@pytest.mark.slow
def test_a_node_is_lost_while_it_searches(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": f"{root / 'src'}:{root}"}
    cluster = subprocess.Popen(
        [sys.executable, "-m", "tests.planner.ray_nodes"], cwd=root, env=environment, stdout=subprocess.PIPE, text=True
    )
    try:
        assert cluster.stdout is not None
        told = json.loads(cluster.stdout.readline())
        source = f"{Path(__file__).parent / 'small.py'}:llama"
        ran = subprocess.run(
            [sys.executable, "-c", PROGRAM, told["address"], source, str(told["second"])],
            cwd=root, env=environment, capture_output=True, text=True, timeout=400, check=False,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr[-2000:]
        nodes, begun, found, here = json.loads(ran.stdout.strip().splitlines()[-1])
        assert nodes == 2
        assert begun == 1
        assert found == here
    finally:
        cluster.send_signal(signal.SIGKILL)
        cluster.wait()
