"""Scripts of another Python, and of another librosa, run as their author ran them."""

from __future__ import annotations

from pathlib import Path

import pytest

import foretell
from foretell.capture.script.pretend.former_sounds import _take_by_position
from foretell.errors import WorkloadError
from tests.capture.script.conftest import Write

BEFORE = """
    import torch, wide
    model = torch.nn.Linear(wide.WIDTH / 2, 4).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in xrange(5):
        loss = model(torch.randn(8, 8).pin_memory().cuda(async=True)).mean()
        loss.backward()
        optimizer.step()
        print 'loss %f' % loss.item()
"""


def test_a_script_of_python_2_runs_as_it_did(script: Write, tmp_path: Path) -> None:
    pytest.importorskip("lib2to3")
    (tmp_path / "wide.py").write_text("WIDTH = 33 / 2\nprint WIDTH\n")
    graph = foretell.capture_graph(script(BEFORE))
    assert (graph.samples, graph.facts.parameters) == (8, 8 * 4 + 4)


def test_what_is_no_python_at_all_is_refused(script: Write) -> None:
    with pytest.raises(WorkloadError, match=r"line 1 of .*train.py \(model = \(\)\)\) is no Python"):
        foretell.capture_graph(script("model = ())\n"))


def test_arguments_by_position_become_those_that_have_to_be_named() -> None:
    class Library:
        __name__ = __name__

        @staticmethod
        def pad(data: str, *, size: int, axis: int = -1) -> tuple[str, int, int]:
            return data, size, axis

    library = Library()
    library.__dict__["pad"] = Library.pad
    _take_by_position(library)
    assert library.pad("x", 5) == ("x", 5, -1)  # type: ignore[misc]
    assert library.pad("x", 5, 0) == ("x", 5, 0)  # type: ignore[misc]
    assert library.pad("x", size=5) == ("x", 5, -1)
