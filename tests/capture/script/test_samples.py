"""Data sets that have too few samples, since what stands in for their files has: batches are full, and splits have their parts."""

from __future__ import annotations

import pytest

import foretell
from tests.capture.script.conftest import Write

LISTED = """
    import os
    import numpy as np
    import torch
    from PIL import Image
    from torch import nn
    from torch.utils.data import DataLoader, Dataset, random_split

    class Pictures(Dataset):
        def __init__(self, root):
            self.files = [os.path.join(root, name) for name in os.listdir(root) if name.endswith(".jpg")]

        def __len__(self):
            return len(self.files)

        def __getitem__(self, i):
            picture = Image.open(self.files[i]).resize((8, 8))
            return torch.from_numpy(np.asarray(picture, np.float32)).permute(2, 0, 1), i % 10

    net = nn.Sequential(nn.Flatten(), nn.Linear(192, 10)).cuda()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    pictures = Pictures("/data/pictures")
    PREPARE
    for epoch in range(3):
        for x, y in loader:
            loss = nn.functional.cross_entropy(net(x.cuda()), y.cuda())
            loss.backward(); optimizer.step(); optimizer.zero_grad()
"""
_LOADER = "DataLoader(pictures, batch_size={}, shuffle=True, drop_last={})"


@pytest.mark.parametrize(
    ("prepare", "batch"),
    [
        (f"loader = {_LOADER.format(4096, False)}", 4096),
        (f"loader = {_LOADER.format(4096, True)}", 4096),
        (f"loader = {_LOADER.format(900, False)}", 900),
        (f"loader = {_LOADER.format(256, False)}; interval = 100 % (len(loader) // 16)", 256),
        (f"pictures, rest = random_split(pictures, [5000, 1000]); loader = {_LOADER.format(64, False)}", 64),
    ],
)
def test_a_data_set_that_is_stood_in_for_fills_its_batches(script: Write, prepare: str, batch: int) -> None:
    graph = foretell.capture_graph(script(LISTED.replace("PREPARE", prepare), fake_data=True))
    assert (graph.samples, graph.facts.inputs) == (batch, (batch, 3, 8, 8))


def test_a_data_set_that_is_here_has_the_samples_that_it_has(script: Write) -> None:
    text = LISTED.replace("os.listdir(root)", "[f'{i}.jpg' for i in range(600)]").replace(
        "Image.open(self.files[i])", "Image.new('RGB', (9, 9))"
    )
    text = text.replace("PREPARE", f"loader = {_LOADER.format(900, False)}")
    graph = foretell.capture_graph(script(text, fake_data=True))
    assert graph.samples == 600
