"""Files and folders that are not on this machine, each as the script uses it; and what a script writes and reads again."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch

import foretell
from foretell.capture.script.pretend.files import checksums, kinds, stores
from foretell.capture.script.pretend.files.checkpoints import IN_PLACE, Checkpoint
from foretell.capture.script.pretend.files.patterns import name_of
from foretell.capture.script.pretend.lacking import StandInError
from foretell.capture.script.session import Session
from foretell.errors import WorkloadError
from tests.capture.script.conftest import Write

STEPS = """
    import torch
    model = torch.nn.Linear({width}, 4).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(5):
        model(torch.randn(8, {width}).cuda()).sum().backward()
        optimizer.step(); optimizer.zero_grad()
"""

EVERY_KIND = """
    import csv, glob, json, os, pathlib, pickle, wave
    import numpy as np
    from PIL import Image, ImageFont

    root = "/nowhere/data"
    assert os.path.isfile("/nowhere/070") and pathlib.Path("/nowhere/071").is_file() and os.path.isdir("/nowhere/a.b")
    assert ImageFont.truetype("NoFontOfThisMachine.ttf", 20).getbbox("a")
    assert os.path.isdir(root) and os.path.isfile(root + "/train.txt") and pathlib.Path(root, "images").exists()
    assert not os.path.exists("/nowhere/output") and not os.path.isfile("/nowhere/checkpoints/last.pth")
    pictures = [name for name in sorted(os.listdir(root + "/images")) if name.endswith(".png")]
    masks = sorted(os.listdir(root + "/masks"))
    assert len(pictures) > 1000 and pictures == masks, (pictures[:2], masks[:2])
    assert np.asarray(Image.open(os.path.join(root, "images", pictures[0]))).ndim == 3
    assert np.asarray(Image.open(os.path.join(root, "masks", masks[0]))).ndim == 2
    assert all(path.endswith(".wav") for path in glob.glob(root + "/speech/*/*.wav"))
    assert len(list(pathlib.Path(root).rglob("*.jpg"))) > 1000
    assert glob.glob("/nowhere/output/*.pth") == []

    def results(folder, again=False):
        folder = pathlib.Path(folder)
        if not again and folder.exists():
            raise RuntimeError(f"{folder} is there already")
        folder.mkdir(parents=True, exist_ok=True)
        start = os.getcwd()
        os.chdir(folder)
        open("log.txt", "w").close()
        os.chdir(start)
        assert (folder / "log.txt").exists()
    results("found/cifar10/first")
    results("/nowhere/cifar10/first")

    def classes():
        found = []
        for kind in os.listdir(root + "/by_class"):
            for name in os.listdir(os.path.join(root, "by_class", kind)):
                found.append((kind, name))
        return found
    assert len({kind for kind, _ in classes()}) > 1

    def listed():
        for line in open(root + "/train.txt"):
            image, label = line.strip().split()
            yield os.path.join(root, image), int(label)
    assert len(list(listed())) > 1000

    def strict(path):
        for line in open(path).readlines():
            parts = line.rstrip().split(" ")
            if len(parts) != 3:
                raise RuntimeError("a wrong line in the list of images")
            yield os.path.join(root, parts[0])
    assert len(list(strict(root + "/val.txt"))) > 1000

    with open(root + "/rows.csv") as file:
        rows = csv.reader(file)
        next(rows)
        assert [int(count) + float(share) for name, count, share in rows]
    document = json.load(open(root + "/annotations.json"))
    assert all(image["file_name"].endswith(".jpg") and image["height"] > 0 for image in document["images"][:9])
    examples = [json.loads(line) for line in open(root + "/train.jsonl")]
    assert "fox" in examples[0]["instruction"] and examples[0].get("input", "") != ""
    assert pickle.load(open(root + "/items.pkl", "rb"))[3]["text"].strip()
    with wave.open(open(root + "/a.wav", "rb")) as sound:
        assert sound.getframerate() == 16000
    def letters(path):
        return sorted(set(open(path).read()))
    assert len(letters(root + "/input.txt")) == 65
    try:
        ready = open(root + "/found_before.json")
    except FileNotFoundError:
        ready = None
    assert ready is None
"""

WRITES = """
    import numpy as np, os, shutil, sqlite3, torch
    os.makedirs("data/made")
    assert os.listdir("data/made") == [], "what the script makes is empty"
    np.save("data/made/x.npy", np.arange(3))
    assert os.listdir("data/made") == ["x.npy"] and np.load("data/made/x.npy").tolist() == [0, 1, 2]
    torch.save({"epoch": 3, "weights": torch.nn.Linear(2, 2).cuda().state_dict()}, "best.pt")
    assert os.path.isfile("best.pt") and torch.load("best.pt")["epoch"] == 3
    shutil.copyfile("best.pt", "last.pt")
    os.replace("last.pt", "newest.pt")
    assert torch.load("newest.pt")["weights"]["weight"].shape == (2, 2) and not os.path.exists("last.pt")
    shutil.copy("train.py", "data/made/copy.py")
    assert "shutil" in open("data/made/copy.py").read()
    os.makedirs("data/gone/deep"); open("data/gone/deep/x.txt", "w").close()
    shutil.move("data/gone", "data/there")
    assert os.listdir("data/there/deep") == ["x.txt"] and not os.path.exists("data/gone")
    shutil.rmtree("data/there")
    assert not os.path.exists("data/there") and os.statvfs("data/made").f_namemax
    base = sqlite3.connect("rows.db")
    base.execute("create table rows (x integer)")
    descriptor = os.open("plain.txt", os.O_WRONLY | os.O_CREAT)
    os.write(descriptor, b"abc"); os.close(descriptor)
    assert open("plain.txt").read() == "abc"
"""

PREPARED = """
    import os, pickle
    words = 50304
    if os.path.exists("data/meta.pkl"):
        with open("data/meta.pkl", "rb") as f:
            words = pickle.load(f)["vocab_size"]
    assert words == 65 and not os.path.exists("data/other_vocab.pkl")
"""


def test_files_and_folders_are_what_they_are_used_as(script: Write) -> None:
    graph = foretell.capture_graph(script(EVERY_KIND + STEPS.format(width=16), fake_data=True))
    assert graph.facts.inputs == (8, 16)
    (told,) = [c.text for c in graph.caveats if c.code == "fake-data"]
    assert "/nowhere/data/train.txt" in told
    assert "pictures in /nowhere/data/images (500 × 375)" in told


def test_what_a_script_writes_is_read_again_and_nothing_changes_here(script: Write, tmp_path: Path) -> None:
    foretell.capture_graph(script(WRITES + STEPS.format(width=16)))
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


def test_a_table_that_the_data_s_own_program_would_write_is_there_and_its_size_is_flagged(
    script: Write, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "prepare.py").write_text("pickle.dump(meta, open('meta.pkl', 'wb'))\n")
    graph = foretell.capture_graph(script(PREPARED + STEPS.format(width=16), fake_data=True))
    (flagged,) = [c.text for c in graph.caveats if c.code == "assumed-size"]
    assert "data/meta.pkl" in flagged
    assert "data/other_vocab.pkl (not there: the script goes on without it)" in flagged


LEAVES = """
    import sys, types
    import torch
    from torch.nn.parallel.data_parallel import DataParallel
    assert DataParallel is torch.nn.DataParallel

    class Kept(torch.nn.Linear):
        def forward(self, x):
            self.loss = super().forward(x).sum()
            return self.loss

    class Endless(torch.utils.data.IterableDataset):
        def __iter__(self):
            while True:
                yield torch.randn(16)

    model = Kept(16, 4).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = iter(torch.utils.data.DataLoader(Endless(), batch_size=8))
    for step in range(5):
        with torch.no_grad():
            for _ in range(9):
                model(next(batches).cuda())
        for micro in range(4):
            model(next(batches).cuda())
            model.loss.backward()
        counts = torch.histc(torch.arange(9).cuda(), bins=3, min=0, max=9)
        optimizer.step(); optimizer.zero_grad()
"""


def test_losses_that_a_module_keeps_are_new_and_data_without_an_end_does_not_end(script: Write) -> None:
    graph = foretell.capture_graph(script(LEAVES))
    assert graph.grad_accumulation == 4


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("/nowhere/imagenet/train", True), ("datasets/coco", True), ("given/by/argument", True), ("corpus.txt", True),
        ("out/images", False), ("project/characters", False), ("checkpoints/data", False), ("setting", False), ("data/x.yaml", False),
        ("data/reports", False), ("data/reports/labels", False), ("data/images", True), ("trainsets/trainH", True),
    ],
)  # fmt: skip
def test_paths_of_data_are_told_from_those_of_results(path: str, wanted: bool) -> None:
    arguments = (
        "--epochs",
        "9",
        "--data-dir",
        "given/by",
        "--save_data",
        "kept/there",
        "--config=a/b.yaml",
        "-o",
        "x/y",
        "--output_dir",
        "data/reports/",
    )
    given = kinds.given_in(arguments)
    assert given.data == {str(Path("given/by").absolute())}
    assert kinds.is_data(path, given, str(Path.cwd())) is wanted


def test_a_package_that_lists_its_own_modules_finds_them(script: Write, tmp_path: Path) -> None:
    package = tmp_path / "data_tools"
    package.mkdir()
    (package / "__init__.py").write_text(
        "import os\nmodules = [n[:-3] for n in os.listdir(os.path.dirname(__file__)) if n[0] != '_' and n.endswith('.py')]\n"
    )
    (package / "steps.py").write_text("size = 4\n")
    text = """
        import torch, data_tools

        assert data_tools.modules == ["steps"], data_tools.modules
        model = torch.nn.Linear(4, 4).cuda()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(4):
            model(torch.randn(6, 4).cuda()).sum().backward()
            optimizer.step()
    """
    assert foretell.capture_graph(script(text, fake_data=True)).samples == 6


def test_what_a_library_looks_for_in_its_own_folders_is_not_made_up(script: Write) -> None:
    """Nor is a network: who looks whether there is one finds none."""
    text = """
        import importlib.metadata, pathlib, socket, torch
        from torch.distributed.optim import ZeroRedundancyOptimizer

        missing = pathlib.Path(torch.__file__).parent / "words.txt"
        try:
            missing.read_text()
        except FileNotFoundError:
            pass
        else:
            raise AssertionError("a text in a library's folder")
        assert len(importlib.metadata.packages_distributions()) < 2000
        try:
            socket.create_connection(("1.1.1.1", 80), timeout=1)
        except OSError:
            pass
        model = torch.nn.Linear(4, 4).cuda()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(4):
            model(torch.randn(2, 4, device="cuda")).sum().backward()
            optimizer.step()
    """
    assert foretell.capture_graph(script(text, fake_data=True)).facts.parameters == 20


PACKED = """
    import bz2, glob, gzip, os, re
    import numpy as np

    with gzip.open("./data/enwik8.gz") as file:  # of a known size
        assert len(file.read(int(95e6))) == 95_000_000
    with gzip.open("./data/train-labels-idx1-ubyte.gz", "rb") as file:
        labels = np.frombuffer(file.read(), dtype=np.uint8, offset=8)
    with gzip.open("./data/train-images-idx3-ubyte.gz", "rb") as file:
        images = np.frombuffer(file.read(), dtype=np.uint8, offset=16).reshape(len(labels), 784)
    assert len(set(labels)) == 10 and len(images) == 60_000
    def news():
        with bz2.open("./data/news.txt.bz2", "rt") as file:
            return file.readline().split()
    assert len(news()) > 5

    def kind(path):
        return re.search(r"^(.*)_\\d+\\.jpg$", os.path.basename(path)).groups()[0]

    def shards(split):
        names = os.listdir("fineweb10B")  # without which the script ends; only its filter says what is in it
        return [name for name in names if split in name]
    assert shards("train") and shards("val")
    if not os.path.isdir("/nowhere/CUB"):
        raise SystemExit("no birds")
    tokens = np.load(os.path.join("fineweb10B", shards("train")[0])).astype(np.int64)
    assert tokens.ndim == 1 and len(tokens) > 100_000

    stems = [os.path.splitext(name)[0] for name in os.listdir("data/imgs") if os.path.isfile("data/imgs/" + name)]
    masks = list(__import__("pathlib").Path("data/masks").glob(stems[3] + "_mask.*"))
    assert len(masks) == 1, masks
    lines = open("data/celeba/list_attr_celeba.txt").read().splitlines()
    assert len(lines) == 202_601 and len(lines[1].split()) == 40 and len(lines[2].split()) == 41
    words = set(open("data/penn/train.txt").read().split())
    assert len(words) == 9_999

    with open("data/flow/00000.flo", "rb") as file:
        mark, width, height = (np.fromfile(file, kind, count=1) for kind in (np.float32, np.int32, np.int32))
        assert len(np.fromfile(file, np.float32, count=2 * int(width) * int(height))) == 2 * 500 * 375

    views = __import__("json").load(open("data/nerf_synthetic/lego/transforms_train.json"))
    assert np.array([frame["transform_matrix"] for frame in views["frames"]]).shape == (100, 4, 4)
    assert 0 < np.tan(views["camera_angle_x"] / 2) < 1

    def pairs(path):
        for line in open(path).read().splitlines():
            image_path, mask_path = line.split(",")
            yield image_path, mask_path
    assert next(pairs("data/images.txt"))[1].startswith("labels/")

    def boxes(path):
        for line in open(path):
            image, *numbers = line.split()
            xmin, ymin, xmax, ymax = map(float, numbers[:4])
            yield os.path.join("images", image), xmax - xmin, int(numbers[4])
    assert all(width > 0 for _, width, _ in boxes("data/listed.txt"))

    names = [name for name in os.listdir("/nowhere/data/images") if name.endswith(".jpg")]
    found = glob.glob("/nowhere/data/images/*.jpg")
    assert len(set(names)) == len(names) == len({*map(os.path.basename, found)})
    assert len({kind(name) for name in names}) == len({kind(path) for path in found}) == 10
"""


@pytest.mark.slow
def test_packed_files_and_names_that_a_script_takes_apart(script: Write) -> None:
    graph = foretell.capture_graph(script(PACKED + STEPS.format(width=8), fake_data=True))
    sizes = [note.what for note in graph.facts.notes if note.decides_size]
    assert any("names of files" in what for what in sizes)
    assert graph.facts.parameters == 36


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ('re.search(r"^(.*)_\\d+\\.jpg$", name)', ("classa_0.jpg", "classb_11.jpg")),
        ('re.compile(r"([-\\d]+)_c(\\d)")', ("0000_c1s1_000000.png", "0011_c1s1_000011.png")),
        ('name.split("_")[1]', ("0_0_00000.png", "1_1_00011.png")),
        ('re.match(r"(\\d+)", name)', ("00000.png", "00011.png")),
        ("name[:-4]", ("00000.png", "00011.png")),
    ],
)
def test_names_are_those_that_code_takes_apart(tmp_path: Path, code: str, names: tuple[str, str]) -> None:
    path = tmp_path / "data.py"
    path.write_text(f"import re\nparts = {code}\n")
    assert (name_of(0, ".png", str(path)), name_of(11, ".png", str(path))) == names


OF_HUB = """
    import json, sys, torch
    from huggingface_hub import hf_hub_download
    from safetensors.torch import load_file

    hf_hub_download("someone/nets", filename="config.json")
    model = torch.nn.Linear(4, 4).cuda()
    model.load_state_dict(load_file(hf_hub_download("someone/nets", filename="model.safetensors")))
    model.load_state_dict(state_dict=torch.load(hf_hub_download("someone/nets", "pytorch_model.bin")))
    rows = json.load(open(hf_hub_download("someone/nets", "config.json")))["rows"] if sys.argv[1:] else 2
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        model(torch.randn(rows, 4).cuda()).sum().backward()
        optimizer.step()
"""


def test_files_of_the_hub_are_stood_in_for_and_settings_wanted(
    script: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights are weights; settings that are read can be put where the message says."""
    monkeypatch.chdir(tmp_path)
    assert foretell.capture_graph(script(OF_HUB, fake_data=True)).facts.inputs == (2, 4)
    settings = tmp_path / "someone" / "nets" / "config.json"
    with pytest.raises(WorkloadError, match=rf"reads {settings} in line 10"):
        foretell.capture_graph(script(OF_HUB, fake_data=True, arguments=("read",)))
    settings.parent.mkdir(parents=True)
    settings.write_text('{"rows": 6}')
    assert foretell.capture_graph(script(OF_HUB, fake_data=True, arguments=("read",))).facts.inputs == (6, 4)


BY_USE = """
    import io, os, urllib.request
    import numpy as np
    import torch
    from PIL import Image
    from urllib.request import urlretrieve

    os.makedirs("pretrained", exist_ok=True)
    if not os.path.exists("pretrained/net-1.pth"):
        urlretrieve("https://example.org/net-1.pth", "pretrained/net-1.pth")
    with open("pretrained/by_hand.pth.tar", "wb") as file:
        file.write(urllib.request.urlopen("https://example.org/by_hand.pth.tar").read())
    net = torch.nn.Linear(16, 4)
    for name in ("net-1.pth", "by_hand.pth.tar"):
        net.load_state_dict(torch.load("pretrained/" + name, map_location="cpu"))
    torch.save({"epoch": 3}, "pretrained/own.pth")
    assert torch.load("pretrained/own.pth")["epoch"] == 3

    def decoded(path):
        with open(path, "rb") as file:
            return Image.open(file).convert("RGB")
    assert decoded("/nowhere/mini/images/01921").size == (500, 375)
    letter = Image.open("data/omniglot/images/0001_01.png")
    assert (letter.mode, letter.size) == ("L", (105, 105))
    assert Image.open("data/celeba/000001.jpg").mode == "RGB"

    urlretrieve("https://example.org/dsprites_64x64.npz", "data/dsprites_64x64.npz")
    shapes = np.load("data/dsprites_64x64.npz", encoding="bytes")
    assert len(shapes["imgs"]) == len(shapes["latents_classes"]) and shapes["imgs"].dtype == np.uint8
    pictures = torch.from_numpy(shapes["imgs"]).unsqueeze(1)
    assert pictures.shape[1:] == (1, 64, 64)
    if not os.path.exists("data/celeba/processed.pt"):  # made of data by the script itself
        torch.save([1, 2], "data/celeba/processed.pt")
    assert torch.load("data/celeba/processed.pt") == [1, 2]

    urlretrieve("https://example.org/input.txt", "data/input.txt")
    assert len(open("data/input.txt").read()) > 10000 and os.system("wget https://example.org/x") == 0
    x = np.load("data/series.npz")["features"]
    uses = [torch.from_numpy, torch.tensor, torch.as_tensor, torch.FloatTensor, np.array, np.asarray, list]
    for use in [*uses, lambda x: x / 255, lambda x: x[0], lambda x: np.stack([x, x])]:
        assert len(use(x))
"""


def test_what_is_downloaded_or_has_no_ending_is_what_it_is_used_as(script: Write) -> None:
    graph = foretell.capture_graph(script(BY_USE + STEPS.format(width=16), fake_data=True))
    assert graph.facts.parameters == 68


def test_a_look_at_the_first_of_a_checkpoint_that_is_not_here_finds_a_name() -> None:
    found = Checkpoint()
    assert not next(iter(found.items()))[0].startswith("module")
    assert not list(found.keys())[0].startswith("module")  # noqa: RUF015
    first = next(iter(found))
    assert first == ""
    assert {name: value for name, value in found.items()} == {}  # noqa: C416
    assert set(found.keys()) == set()


def test_a_checkpoint_that_is_not_here_has_the_states_that_a_script_ends_without() -> None:
    found = Checkpoint()
    assert all(name in found for name in ("state_dict", "model", "model_state_dict"))
    assert not any(name in found for name in ("optimizer", "layer1.weight"))


def test_what_is_computed_of_weights_that_are_not_here_is_as_unknown() -> None:
    found = Checkpoint()
    found["conv1.weight"] = torch.cat([found["conv1.weight"]] * 2, 1) / 2
    found["pos_embed"] = torch.nn.functional.interpolate(found["pos_embed"].permute(0, 2, 1), size=7).mean(
        1, keepdim=True
    )
    assert all(isinstance(value, Checkpoint) for value in dict.values(found))
    net = torch.nn.Conv2d(6, 8, 3)
    before = net.weight.clone()
    net.weight.data.copy_(found["conv1.weight"])
    assert torch.equal(net.weight, before)
    with pytest.raises(StandInError, match="shape"):
        found["conv1.weight"].shape  # noqa: B018


def test_names_in_a_store_of_arrays_are_bytes() -> None:
    store = stores._Unshaped(Session(foretell.Script(path="train.py")), "data/waveforms.h5", "utf-8")
    assert store["audio_name"][3].decode() == "00003"
    assert len(store["hdf5_path"][:]) == 2039


def test_a_check_sum_of_what_is_stood_in_for_is_the_one_it_is_compared_with() -> None:
    real, stood_in = checksums.Sum(hashlib.sha256()), checksums.Sum(hashlib.sha256())
    real.update(b"weights")
    stood_in.update(IN_PLACE)
    assert stood_in.hexdigest() == "0" * 64 != real.hexdigest()
    assert not stood_in.hexdigest() != "0" * 64  # noqa: SIM202


VERIFIED = """
    import hashlib, os, requests, torch

    def fetch(address, destination):
        with requests.get(address, stream=True) as answer, open(destination, "wb") as file:
            for part in answer.iter_content(1024):
                file.write(part)
        with open(destination, "rb") as file:
            found = hashlib.md5(file.read()).hexdigest()
        assert found == "d507d7349b931f0638a25a48a722f98a", found
        return destination

    model = torch.nn.Linear(4, 4)
    model.load_state_dict(torch.load(fetch("https://drive.example.org/uc?export=download", "parts/vgg.pth")), strict=False)
    model.cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        model(torch.randn(2, 4).cuda()).sum().backward()
        optimizer.step()
"""


def test_weights_behind_an_address_without_a_name_are_those_that_are_written(script: Write) -> None:
    pytest.importorskip("requests")
    assert foretell.capture_graph(script(VERIFIED, fake_data=True)).facts.parameters == 20
