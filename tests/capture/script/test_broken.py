"""A package that is installed and fails when it is imported is as if it were not there, until a step uses it."""

from __future__ import annotations

from pathlib import Path

import pytest

import foretell
from foretell.errors import WorkloadError
from tests.capture.script.conftest import Write

STEPS = """
        import sys, torch
        sys.path.append("site-packages")
        from fragile.parts import Thing
        Thing(3)
        model = torch.nn.Linear(8, 4).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(5):
            model(INPUT).sum().backward()
            optimizer.step(); optimizer.zero_grad()
"""


def test_what_fails_to_be_imported_is_missed_where_a_step_needs_it(script: Write, tmp_path: Path) -> None:
    package = tmp_path / "site-packages" / "fragile"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "parts.py").write_text('raise OSError("its library is not on this machine")\n')
    given = "torch.randn(2, 8).cuda()"
    assert foretell.capture_graph(script(STEPS.replace("INPUT", given))).samples == 2
    with pytest.raises(WorkloadError, match=r"line 4 of train\.py.*its library is not on this machine"):
        foretell.capture_graph(script(STEPS.replace("INPUT", f"Thing({given})")))
