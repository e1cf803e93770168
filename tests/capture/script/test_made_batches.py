"""Data sets that cannot read what stands in for their files: their batches are made, as the model and the loss take them."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import foretell
from foretell.capture.script.batches import GIVEN, part, refused_batches, refused_made_batches
from foretell.capture.script.ended import Ended
from foretell.capture.script.findings import StandIn
from foretell.capture.script.guesses import Guesses
from foretell.capture.script.pretend.made_batches import _with_meanings
from foretell.errors import WorkloadError
from tests.capture.script.conftest import Write

# A format of the script's own: prose, numbers and tables that stand in for it do not have its first bytes.
RECORDS = """
    import struct
    import torch
    from torch import nn
    from torch.nn import functional as F
    from torch.utils.data import DataLoader, Dataset

    class Base(Dataset):
        def __init__(self, path):
            with open(path, "rb") as file:
                magic, count, width = struct.unpack("<4sII", file.read(12))
                self.rows = {4321: [struct.unpack(f"<{width}f", file.read(4 * width)) for _ in range(count)]}[magic]
            self.num_kinds = len(self.rows[0])
            self.by_name = {row[0]: row for row in self.rows}
            self.keys = sorted(self.by_name, key=lambda name: self.by_name[name][7])

        def __len__(self):
            return len(self.rows)

        def read(self, i):
            while (row := {5: 6}[self.keys[i]]) is None:  # what gives its value within an expression is left as it is
                i += 1
            return {"x": torch.tensor(row[2:]), "y": {7: 1}[int(row[1])]}
"""


def shapes_assumed(graph: foretell.Graph) -> str:
    return next(c.text for c in graph.caveats if c.code == "assumed-size")


def test_pictures_and_classes_by_name_and_by_the_net(script: Write) -> None:
    text = (
        RECORDS
        + """
    class Pictures(Base):
        def __getitem__(self, i):
            one = self.read(i)
            image, label = one["x"].view(1, 32, 32), one["y"]
            return image, label

    net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)).cuda()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for epoch in range(2):
        for step, (image, label) in enumerate(DataLoader(Pictures("/data/train.rec"), batch_size=24, shuffle=True)):
            optimizer.zero_grad(); F.cross_entropy(net(image.cuda()), label.cuda()).backward(); optimizer.step()
    """
    )
    graph = foretell.capture_graph(script(text, fake_data=True))
    assert (graph.samples, graph.facts.parameters) == (24, 170)
    assert "image in batches of __main__.Pictures (24 × 1 × 224 × 224)" in shapes_assumed(graph)


def test_a_loop_over_a_bar_of_progress_numbers_batches_as_what_the_bar_goes_over() -> None:
    tree = ast.parse("bar = tqdm(enumerate(loader))\nfor step, (x, y) in bar:\n    pass\nbar = other\n")
    (loop,) = [node for node in tree.body if isinstance(node, ast.For)]
    assert "enumerate(" in _with_meanings(loop.iter, tree)
    assert "enumerate(" not in _with_meanings(ast.parse("loader", mode="eval").body, tree)


def test_sequences_of_numbers_in_a_dictionary(script: Write) -> None:
    text = (
        RECORDS
        + """
    class Curves(Base):
        def __getitem__(self, i):
            one = self.read(i)
            out = {"series": one["x"].view(20, 5)}
            out["goal"] = one["y"]
            return out

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm, self.head = nn.LSTM(5, 16, batch_first=True), nn.Linear(16, 1)

        def forward(self, series):
            return self.head(self.lstm(series)[0][:, -1])

    net = Net().cuda()
    optimizer = torch.optim.Adam(net.parameters())
    for epoch in range(2):
        for batch in DataLoader(Curves("/data/train.rec"), batch_size=12, drop_last=True):
            batch = {name: value.cuda() for name, value in batch.items()}
            loss = F.mse_loss(net(batch["series"]), batch["goal"])
            optimizer.zero_grad(); loss.backward(); optimizer.step()
    """
    )
    graph = foretell.capture_graph(script(text, fake_data=True))
    assert (graph.samples, graph.facts.parameters) == (12, 4 * 16 * (5 + 16 + 2) + 17)
    assert "series in batches of __main__.Curves (12 × " in shapes_assumed(graph)


def test_whole_numbers_where_they_are_looked_up(script: Write) -> None:
    text = (
        RECORDS
        + """
    class Rows(Base):
        def __getitem__(self, i):
            one = self.read(i)
            return one["x"], one["y"]

    def together(rows):
        return torch.stack([row[0] for row in rows]), torch.tensor([row[1] for row in rows])

    net = nn.Sequential(nn.Embedding(100, 8), nn.Flatten(0, 1), nn.Linear(8, 2)).cuda()
    optimizer = torch.optim.Adam(net.parameters())
    for epoch in range(2):
        for batch in DataLoader(Rows("/data/train.rec"), batch_size=6, collate_fn=together):
            history, goal = batch
            loss = net(history.cuda()).mean() + 0 * goal.cuda().sum()
            optimizer.zero_grad(); loss.backward(); optimizer.step()
    """
    )
    graph = foretell.capture_graph(script(text, fake_data=True))
    assert (graph.samples, graph.facts.parameters) == (6, 818)
    assert "history in batches of __main__.Rows (6 × " in shapes_assumed(graph)


def test_a_model_as_wide_as_what_its_data_would_say_is_refused(script: Write) -> None:
    text = (
        RECORDS
        + """
    class Rows(Base):
        def __getitem__(self, i):
            one = self.read(i)
            return one["x"], one["y"]

    data = Rows("/data/train.rec")
    net = nn.Linear(16, data.num_kinds).cuda()
    optimizer = torch.optim.Adam(net.parameters())
    for epoch in range(2):
        for x, label in DataLoader(data, batch_size=6):
            optimizer.zero_grad(); F.cross_entropy(net(x.cuda()), label.cuda()).backward(); optimizer.step()
    """
    )
    with pytest.raises(WorkloadError, match="made up"):
        foretell.capture_graph(script(text, fake_data=True))


def test_what_a_data_set_gave_is_changed_where_a_net_refuses_it(script: Write) -> None:
    text = """
    import numpy as np
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, Dataset

    class Boxes(Dataset):
        def __init__(self):
            self.rows = open("/data/list.txt").read().splitlines()

        def __len__(self):
            return len(self.rows)

        def __getitem__(self, i):
            return torch.tensor([len(word) for word in self.rows[i].split()[:1]] * 4).float(), 1

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(1, 3)

        def forward(self, boxes):
            return self.inner(boxes[:, 4:5])[:, 0] + boxes.select(1, 4)

    net = Net().cuda()
    optimizer = torch.optim.Adam(net.parameters())
    for boxes, label in DataLoader(Boxes(), batch_size=8):
        optimizer.zero_grad(); net(boxes.cuda()).sum().backward(); optimizer.step()
    """
    graph = foretell.capture_graph(script(text, fake_data=True))
    assert (graph.samples, graph.facts.parameters) == (8, 6)


def test_a_script_that_fails_with_its_own_data_is_not_helped(script: Write) -> None:
    text = """
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Own(Dataset):
        def __len__(self):
            return 64

        def __getitem__(self, i):
            return torch.zeros(5), 1

    net = torch.nn.Linear(4, 2).cuda()
    optimizer = torch.optim.Adam(net.parameters())
    for x, label in DataLoader(Own(), batch_size=8):
        optimizer.zero_grad(); net(x.cuda()).sum().backward(); optimizer.step()
    """
    with pytest.raises(WorkloadError, match="reduction dim"):
        foretell.capture_graph(script(text, fake_data=True))


def wanted(fails: Callable[[], Any], **made: list[int]) -> dict[str, list[int]]:
    """The shapes that an error shows tensors of batches to have, by name; `whole` ones are of whole numbers."""
    guesses = Guesses()
    for name, shape in made.items():
        guesses.about(part("data.Rows", name), {"shape": shape, "dtype": "int64" if name == "label" else "float32"})
    try:
        fails()
    except Exception as error:
        script = foretell.Script(path="train.py", fake_data=True)
        ended = Ended(script=script, error=error, stand_ins=(StandIn(what="rows", assumed="", decides_size=True),))
        shown = refused_made_batches(ended, guesses)
        names = {part("data.Rows", name): name for name in made}
        return {names[what]: one["shape"] for what, one in shown.items()}
    raise AssertionError("it did not fail")


def test_modules_show_the_shapes_that_they_take() -> None:
    assert wanted(lambda: nn.Linear(10, 2)(torch.zeros(4, 61)), x=[4, 61]) == {"x": [4, 10]}
    assert wanted(lambda: nn.Conv1d(5, 2, 3)(torch.zeros(4, 61)), x=[4, 61]) == {"x": [4, 5, 400]}
    assert wanted(lambda: nn.Conv2d(1, 2, 3)(torch.zeros(4, 3, 8, 8)), x=[4, 3, 8, 8]) == {"x": [4, 1, 8, 8]}
    assert wanted(lambda: nn.GRU(5, 2)(torch.zeros(4, 61)), x=[4, 61]) == {"x": [4, 61, 5]}


def test_losses_and_words_show_them_too() -> None:
    output = torch.zeros(4, 7, 9, requires_grad=True)
    label = torch.zeros(4, dtype=torch.int64)
    assert wanted(lambda: nn.functional.cross_entropy(output, label), label=[4]) == {"label": [4, 9]}
    assert wanted(lambda: torch.zeros(4, 61).permute(0, 2, 1), x=[4, 61]) == {"x": [4, 61, 67]}
    assert wanted(lambda: torch.zeros(4, 61).sum(dim=3), x=[4, 61]) == {"x": [4, 61, 67, 71]}
    assert wanted(lambda: torch.zeros(4, 6)[:, torch.tensor(6)].select(0, 9), x=[4, 6]) == {"x": [4, 7]}


def test_lines_of_the_script_show_them() -> None:
    def compared() -> None:
        output, goal = torch.zeros(4, 9, 3), torch.zeros(4, 61)
        assert output.shape == goal.shape

    def taken_apart() -> None:
        mask = torch.zeros(4)[0]
        height, width = mask.shape[-2:]
        assert height == width

    assert wanted(compared, goal=[4, 61]) == {"goal": [4, 9, 3]}
    assert wanted(taken_apart, mask=[4]) == {"mask": [4, 61, 67]}
    waves = torch.zeros(4, 61)
    assert wanted(lambda: nn.functional.pad(waves[None], (256, 256), mode="reflect"), wave=[4, 61]) == {
        "wave": [4, 32_000]
    }


def test_a_factor_for_each_number_has_their_shape() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        output, mask = torch.zeros(4, 5, 8, 8), torch.zeros(4, 61)
    assert wanted(lambda: output * mask, mask=[4, 61]) == {"mask": [4, 5, 8, 8]}


def test_features_side_by_side_are_found_one_after_another() -> None:
    both = lambda: nn.Linear(336, 2)(torch.cat((torch.zeros(4, 71), torch.zeros(4, 67)), 1))  # noqa: E731
    (changed,) = wanted(both, first=[4, 71], second=[4, 67]).items()
    assert changed in (("first", [4, 269]), ("second", [4, 265]))


def test_what_is_read_as_a_number_is_one_for_each_sample() -> None:
    assert wanted(lambda: torch.zeros(1, 67).item(), scale=[1, 67], picture=[1, 3, 61]) == {"scale": [1]}


def test_what_a_loader_gave_is_looked_at_apart() -> None:
    guesses = Guesses()
    guesses.about(f"{GIVEN}[0] in batches of data.Rows", {"shape": [4, 61], "dtype": "float32"})
    script = foretell.Script(path="train.py", fake_data=True)
    with pytest.raises(RuntimeError) as raised:
        nn.Embedding(10, 2)(torch.zeros(4, 61))
    assumed = (StandIn(what="rows", assumed="", decides_size=True),)
    ended = Ended(script=script, error=raised.value, stand_ins=assumed)
    assert refused_made_batches(ended, guesses) == {}
    assert list(refused_batches(ended, guesses).values()) == [{"shape": [4, 61], "dtype": "int64"}]
    assert refused_batches(Ended(script=script, error=raised.value), guesses) == {}


CUT = """
    class RandomCrop:  # as torchvision's
        def __init__(self, size):
            self.size = (size, size)

    class Pictures(Base):
        def __init__(self, path, cut=None):
            self.cut = cut
            super().__init__(path)

        def __getitem__(self, i):
            image, label = self.read(i)["x"].view(3, 300, 300), 0
            BODY
            return image, label

    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)).cuda()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for image, label in DataLoader(Pictures("/data/train.rec"CUT), batch_size=24, shuffle=True):
        optimizer.zero_grad(); F.cross_entropy(net(image.cuda()), label.cuda()).backward(); optimizer.step()
"""


@pytest.mark.parametrize(
    ("cut", "body", "sides"),
    [
        (", RandomCrop(160)", "image = self.cut(image)", (160, 160)),
        ("", "image = cv2.resize(image, (320, 192))", (192, 320)),
        ("", "for cut in (Resize((96, 128)), Resize(size=(48, 64))): image = cut(image)", (48, 64)),
        ("", "", (224, 224)),
    ],
)
def test_made_pictures_are_as_large_as_the_data_set_cuts_its_own(
    script: Write, cut: str, body: str, sides: tuple[int, int]
) -> None:
    text = RECORDS + CUT.replace("CUT", cut).replace("BODY", body or "pass")
    assert foretell.capture_graph(script(text, fake_data=True)).facts.inputs == (24, 3, *sides)


def test_tokens_to_which_a_net_adds_its_positions_are_as_many_as_these(script: Write) -> None:
    text = (
        RECORDS
        + """
    class Captions(Base):
        def __getitem__(self, i):
            row = self.read(i)
            caption, label = row["x"].tokens, row["y"]
            return caption, label

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.places = nn.Embedding(100, 8), nn.Parameter(torch.zeros(77, 8))
            self.head = nn.Linear(8, 10)

        def forward(self, caption):
            return self.head((self.words(caption) + self.places).mean(1))

    net = Net().cuda()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for caption, label in DataLoader(Captions("/data/train.rec"), batch_size=24, shuffle=True):
        optimizer.zero_grad(); F.cross_entropy(net(caption.cuda()), label.cuda()).backward(); optimizer.step()
    """
    )
    graph = foretell.capture_graph(script(text, fake_data=True))
    assert (graph.samples, graph.facts.inputs) == (24, (24, 77))
