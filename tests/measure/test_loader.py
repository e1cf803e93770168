"""The rate of a data loader, measured."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from foretell.cli import app
from foretell.errors import InputError
from foretell.measure.loader import loader_rate


def batches(count: int, seconds: float = 0.0) -> Iterator[dict[str, list[torch.Tensor]]]:
    for _ in range(count):
        time.sleep(seconds)
        yield {"images": [torch.zeros(16, 3)], "labels": [torch.zeros(16)]}


def test_a_rate_is_samples_over_seconds() -> None:
    assert loader_rate(batches(12, 0.01)) == pytest.approx(1600, rel=0.3)


def test_it_is_read_for_as_long_as_is_asked() -> None:
    began = time.perf_counter()
    loader_rate(batches(10_000, 0.005), seconds=0.1)
    assert time.perf_counter() - began < 2


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
