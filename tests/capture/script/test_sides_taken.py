"""Pictures that a net refuses, and whose sides were made up: as large as the net runs with."""

from __future__ import annotations

import sys

import pytest

import foretell
from foretell.capture.script.meant import sides_named
from foretell.capture.script.shapes import PICTURE
from tests.capture.script.conftest import Write

# Two scales that a layer sees side by side: no product of two sides says how large the pictures are.
TWO_SCALES = """
    import os
    import numpy as np
    import torch
    from PIL import Image
    from torch import nn
    from torch.utils.data import DataLoader, Dataset

    class Faces(Dataset):
        def __init__(self, root):
            self.files = [os.path.join(root, name) for name in os.listdir(root) if name.endswith(".jpg")]

        def __len__(self):
            return len(self.files)

        def __getitem__(self, i):
            face = np.asarray(Image.open(self.files[i]).convert("RGB"), np.float32)
            return torch.from_numpy(face).permute(2, 0, 1), i % 10

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Conv2d(3, 8, 3, 8, 1), nn.Conv2d(8, 4, 3, 2, 1)
            self.head = nn.Linear(8 + 4 * SIDE * SIDE, 10)

        def forward(self, x):
            x = self.first(x)
            return self.head(torch.cat([x.mean((2, 3)), self.second(x).flatten(1)], 1))

    net = Net().cuda()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for faces, kinds in DataLoader(Faces("/data/faces"), batch_size=16):
        loss = nn.functional.cross_entropy(net(faces.cuda()), kinds.cuda())
        loss.backward(); optimizer.step(); optimizer.zero_grad()
"""


@pytest.mark.parametrize(("side", "size"), [(7, 112), (4, 64), (25, 400)])
def test_pictures_are_as_large_as_the_layers_of_a_net_take(script: Write, side: int, size: int) -> None:
    graph = foretell.capture_graph(script(TWO_SCALES.replace("SIDE", str(side)), fake_data=True))
    assert (graph.samples, graph.facts.inputs) == (16, (16, 3, size, size))


# Views that no name tells to be pictures, of a data set that cannot read what stands in for its file.
VIEWS = """
    import struct
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, Dataset

    class Pairs(Dataset):
        def __init__(self, path):
            with open(path, "rb") as file:
                magic, self.count = struct.unpack("<4sI", file.read(8))
                self.rows = {4321: range(self.count)}[magic]

        def __len__(self):
            return len(self.rows)

        def __getitem__(self, i):
            row = {7: 1}[self.rows[i]]
            image, one, other = row.a, row.b, row.c
            return image, one, other

    class Patches(nn.Module):
        def __init__(self):
            super().__init__()
            self.cut, self.head = nn.Conv2d(3, 8, 16, 16), nn.Linear(8, 8)

        def forward(self, x):
            b, c, h, w = x.shape
            assert h == w == 96, f"Input image height ({h}) doesn't match model (96)."
            return self.head(self.cut(x).mean((2, 3)))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.patches = Patches()

        def forward(self, image, one, other):
            return self.patches(image) + self.patches(one) + self.patches(other)

    net = Net().cuda()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for image, one, other in DataLoader(Pairs("/data/pairs.bin"), batch_size=16):
        net(image.cuda(), one.cuda(), other.cuda()).mean().backward(); optimizer.step(); optimizer.zero_grad()
"""


def test_views_that_no_name_tells_to_be_pictures_are_as_large_as_the_net_asserts(script: Write) -> None:
    graph = foretell.capture_graph(script(VIEWS, fake_data=True))
    shapes = {layout.shape for op in graph.ops for layout in op.signature.inputs}
    assert (graph.samples, graph.facts.parameters) == (16, 6224)
    assert {shape for shape in shapes if len(shape) == 4 and shape[0] == 16 and shape[1] == 3} == {(16, 3, 96, 96)}


def test_settings_say_sides_in_pairs_in_one_another_and_those_of_patches_last() -> None:
    config = {"patch_size": 48, "data": {"img_height": 64, "img_width": 320}, "model": {"input_size": [3, 80, 96]}}
    assert list(sides_named(sys._getframe()))[:3] == [(64, 320), (80, 96), (48, 48)]
    del config
    height, width = PICTURE[1], PICTURE[0]  # of a picture that stands in, as a function takes it apart
    assert (height, width) not in list(sides_named(sys._getframe()))
