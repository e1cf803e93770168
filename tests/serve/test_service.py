"""The service as a process, asked by the command line and the client."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

import foretell
from foretell import Conditions, Graph, InputError, JobLength, Pause
from foretell.serve.client import Client
from tests.serve.conftest import BASES

CNN = str(BASES / "cnn.graph")
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of a service in a process of its own, which ends when it is asked to."""
    url = f"sqlite:///{tmp_path_factory.mktemp('service')}/service.sqlite"
    command = [sys.executable, "-m", "foretell.cli", "serve", "--port", "0", "--workers", "1", "--database", url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = re.search(r"http://\S+", process.stdout.readline())
        assert said
        yield said[0]
        with Client(said[0]) as client:
            job = client.scale(Graph.load(CNN), on="h200", up_to=2**14)
        with httpx.stream("GET", f"{said[0]}/v1/jobs/{job}/events", timeout=300) as stream:
            lines = stream.iter_lines()
            next(lines)
            process.terminate()
            assert [line for line in lines if "event: done" in line] == []  # in order, not cut off: nobody holds it up
        assert process.wait(300) in (0, -15)


def test_the_command_line_asks_a_service(address: str, run_foretell: Run, tmp_path: Path) -> None:
    asked = ("predict", CNN, "--on", "2xh100-sxm", "--plan", "dp=2", "--job-samples", "1e6", "--json")
    here, there = run_foretell(*asked), run_foretell(*asked, "--server", address)
    assert there.returncode == 0, there.stderr
    assert json.loads(there.stdout) == json.loads(here.stdout)
    table = run_foretell("predict", CNN, "--on", "h200", "--on", "t4", "--server", address, "--require-fit")
    assert table.returncode == 0
    assert "h200" in table.stdout
    refused = run_foretell("predict", CNN, "--on", "h200", "--server", address, "--html", str(tmp_path / "a.html"))
    assert (refused.returncode, "--html cannot be had" in refused.stderr) == (2, True)
    wrong = run_foretell("predict", CNN, "--on", "h2000", "--server", address)
    assert (wrong.returncode, "h2000" in wrong.stderr) == (2, True)


def test_a_service_searches_and_its_answer_has_an_address(address: str, run_foretell: Run) -> None:
    asked = ("plan", CNN, "--on", "2xh100-sxm", "--samples", "1e6", "--plan", "zero=0", "--json")
    here, there = run_foretell(*asked), run_foretell(*asked, "--server", address)
    assert there.returncode == 0, there.stderr
    own, shared = (json.loads(each.stdout)["recommended"] for each in (here, there))
    assert (own["plan"], own["time"]) == (shared["plan"], shared["time"])
    option = ("--host", "epyc-milan", "--recompute", "auto", "--search", "offload")
    here, there = run_foretell(*asked, *option), run_foretell(*asked, *option, "--server", address)
    assert there.returncode == 0, there.stderr
    assert json.loads(there.stdout)["recommended"] == json.loads(here.stdout)["recommended"]
    place = re.search(r"To share: (\S+)", there.stderr)
    assert place
    assert httpx.get(place[1], follow_redirects=True).status_code == 200


def test_a_service_searches_for_a_script_and_its_choice_is_handed_over(
    address: str, run_foretell: Run, tmp_path: Path
) -> None:
    """What needs the code, its step and the files of tools, is done here."""
    script, file = tmp_path / "train.py", tmp_path / "job.sh"
    script.write_text(
        "import torch\nfrom torch.nn import Linear\n"
        "model = Linear(64, 64).cuda()\noptimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "for _ in range(3):\n    loss = model(torch.randn(8, 64, device='cuda')).sum()\n    loss.backward()\n"
        "    optimizer.step()\n    optimizer.zero_grad()\n"
    )
    asked = ("plan", str(script), "--on", "2xh100-sxm", "--samples", "1e6", "--to", f"torchrun={file}")
    found = run_foretell(*asked, "--server", address)
    assert found.returncode == 0, found.stderr
    assert "torchrun" in file.read_text()
    again = run_foretell(*asked, "--server", address)
    assert (again.returncode, "is there already" in again.stderr) == (2, True)
    refused = run_foretell(*asked, "--server", address, "--force", "--html", str(tmp_path / "a.html"))
    assert (refused.returncode, "--html cannot be had" in refused.stderr) == (2, True)


def test_the_client_says_what_the_library_says(address: str) -> None:
    graph = Graph.load(CNN)
    job = JobLength(samples=1e6, checkpoint=Pause(every=100, seconds=3.0))
    asked = {"conditions": Conditions(jitter=0.02), "job": job, "model": "roofline"}
    with Client(address) as client:
        found = client.forecast(graph, "h200", **asked)
        assert found == json.loads(foretell.forecast(graph, "h200", **asked).to_json())
        told = client.measured(graph, "h200", seconds=2 * found["step_time"]["seconds"])
        assert told["error"] == pytest.approx(-0.5)
        assert graph.content_hash in {row["hash"] for row in client.graphs()}  # beside those of other tests
        assert len(client.measurements()) == 1
        assert {"h200"} <= {device["name"] for device in client.devices()}
        with pytest.raises(InputError, match="no model"):
            client.forecast(graph, "h200", model="nosuch")


def test_the_client_waits_for_long_work(address: str) -> None:
    with Client(address) as client:
        job = client.scale(Graph.load(CNN), on="h200", up_to=2)
        assert [point["devices"] for point in client.result(job)] == [1, 2]
        assert (job, "done") in [(row["id"], row["state"]) for row in client.jobs()]  # another test has one too
        with pytest.raises(InputError, match="the job is done"):
            client.cancel(job)


def test_a_service_that_is_not_there() -> None:
    with Client("http://127.0.0.1:1") as client, pytest.raises(InputError, match="cannot be asked"):
        client.devices()
    with pytest.raises(InputError, match="no address"):
        Client("http://a:b")


def test_a_port_that_is_taken(address: str, run_foretell: Run) -> None:
    port = address.rpartition(":")[2]
    ended = run_foretell("serve", "--port", port)
    assert (ended.returncode, "nothing can listen" in ended.stderr) == (2, True)


def test_keys_on_the_command_line(run_foretell: Run) -> None:
    made = run_foretell("serve", "key", "research", "--role", "reader", "--label", "the scheduler's")
    assert re.fullmatch(r"ftl_[0-9a-f]{16}_\S{43}\n", made.stdout)
    listed = json.loads(run_foretell("serve", "keys", "--json").stdout)
    assert [(row["team"], row["role"], row["revoked"]) for row in listed] == [("research", "reader", False)]
    assert listed[0]["key"] in run_foretell("serve", "keys").stdout
    assert run_foretell("serve", "revoke", listed[0]["key"]).returncode == 0
    assert run_foretell("serve", "revoke", listed[0]["key"]).returncode == 2
    assert run_foretell("serve", "key", "research", "--role", "king").returncode == 2
    assert run_foretell("serve", "--database", "mysql://nowhere/x").returncode == 2


def test_the_library_does_without_the_service() -> None:
    check = "import sys, foretell, foretell.cli; foretell.forecast; print(*{'fastapi', 'pydantic', 'sqlalchemy', 'httpx'} & {*sys.modules})"
    ended = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True, timeout=120)
    assert ended.stdout.strip() == ""
