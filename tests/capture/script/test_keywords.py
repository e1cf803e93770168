"""Keywords that a library does not take any more are left out, where no step rests on them."""

from __future__ import annotations

import pytest

import foretell
from foretell.errors import WorkloadError
from tests.capture.script.conftest import Write

TRAINING = """
import torch
net = torch.nn.Linear(8, 2).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(4):
    net(torch.rand(5, 8).cuda()).mean().backward()
    optimizer.step(); optimizer.zero_grad()
"""
FUNCTION = "import tomli_w\nassert tomli_w.dumps({'a': 1}, verify=True, style='old') == 'a = 1\\n'\n"
CLASS = "from packaging import version\nassert version.Version('1.2', strict=True).major == 1\n"
MODEL = "import torch\nnet = torch.nn.Linear(8, 2, sparse=True)\n"


@pytest.mark.parametrize(
    ("line", "named"),
    [
        (FUNCTION, ("keyword verify of tomli_w", "keyword style of tomli_w")),
        (CLASS, ("keyword strict of packaging.version.Version",)),
    ],
)
def test_a_keyword_that_a_library_does_not_take_is_left_out_and_listed(
    script: Write, line: str, named: tuple[str, ...]
) -> None:
    graph = foretell.capture_graph(script(line + TRAINING, fake_data=True))
    assert graph.samples == 5
    said = " ".join(map(str, graph.caveats))
    assert all(name in said for name in named)
    assert "passed over" not in said


def test_a_layer_is_asked_for_as_the_script_asks(script: Write) -> None:
    with pytest.raises(WorkloadError, match="unexpected keyword argument 'sparse'"):
        foretell.capture_graph(script(MODEL + TRAINING, fake_data=True))
