"""The rate of a data loader, measured."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from foretell.cli import app
from foretell.errors import InputError
from foretell.measure import loader as measuring
from foretell.measure.loader import loader_rate


def batches(number: int) -> Iterator[dict[str, list[torch.Tensor]]]:
    for _ in range(number):
        yield {"images": [torch.zeros(16, 3)], "labels": [torch.zeros(16)]}


@pytest.fixture
def hundredths(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock on which a hundredth of a second passes each time it is read: no other process slows it down."""
    ticks = count()
    monkeypatch.setattr(measuring, "perf_counter", lambda: next(ticks) * 0.01)


@pytest.mark.usefixtures("hundredths")
def test_a_rate_is_samples_over_seconds() -> None:
    assert loader_rate(batches(12)) == pytest.approx(1600)


@pytest.mark.usefixtures("hundredths")
def test_it_is_read_for_as_long_as_the_caller_says() -> None:
    endless = batches(10_000)
    loader_rate(endless, seconds=0.1)
    assert sum(1 for _ in endless) == 10_000 - 2 - 11  # two to warm up; the eleventh is past a tenth of a second


def test_a_loader_of_torch() -> None:
    data = torch.utils.data.TensorDataset(torch.zeros(64, 4), torch.zeros(64))
    assert loader_rate(torch.utils.data.DataLoader(data, batch_size=8)) > 0


@pytest.mark.parametrize(
    ("loader", "message"),
    [(batches(3), "gave 3 batches"), (iter(["text"] * 9), "holds str first"), (batches(0), "gave 0 batches")],
)
def test_what_cannot_be_measured(loader: Iterator[object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        loader_rate(loader)


def test_the_command_line_measures_a_loader(tmp_path: Path) -> None:
    file = tmp_path / "my_data.py"
    file.write_text(
        "import time, torch\n"
        "def slow():\n"
        "    for _ in range(6):\n"
        "        time.sleep(0.02)\n"
        "        yield torch.zeros(2, 3), torch.zeros(2)\n"
        "def broken():\n"
        "    yield 1 / 0\n"
    )
    asked = ["predict", "torchvision/resnet18", "--set", "batch=8", "--on", "8xh100-sxm", "--model", "roofline"]
    ended = CliRunner().invoke(app, [*asked, "--loader", f"{file}:slow"])
    assert ended.exit_code == 0
    assert "samples/s on this machine" in ended.stderr
    assert "input" in ended.stdout
    for loader, message in (
        (f"{file}:broken", "division by zero"),
        ("fast", "FILE.py:FUNCTION"),
        (f"{file}:no", "slow"),
    ):
        wrong = CliRunner().invoke(app, [*asked, "--loader", loader])
        assert wrong.exit_code == 2
        assert message in wrong.stderr
