"""What only a run would know: numbers a script decides by, and files that are not there."""

from __future__ import annotations

import pytest

import foretell
from foretell.capture.script.pretend.files import pictures
from foretell.capture.script.pretend.files.sizes import size_of
from foretell.capture.script.pretend.files.unknown import Document, Word
from foretell.errors import WorkloadError
from tests.capture.script.conftest import Write

STOPS = """
    import torch
    from torch import nn
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
    model = nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 50)).cuda()
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.999))
    optimizer = torch.optim.AdamW(model.parameters())
    best = float("inf")
    for step in range(9):
        tokens = torch.randint(0, 50, (8, 32), device="cuda")
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        average.update_parameters(model)
        scale = 1 / loss.item()
        if loss.detach().cpu().item() * 2 < {least} * scale:
            break
"""


def test_numbers_that_stop_a_script_are_noted_and_averages_of_a_model_are_copies_of_it(script: Write) -> None:
    graph = foretell.capture_graph(script(STOPS.format(least=0.01)))
    assert any("compared in line 17 of train.py are taken as 0.5" in c.text for c in graph.caveats)
    assert (graph.samples, graph.tokens, graph.facts.inputs) == (8, 256, (8, 32))  # drawn on the device
    storage = [graph.tensors[i].storage for i in range(len(graph.tensors))]
    views = [op for op in graph.ops if op.signature.name == "aten.detach"]
    assert views
    assert all(storage[op.inputs[0]] == storage[op.outputs[0]] for op in views)
    assert graph.bytes_of("parameter") == 2 * 4 * (50 * 16 + 16 * 50 + 50)


def test_a_script_that_decides_to_stop_is_told_what_it_decided_by(script: Write) -> None:
    with pytest.raises(WorkloadError, match=r"after 1 update.* compared in line 17 of train.py are taken as 0.5"):
        foretell.capture_graph(script(STOPS.format(least=10)))


MISSING = """
    import csv, torch, torchvision
    from PIL import Image
    from torchvision import transforms
    with open("/nowhere/labels.csv") as file:
        rows = list(csv.DictReader(file))
    class Pictures(torch.utils.data.Dataset):
        change = transforms.Compose([transforms.RandomCrop(32), transforms.ToTensor()])
        def __len__(self):
            return len(rows)
        def __getitem__(self, i):
            return self.change(Image.open(f"/nowhere/{rows[i]['file']}.jpg").convert("RGB")), int(rows[i]["label"])
    model = torchvision.models.squeezenet1_0(weights="IMAGENET1K_V1").cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kept = torch.load("/nowhere/model.pt", map_location="cpu")
    model.load_state_dict({name.removeprefix("module."): value for name, value in kept["model"].items()})
    optimizer.load_state_dict(kept["optimizer"])
    for epoch in range(kept["epoch"] + 1, 5):
        for x, y in torch.utils.data.DataLoader(Pictures(), batch_size=4, num_workers=2):
            torch.nn.functional.cross_entropy(model(x.cuda()), y.cuda()).backward()
            optimizer.step()
            optimizer.zero_grad()
"""


def test_tables_pictures_weights_and_checkpoints_are_stood_in_for(script: Write) -> None:
    graph = foretell.capture_graph(script(MISSING, fake_data=True))
    assert graph.facts.inputs == (4, 3, 32, 32)
    (told,) = [c.text for c in graph.caveats if c.code == "fake-data"]
    for what in ("/nowhere/labels.csv", "pictures in /nowhere", "squeezenet1_0", "/nowhere/model.pt"):
        assert what in told


def test_masks_of_flags_and_tensors_that_grow(script: Write) -> None:
    """Flags of the script's own choose rows of what has no contents, and a mask is resized before it is drawn."""
    graph = foretell.capture_graph(
        script("""
        import torch
        from torch import nn

        model = nn.Linear(6, 12).cuda()
        chosen = model.weight.new_zeros((12,), dtype=torch.bool).view(3, -1)
        chosen[[True, False, True], :] = True
        chosen = chosen.view(-1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(5):
            rows = model(torch.randn(2, 6).cuda()).t()[:8]
            mask = model.weight.data.new().resize_((8, 1)).bernoulli_(0.9)
            padded = rows.new_zeros((len(chosen), 2))
            padded[chosen] = rows * mask
            padded.sum().backward()
            optimizer.step()
        """)
    )
    assert all(s.nbytes for s in graph.storages)
    assert foretell.Graph.from_bytes(graph.to_bytes()).samples == 2


def test_columns_of_a_file_are_lists_one_value_a_row() -> None:
    document = Document()
    assert len(document["image_names"]) == len(document["image_labels"]) == len(document)
    assert document["image_labels"][65] == 1
    assert document["filenames"][3].endswith(".jpg")
    assert isinstance(document["label"], Word)


SERIES = """
    import numpy as np
    import torch
    with open("data/exchange_rate.txt") as file:
        rows = np.loadtxt(file, delimiter=",")
    model = torch.nn.Linear(rows.shape[1], 1).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        model(torch.tensor(rows[:16], dtype=torch.float).cuda()).sum().backward()
        optimizer.step()
"""


def test_numbers_are_read_from_a_text_that_is_open(script: Write) -> None:
    graph = foretell.capture_graph(script(SERIES, fake_data=True))
    assert (graph.samples, graph.facts.parameters) == (16, 9)


def test_rows_are_cut_where_the_script_knows_that_there_are_more() -> None:
    rows = Document()
    assert min(len(rows[8000:]), len(rows[:-8000]), len(Document(2)[2:])) > 0
    assert [len(rows[:8000]), len(Document()[-100:]), len(Document()[:100])] == [8000, 100, 100]


def test_rows_without_names_are_what_they_are_used_as() -> None:
    rows = Document(4)
    assert [f"{name}.npy" for name, len in rows if len <= 1250] == [f"{i:05}.npy" for i in range(4)]
    assert sorted(rows, key=lambda row: int(row[1]))[0] is rows[0]
    assert not any(size < 32_000 for _, size in rows)  # none is too short,
    assert int(rows[3][1]) == 32_000  # as the limit says
    assert rows[2][0] + ".wav" == "00002.wav"
    assert rows[0][0]["text"].startswith("the quick")


def test_rows_that_are_texts_are_split_into_as_many_parts_as_are_taken() -> None:
    for i, row in enumerate(Document(3)):
        folder, category, name = row.split("/")
        assert (folder, category, name) == ("0", "0", f"{i:05}")
        assert row.strip().split("_")[3] == "0"
        assert row.endswith(f"{i}")
    with pytest.raises(AttributeError, match="no attribute 'no_such_thing'"):
        _ = Document(1)[0].no_such_thing


def test_a_pickle_that_is_not_there_has_the_parts_that_it_is_taken_apart_into(script: Write) -> None:
    text = """
        import pickle, torch
        with open("data/graphs.pkl", "rb") as file:
            assert len(pickle.load(file)) > 0
        with open("data/graphs.pkl", "rb") as file:
            (adjacency, features) = torch.load(file)
        model = torch.nn.Linear(features.shape[1], 7).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(4):
            model(features[:8].cuda()).sum().backward()
            optimizer.step(); optimizer.zero_grad()
    """
    graph = foretell.capture_graph(script(text, fake_data=True))
    assert graph.samples == 8
    (flagged,) = [caveat.text for caveat in graph.caveats if caveat.code == "assumed-size"]
    assert "data/graphs.pkl" in flagged


@pytest.mark.parametrize(
    ("path", "mode"),
    [("d/annotations/training/1.png", "L"), ("d/images/training/1.jpg", "RGB"), ("label2city/train/a/1.png", "RGB")],
)
def test_masks_are_known_by_the_nearest_folder_that_names_them(path: str, mode: str) -> None:
    assert pictures._mode(path) == mode


def test_pictures_are_as_large_as_a_name_says() -> None:
    assert size_of("datasets/cifar10-32x32.zip") == (32, 32)
    assert size_of("data_64x64/pictures.zip") == size_of("pictures.zip")


def test_a_file_of_tensors_with_a_state_in_it_is_a_checkpoint(script: Write) -> None:
    text = """
        import torch
        model = torch.nn.Linear(8, 4)
        saved = torch.load("/data/pictures/small.pth.tar")
        for name in model.state_dict():
            assert name not in saved["state_dict"] or saved["state_dict"][name].size()
        model.load_state_dict(saved["state_dict"], strict=False)
        model = model.cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(saved["epoch"], 4):
            model(torch.randn(2, 8).cuda()).sum().backward()
            optimizer.step(); optimizer.zero_grad()
    """
    assert foretell.capture_graph(script(text, fake_data=True)).samples == 2
