"""Memory under software of another time."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from foretell.capture import capture
from foretell.cost.older_software import copied_bytes
from foretell.forecasting.memory import rank_memory
from foretell.hardware import device
from foretell.parallel import parallelize
from foretell.plans import Plan
from foretell.software import Software
from tests.parallel.models import graph, workload


def test_adam_over_lists_copied_its_roots_before_2_1() -> None:
    step = graph("llama", precision="fp32")
    roots = sum(s.nbytes for s in step.storages if s.role == "parameter")
    copied = {name: sum(copied_bytes(step, Software.parse(name))) for name in ("torch-1.13", "torch-2.0", "torch-2.1")}
    assert copied == {"torch-1.13": 0, "torch-2.0": pytest.approx(roots, rel=0.01), "torch-2.1": 0}
    by_sgd = replace(workload("llama"), optimizer=lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9))
    assert not any(copied_bytes(capture(by_sgd), Software.parse("torch-2.0")))


def test_an_update_that_is_the_peak_took_more_before_2_1() -> None:
    role = parallelize(graph("llama", precision="fp32"), Plan(dp=1)).roles[0]
    then, now = (rank_memory(role, device("h100-sxm"), software=software)[1] for software in ("torch-2.0", None))
    assert then.allocated > now.allocated
