"""Pictures in a folder that a program prepared, and columns that a table is asked for by place."""

from __future__ import annotations

import os

import pytest

import foretell
from foretell.capture.script.pretend.files import kinds
from tests.capture.script.conftest import Write

NEXT_FRAMES = """
    import glob, os, random, torch
    from PIL import Image
    import numpy as np

    class Windows(torch.utils.data.Dataset):
        def __len__(self):
            return 64
        def __getitem__(self, index):
            names = glob.glob(os.path.join("clips_preprocessed/00001", "*.jpg"))
            for _ in range(200):
                first = int(os.path.basename(random.choice(names)).split(".")[0])
                window = [os.path.join("clips_preprocessed/00001", "{}.jpg".format(at)) for at in (first, first + 1)]
                if all(map(os.path.isfile, window)):
                    return torch.stack([torch.tensor(np.asarray(Image.open(name).resize((16, 16)))) for name in window])
            raise SystemExit("no window")

    net = torch.nn.Conv2d(3, 4, 3).cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for x in torch.utils.data.DataLoader(Windows(), batch_size=4):
        net(x.flatten(0, 1).permute(0, 3, 1, 2).float().cuda()).mean().backward()
        optimizer.step(); optimizer.zero_grad()
"""
BOXES = """
    import pandas, torch
    table = pandas.read_csv("data/train-annotations-bbox.csv")
    groups = [group.loc[:, ["XMin", "YMin", "XMax", "YMax"]].values for _, group in table.groupby("ImageID")]
    net = torch.nn.Linear(len(groups[0][0]), 2).cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(4):
        net(torch.tensor(groups[0]).float().cuda()).mean().backward()
        optimizer.step(); optimizer.zero_grad()
"""


def test_pictures_of_a_folder_that_was_prepared_are_there(script: Write) -> None:
    graph = foretell.capture_graph(script(NEXT_FRAMES, fake_data=True))
    assert (8, 3, 16, 16) in {layout.shape for op in graph.ops for layout in op.signature.inputs}


def test_columns_of_a_part_of_a_table_are_made_when_they_are_asked_for(script: Write) -> None:
    pytest.importorskip("pandas")
    graph = foretell.capture_graph(script(BOXES, fake_data=True))
    assert (2, 4) in {layout.shape for op in graph.ops for layout in op.signature.outputs}


SMOKE = """
    import os, torch, xml.etree.ElementTree as ET
    from PIL import Image
    import torchvision.transforms.functional as F

    class Smoke(torch.utils.data.Dataset):
        def __init__(self, folder):
            self.classes = ["__background__", "smoke"]
            self.names = [name[:-4] for name in os.listdir(os.path.join(folder, "annotations")) if name.endswith(".xml")]
            self.folder = folder
        def __len__(self):
            return len(self.names)
        def __getitem__(self, index):
            root = ET.parse(os.path.join(self.folder, "annotations", self.names[index] + ".xml")).getroot()
            found = []
            for thing in root.findall("object"):
                if thing.find("name").text not in self.classes:
                    continue
                found.append(self.classes.index(thing.find("name").text))
            picture = Image.open(os.path.join(self.folder, "images", self.names[index] + ".jpg")).resize((32, 32))
            return F.to_tensor(picture), torch.tensor(found)

    net = torch.nn.Conv2d(3, 2, 32).cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for x, y in torch.utils.data.DataLoader(Smoke("data/smoke"), batch_size=4):
        torch.nn.functional.cross_entropy(net(x.cuda()).flatten(1), y.flatten().cuda()).backward()
        optimizer.step(); optimizer.zero_grad()
"""


def test_things_in_annotations_are_called_as_the_script_calls_its_classes(script: Write) -> None:
    graph = foretell.capture_graph(script(SMOKE, fake_data=True))
    assert (4, 3, 32, 32) in {layout.shape for op in graph.ops for layout in op.signature.inputs}
    assert not any("passed over" in str(caveat) or "made up" in str(caveat) for caveat in graph.caveats)


SERIES = """
    import pandas, torch
    table = pandas.read_csv("data/ETTh1.csv", index_col="date", parse_dates=True)
    hours = table.index.hour
    target = pandas.read_csv("data/ETTh1.csv", usecols=["date", "OT"], parse_dates=["date"])
    days = target["date"].dt.day
    net = torch.nn.Linear(table.shape[1] + target.shape[1], 1).cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(9):
        values = torch.tensor(table.to_numpy()[:16], dtype=torch.float32)
        x = torch.cat([values, torch.zeros(16, target.shape[1])], 1)
        optimizer.zero_grad()
        net(x.cuda()).sum().backward()
        optimizer.step()
"""


def test_a_known_table_has_the_index_and_the_columns_that_are_asked_for(script: Write) -> None:
    pytest.importorskip("pandas")
    graph = foretell.capture_graph(script(SERIES, fake_data=True))
    assert graph.facts is not None
    assert (graph.samples, graph.facts.parameters) == (16, 7 + 2 + 1)


PAIRED = """
    import os, torch
    from PIL import Image
    import torchvision.transforms.functional as F

    class Pairs(torch.utils.data.Dataset):
        def __init__(self, images, masks):
            self.images = [images + f for f in os.listdir(images) if f.endswith(".jpg") or f.endswith(".png")]
            self.masks = [masks + f for f in os.listdir(masks) if f.endswith(".png")]
            assert len(self.images) == len(self.masks)
        def __len__(self):
            return len(self.images)
        def __getitem__(self, index):
            picture, mask = Image.open(self.images[index]).convert("RGB"), Image.open(self.masks[index]).convert("L")
            return F.to_tensor(picture.resize((32, 32))), F.to_tensor(mask.resize((32, 32)))

    net = torch.nn.Conv2d(3, 1, 3, padding=1).cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for x, y in torch.utils.data.DataLoader(Pairs("data/images/", "data/masks/"), batch_size=4):
        torch.nn.functional.binary_cross_entropy_with_logits(net(x.cuda()), y.cuda()).backward()
        optimizer.step(); optimizer.zero_grad()
"""


def test_files_end_as_the_line_that_lists_them_wants(script: Write) -> None:
    graph = foretell.capture_graph(script(PAIRED, fake_data=True))
    assert (4, 3, 32, 32) in {layout.shape for op in graph.ops for layout in op.signature.inputs}
    said = " ".join(map(str, graph.caveats))
    assert not any(word in said for word in ("made up", "passed over", "in batches of"))


def test_a_folder_that_an_option_names_has_data_unless_results_go_there() -> None:
    given = kinds.given_in(
        ("--content_dir", "content", "--style-folder=style", "--save_dir", "kept", "--project_dir", "p")
    )
    assert given.data == {os.path.abspath("content"), os.path.abspath("style")}


@pytest.mark.parametrize("option", ["--logdir", "--outdir", "--savepath", "--modeldir"])
def test_what_lies_in_a_folder_of_results_is_no_data_whatever_it_is_called(option: str) -> None:
    given = kinds.given_in((option, "there/walker"))
    assert not given.data
    assert not kinds.is_data("there/walker/train_episodes", given, os.getcwd())
    assert kinds.is_data("here/train_episodes", given, os.getcwd())


def test_what_is_said_of_a_package_is_no_data_wherever_it_was_put() -> None:
    assert not kinds.is_data("/opt/tools/corpus-1.2.dist-info/entry_points.txt", kinds.Given(), os.getcwd())
    assert kinds.is_data("/opt/tools/corpus-1.2/entry_points.txt", kinds.Given(), os.getcwd())


PROTOCOL = """
    import torch

    def protocol(path):
        labels = {}
        with open(path) as file:
            rows = file.readlines()
        for row in rows:
            _, key, _, _, label = row.strip().split(" ")
            labels[key] = 1 if label == "bonafide" else 0
        return labels

    labels = protocol("data/protocol.train.trn.txt")
    net = torch.nn.Linear(8, 2).cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(4):
        net(torch.rand(4, 8).cuda()).mean().backward()
        optimizer.step(); optimizer.zero_grad()
"""


def test_lines_that_are_taken_apart_have_as_many_parts(script: Write) -> None:
    graph = foretell.capture_graph(script(PROTOCOL, fake_data=True))
    assert not any(word in str(caveat) for caveat in graph.caveats for word in ("made up", "passed over"))
