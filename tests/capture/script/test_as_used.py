"""Stand-ins that take their size and parts from how the script uses them, and from what its settings say."""

from __future__ import annotations

import os

import pytest
import torch

import foretell
from foretell.capture.script.ended import Ended
from foretell.capture.script.guesses import Guesses
from foretell.capture.script.meant import sides_meant
from foretell.capture.script.misread import pictures_of_other_sides
from foretell.capture.script.pretend.files import kinds, sizes
from foretell.capture.script.pretend.files.line_parts import Line
from foretell.capture.script.revised import frames_of
from foretell.capture.script.taking import contradictions
from foretell.sources.named.torchvision_ops import make_torchvision_importable
from tests.capture.script.conftest import Write

HALVED = """
    import argparse, os, torch
    from PIL import Image
    import numpy as np
    parser = argparse.ArgumentParser()
    parser.add_argument("--imgsize", type=int, default=0)
    args = parser.parse_args()

    def load(path):
        try:
            return np.asarray(Image.open(path).convert("RGB"))
        except IOError:
            print("cannot read", path)

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.down, self.up = torch.nn.Conv2d(3, 8, 4, 2, 1), torch.nn.ConvTranspose2d(8, 3, 4, 2, 1)
            self.across = torch.nn.Parameter(torch.zeros(1, 1, 1, args.imgsize or 1))
        def forward(self, x):
            return torch.cat((x, self.up(self.down(x))), 1) + self.across

    net = Net().cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    names = os.listdir("data/images")
    for name in names[:4]:
        picture = load(os.path.join("data/images", name)).transpose(2, 0, 1)
        net(torch.tensor(picture).float()[None].cuda()).mean().backward()
        optimizer.step(); optimizer.zero_grad()
"""


@pytest.mark.parametrize(("arguments", "size"), [(("--imgsize", "96"), 96), ((), 512)])
def test_pictures_that_a_net_refuses_are_as_large_as_the_arguments_say_or_square(
    script: Write, arguments: tuple[str, ...], size: int
) -> None:
    graph = foretell.capture_graph(script(HALVED, arguments=arguments, fake_data=True))
    assert (1, 3, size, size) in {layout.shape for op in graph.ops for layout in op.signature.inputs}


def test_settings_name_the_sides_of_pictures() -> None:
    import sys

    img_size = [64, 48]
    assert sides_meant(sys._getframe()) == (64, 48)
    del img_size
    opt = {"name": "x", "crop_size": 80}
    assert sides_meant(sys._getframe()) == (80, 80)
    del opt


def test_boxes_of_a_list_have_as_many_numbers_as_they_are_taken_apart_into() -> None:
    parts = Line.of("images/1.jpg\n", "train.txt", 0).split()
    assert [list(map(int, box.split(","))) for box in parts[1:]] == [[32, 32, 160, 160, 0]]
    left, top, right, bottom = parts[1].split(",")
    assert (left, top, right, bottom) == ("32", "32", "160", "160")
    assert int(parts[1]) == 0


def test_a_normalization_shows_how_many_channels_a_picture_has() -> None:
    make_torchvision_importable()
    from torchvision.transforms.functional import normalize

    with pytest.raises(RuntimeError) as caught:
        normalize(torch.zeros(8, 97, 101), [0.5, 0.5, 0.5], [0.5, 0.5, 0.5])
    found = [given for frame, _ in frames_of(caught.value) for given in contradictions(frame)]
    assert ((8, 97, 101), ((8, 3),)) in [(given.shape, given.extents) for given in found]


def test_folders_that_a_script_lies_in_say_nothing_of_its_data() -> None:
    start = os.path.join(os.sep, "tmp", "results", "pointnet")
    nothing = kinds.Given()
    assert kinds.is_data("/tmp/results/ModelNet10/chair", nothing, start)
    assert not kinds.is_data("/tmp/results/pointnet/outputs/ModelNet10", nothing, start)
    assert not kinds.is_data("/tmp/data/pointnet/net", nothing, "/tmp/data/pointnet")


def test_a_name_of_two_sides_is_turned_where_a_net_refuses_it() -> None:
    guesses = Guesses()
    sizes.ask(guesses)
    assert sizes.size_of("faces-112x96/a/1.jpg") == (112, 96)
    sizes_refused = Ended(
        script=foretell.Script(path="train.py", fake_data=True), error=RuntimeError("shapes do not match")
    )
    shown = pictures_of_other_sides(sizes_refused, guesses)
    sizes.ask(Guesses(guesses.after(shown)))
    assert sizes.size_of("faces-112x96/a/1.jpg") == (96, 112)


def test_pictures_that_are_made_flat_are_as_large_as_the_layer_behind_takes() -> None:
    for channels, stride, wanted, shown in ((512, 16, 42, [96, 112]), (256, 32, 49, [224, 224]), (1, 1, 784, [28, 28])):
        guesses = Guesses()
        sizes.ask(guesses)
        width, height = sizes.size_of("people/1.jpg")
        got = channels * -(-width // stride) * -(-height // stride)
        layer = torch.nn.Linear(channels * wanted, 8, device="meta")
        with pytest.raises(RuntimeError) as caught:
            layer(torch.empty(4, got, device="meta"))
        ended = Ended(script=foretell.Script(path="train.py", fake_data=True), error=caught.value)
        assert list(pictures_of_other_sides(ended, guesses).values()) == [shown]


def test_a_file_that_is_unpickled_is_one_whatever_it_is_called(script: Write) -> None:
    text = """
        import pickle, torch
        rows = pickle.load(open("data/" + "sample" + "/train.txt", "rb"))
        assert len(rows) > 100
        model = torch.nn.Linear(8, 7).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(4):
            model(torch.zeros(4, 8).cuda()).sum().backward()
            optimizer.step(); optimizer.zero_grad()
    """
    assert foretell.capture_graph(script(text, fake_data=True)).facts.parameters == 63


EVALUATED = """
    import ast, torch
    rows = []
    for line in open("data/negatives.rating"):
        parts = line.split("\\t")
        rows.append([eval(parts[0])[0], int(eval(parts[0])[1])])
        assert ast.literal_eval(line)["asin"] is not None
    assert len(rows) > 1000 and eval("1 + len(rows)") == len(rows) + 1
    model = torch.nn.Linear(4, 4).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(5):
        model(torch.randn(8, 4).cuda()).sum().backward()
        optimizer.step(); optimizer.zero_grad()
"""


def test_a_text_that_is_evaluated_gives_a_row(script: Write) -> None:
    assert foretell.capture_graph(script(EVALUATED, fake_data=True)).samples == 8
