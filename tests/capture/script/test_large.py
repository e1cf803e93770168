"""Data that stand in shall fill neither the host's memory nor its time."""

from __future__ import annotations

import ast
import contextlib

import numpy as np
import torch

import foretell
from foretell.capture.script.ended import Ended
from foretell.capture.script.guesses import Guesses
from foretell.capture.script.placement import Placement
from foretell.capture.script.pretend.files.guessed import Buffers
from foretell.capture.script.scalars import SCALAR, SCALARS, one_number_wanted, scalar, taken_out
from foretell.capture.values import contents_of
from tests.capture.script.conftest import Write

WHOLE = """
    import numpy as np
    import torch
    from torch import nn
    from torch.utils.data import DataLoader
    from torchvision import datasets, transforms

    def whole(data, count):
        for pictures, labels in DataLoader(data, batch_size=count):
            return pictures, labels

    def train(net, pictures, labels, size):
        optimizer = torch.optim.SGD(net.cuda().parameters(), 0.1)
        for step in range(4):
            some = torch.randint(0, len(labels), (size,))
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(pictures[some].cuda()), labels[some].cuda()).backward()
            optimizer.step()
"""


def text_of(graph: foretell.Graph) -> str:
    return " ".join(c.text for c in graph.caveats)


def test_a_whole_data_set_is_one_batch(script: Write) -> None:
    text = (
        WHOLE
        + """
    data = datasets.MNIST("mnist", train=True, download=True, transform=transforms.ToTensor())
    size = int(np.random.RandomState(0).normal(24, 0.1, 1))
    train(nn.Sequential(nn.Flatten(), nn.Linear(784, 10)), *whole(data, 60_000), size)
    """
    )
    graph = foretell.capture_graph(script(text, fake_data=True))
    assert (graph.samples in (23, 24), graph.facts.parameters) == (True, 7850)
    assert "a batch of 60,000 samples of MNIST" in text_of(graph)


def test_a_batch_that_no_memory_holds(script: Write) -> None:
    text = (
        WHOLE
        + """
    change = transforms.Compose([transforms.Resize((1024, 1024)), transforms.ToTensor()])
    pictures, labels = whole(datasets.ImageNet("imagenet", split="val", transform=change), 50_000)
    assert pictures.shape == (50_000, 3, 1024, 1024) and pictures.device.type == "cpu" and labels[:2].tolist() == [0, 1]
    train(nn.Sequential(nn.Conv2d(3, 8, 16, 16), nn.Flatten(), nn.LazyLinear(1000)), pictures, labels, 32)
    """
    )
    graph = foretell.capture_graph(script(text, fake_data=True))
    assert graph.samples == 32
    assert graph.facts.inputs == (32, 3, 1024, 1024)


def test_blank_pictures_are_not_computed_with_and_masks_are() -> None:
    place = Placement()
    for numbers, known in [
        (torch.zeros(2, 3, 64, 64), False),
        (torch.zeros(2, 1, 64, 64), True),
        (torch.ones(2, 3, 64, 64), True),
        (torch.zeros(2, 3, 64, 64, dtype=torch.int64), True),
        (torch.zeros(64, 256), True),
    ]:
        assert (contents_of(place.to_accelerator(numbers)) is not None) is known


def test_arrays_that_are_made_up_share_what_is_too_much() -> None:
    buffers = Buffers(most=2**21)
    shape, kind = (512, 512), np.dtype("float32")
    first, second = buffers.of(shape, kind), buffers.of(shape, kind)
    third, fourth = buffers.of(shape, kind), buffers.of(shape, kind)
    assert not np.shares_memory(first, second)
    assert not np.shares_memory(second, third)
    assert np.shares_memory(third, fourth)
    del first, second
    assert not np.shares_memory(buffers.of(shape, kind), fourth)


def test_an_array_of_one_number_is_a_number_where_one_is_asked_for() -> None:
    error = TypeError("only 0-dimensional arrays can be converted to Python scalars")
    names = {"np": np, SCALAR: scalar}
    with contextlib.suppress(TypeError):
        exec(compile("def f():\n    raise error\nf()", "train.py", "exec"), {"error": error})
    ended = Ended(script=foretell.Script(path="train.py"), error=error, stand_ins=())
    guesses = Guesses()
    shown = one_number_wanted(ended, guesses)
    assert shown == {SCALARS: [["train.py", 2]]}
    assert one_number_wanted(ended, Guesses(shown)) == {}
    tree = taken_out(
        ast.parse("a = int(np.array([3.0]))\nb = [int(x) for x in (1, np.zeros(2)) if np.size(x) == 1]"), {1, 2}
    )
    exec(compile(tree, "train.py", "exec"), names)
    assert (names["a"], names["b"]) == (3, [1])
