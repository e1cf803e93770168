"""Arrays of which nobody knows the shape: it is made up, and made up anew where the script contradicts it."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
import torch
from PIL import Image

import foretell
from foretell.capture.script.ended import Ended
from foretell.capture.script.guesses import COLUMNS, LONG, RUNS, Contradicted, Guesses
from foretell.capture.script.misread import (
    arrays_of_pictures,
    arrays_too_small,
    extents_in_words,
    misread_texts,
    tables_of_numbers,
    tables_too_long,
)
from foretell.capture.script.pretend.files import ids
from foretell.capture.script.pretend.files.arrays import known_array
from foretell.capture.script.pretend.files.guessed import guessed
from foretell.capture.script.pretend.files.lines import list_of_files
from foretell.capture.script.pretend.files.shapeless import Unshaped
from foretell.capture.script.revised import frames_of
from foretell.capture.script.session import Session
from foretell.capture.script.shapes import is_made_up, replaced, reshaped
from foretell.capture.script.taking import _of_view, contradictions
from foretell.errors import CaptureError
from tests.capture.script.conftest import Write


@pytest.fixture
def session() -> Session:
    return Session(foretell.Script(path="train.py"))


def shown_by(use: object, session: Session, name: str = "x.npy") -> list[int]:
    """The shape that a use shows an array to have."""
    with pytest.raises(Contradicted) as caught:
        use(guessed(session, name))  # type: ignore[operator]
    (shown,) = caught.value.shown.values()
    return list(shown["shape"])


def unpack_three(x: np.ndarray) -> None:
    _rows, _channels, _times = x.shape


def test_uses_show_how_many_dimensions_an_array_has(session: Session) -> None:
    assert shown_by(unpack_three, session) == [2039, 61, 67]
    assert len(shown_by(lambda x: x[:, :, 0, 1], session)) == 4
    assert len(shown_by(lambda x: x.shape[2], session)) == 3
    assert len(shown_by(lambda x: x.transpose(0, 3, 1, 2), session)) == 4
    assert shown_by(lambda x: x.reshape((3, 3)), session) == [3, 3]
    assert shown_by(lambda x: x.reshape(len(x), 28, 28), session) == [2039, 784]
    assert reshaped([2039, 61], [-1, 4]) == [2039, 4]


def test_what_fits_is_left_as_it_is(session: Session) -> None:
    x = guessed(session, "x.npy")
    rows, columns = x.shape
    assert (rows, columns) == x.T.shape[::-1] == np.rot90(x).shape[::-1]
    assert x.reshape(-1).size == rows * columns
    assert np.isfinite(x / x.std()).all()
    assert x["inner"].about != x.about
    assert len(list(x)) == rows
    assert x[rows + 5].shape == x[[1, rows + 7]].shape[1:]


def test_a_guess_is_not_made_twice_and_runs_end() -> None:
    guesses = Guesses({"tried x": [1], "x": 2})
    assert guesses.about("x", 0) == 2
    assert not guesses.is_new("x", 1)
    assert guesses.is_new("x", 3)
    known = guesses.after({"x": 3})
    assert known.pop("worked") > 0
    assert known == {"tried x": [1, 2], "x": 3, "runs": 2}
    assert not Guesses({"worked": LONG}).is_new("x", 3)
    assert not Guesses({"runs": RUNS}).is_new("x", 3)


def test_an_extent_is_found_again_in_a_product(session: Session) -> None:
    guessed(session, "x.npy", [61, 67])
    (made,) = replaced(session.guesses, 61 * 67 * 2, 28 * 28 * 2).values()
    assert made["shape"] == [28, 28]


def test_a_model_shows_what_it_takes(script: Write) -> None:
    """Channels, dimensions and classes follow from modules and losses; arrays of one file have the same rows."""
    graph = foretell.capture_graph(
        script(
            """
            import numpy as np
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset

            x, y = np.load("data/x_train.npy"), np.load("data/y_train.npy")
            x = (x - x.mean()) / x.std()
            rows = TensorDataset(torch.from_numpy(x).float(), torch.from_numpy(y).long())
            model = nn.Sequential(nn.Conv1d(9, 16, 3), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(16, 10)).cuda()
            optimizer = torch.optim.Adam(model.parameters())
            for inputs, labels in DataLoader(rows, batch_size=32):
                loss = nn.functional.cross_entropy(model(inputs.cuda()), labels.cuda())
                optimizer.zero_grad(); loss.backward(); optimizer.step()
            """,
            fake_data=True,
        )
    )
    assert graph.samples == 32
    assert graph.facts.inputs[:2] == (32, 9)
    assert len(graph.facts.inputs) == 3
    assert any("data/x_train.npy (2039 × 9" in caveat.text for caveat in graph.caveats)


def test_names_and_texts_are_those_that_the_script_looks_for(script: Write) -> None:
    """Names in two files are shared, a text whose lines are paths lists folders, a pickle is known by its reader."""
    graph = foretell.capture_graph(
        script(
            """
            import os, pickle
            import numpy as np
            import torch
            from torch import nn

            sizes = {"chair": 4, "table": 2, "lamp": 3}
            with open("data/categories2number.txt") as file:
                classes = [line.strip().split()[0] for line in file]
            parts = max(sizes[name] for name in classes)
            scenes = [os.path.join("data", scene[:-1]) for scene in open("data/train.txt")]
            intrinsics = np.genfromtxt(os.path.join(scenes[0], "cam.txt")).astype(np.float32).reshape((3, 3))
            with open("data/samples.lst", "rb") as file:
                names, labels = pickle.load(file)
            joints = np.load("data/joints.npy")
            batch = torch.from_numpy(joints[:16]).float().cuda()
            shift = torch.zeros(25).cuda()
            model = nn.Conv1d(3, len(classes), 1).cuda()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for step in range(4):
                samples, channels, points = batch.size()
                model(batch + shift).sum().backward()
                optimizer.step(); optimizer.zero_grad()
            """,
            fake_data=True,
        )
    )
    assert graph.facts.parameters == 3 * 3 + 3
    assert graph.facts.inputs == (16, 3, 25)


def test_a_sum_over_letters_shows_the_extent_of_each() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.einsum("nv,vw->nw", torch.zeros(4, 207), torch.zeros(61, 67))
    (found,) = [frame for frame, _ in frames_of(caught.value) if frame.f_code.co_name == "einsum"]
    assert [given.extents for given in contradictions(found)] == [((207, 61),), ((61, 207),)]


def test_a_state_of_batches_shows_that_a_recurrent_layer_takes_batches() -> None:
    layer = torch.nn.LSTM(67, 8, batch_first=True)
    state = torch.zeros(1, 61, 8)
    with pytest.raises(RuntimeError) as caught:
        layer(torch.zeros(61, 67), (state, state))
    (given, *_) = (given for frame, _ in frames_of(caught.value) for given in contradictions(frame))
    assert (given.shape, given.more) == ((61, 67), 1)


def test_prose_that_is_read_otherwise_is_of_another_kind() -> None:
    guesses = Guesses()
    guesses.about("text of a.txt", "words")
    prose = "Aaa the quick brown fox jumps over the lazy dog"
    for read, kind in ((int, "names"), (float, "names"), (json.loads, "records")):
        with pytest.raises(ValueError) as caught:  # noqa: PT011
            read(prose)
        assert misread_texts(ended_by(caught.value), guesses) == {"text of a.txt": kind}
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        list(map(int, prose.split()[2].split(",")))
    assert misread_texts(ended_by(caught.value), guesses) == {"text of a.txt": "names"}
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        int("a name of the script's own")
    assert misread_texts(ended_by(caught.value), guesses) == {}


def test_an_array_that_a_picture_is_made_of_has_three_channels(session: Session) -> None:
    rows = guessed(session, "x.npy", [2039, 61, 67, 71])
    with pytest.raises(TypeError) as caught:
        Image.fromarray(rows[0])
    shown = arrays_of_pictures(ended_by(caught.value), session.guesses)
    assert list(shown.values()) == [{"shape": [2039, 61, 67, 3], "dtype": "uint8"}]


def test_arrays_that_are_too_small_to_cut_from_grow(session: Session) -> None:
    x = guessed(session, "x.npy", [61, 67, 3])
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        random.randint(0, x.shape[0] - 128)
    ((about, made),) = arrays_too_small(ended_by(caught.value), session.guesses).items()
    assert made["shape"] == [251, 269, 3]
    assert about == x.about
    assert all(is_made_up(extent) for extent in made["shape"][:2])


def test_a_table_that_is_computed_with_has_columns_of_numbers() -> None:
    guesses = Guesses()
    guesses.about(COLUMNS, "files")
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        np.zeros(2)[:] = np.array(["00000.jpg", "00001.jpg"], dtype=object)
    assert tables_of_numbers(ended_by(caught.value), guesses) == {COLUMNS: "numbers"}
    assert tables_of_numbers(ended_by(ValueError("another")), guesses) == {}


def test_a_table_has_no_more_rows_than_an_array_has_places_for() -> None:
    guesses = Guesses()
    guesses.about("rows of the table distance.csv", 4096)
    with pytest.raises(IndexError) as caught:
        np.zeros((307, 307))[307, 0] = 1
    assert tables_too_long(ended_by(caught.value), guesses) == {"rows of the table distance.csv": 307}
    with pytest.raises(IndexError) as caught:
        np.zeros((307, 307))[5000, 0] = 1
    assert tables_too_long(ended_by(caught.value), guesses) == {}


POSITIONS = """
    import glob, os
    import numpy as np, torch
    from torch import nn

    class Pairs(torch.utils.data.Dataset):
        def __init__(self):
            found = sorted(glob.glob("/data/pairs/masks/**/*.npy", recursive=True))
            self.masks = [m for m in found if os.path.isfile(os.path.join("/data/pairs/imgs", os.path.basename(m)))]

        def __len__(self):
            return len(self.masks)

        def __getitem__(self, i):
            image = np.load(os.path.join("/data/pairs/imgs", os.path.basename(self.masks[i])))
            return torch.tensor(np.transpose(image, (2, 0, 1))).float()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.patches = nn.Conv2d(3, 8, 8, 8)
            self.positions = nn.Parameter(torch.zeros(1, 16, 32, 8))

        def forward(self, x):
            return self.patches(x).permute(0, 2, 3, 1) + self.positions

    net = Net()
    with open("/data/weights/net.pth", "rb") as file:
        net.load_state_dict(torch.load(file))
    try:
        steps = torch.load("/data/prepared/steps.tar")["steps"]
    except FileNotFoundError:
        print("not there yet")
        steps = [1] * 7
    net.cuda()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _, x in zip(steps, torch.utils.data.DataLoader(Pairs(), batch_size=2)):
        net(x.cuda()).sum().backward()
        optimizer.step()
"""


def test_pictures_have_as_many_features_as_a_net_has_positions(script: Write) -> None:
    """Masks and pictures of the same names in two folders; what the script makes when it is missing is not made up."""
    graph = foretell.capture_graph(script(POSITIONS, fake_data=True))
    assert graph.facts.inputs == (2, 3, 128, 256)


SHORT = """
    import random
    import torch
    from torch import nn

    words = {}
    with open("/data/talk/lines.txt") as file:
        lines = iter([line.strip().split(" ") for line in file])
    pairs = [(line, next(lines)) for line in lines]
    pairs = [pair for pair in pairs if max(map(len, pair)) < 10]
    for word in [word for pair in pairs for line in pair for word in line]:
        words.setdefault(word, len(words))
    model = nn.Embedding(10_000, 8).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(5):
        batch = [random.choice(pairs)[0] for _ in range(4)]
        model(torch.tensor([[words[word] % 10_000 for word in line] for line in batch]).cuda()).sum().backward()
        optimizer.step()
"""


def test_lines_are_short_where_long_ones_are_left_out(script: Write) -> None:
    graph = foretell.capture_graph(script(SHORT, fake_data=True))
    assert graph.facts.inputs == (4, 7)


def test_two_shapes_that_an_error_names_become_one(session: Session) -> None:
    x = guessed(session, "x.npy", [61, 67])
    words = "ground truth has different shape (torch.Size([2, 1, 61, 67])) from input (torch.Size([2, 1, 61, 1024]))"
    assert extents_in_words(ended_by(AssertionError(words)), session.guesses) == {
        x.about: {"shape": [61, 1024], "dtype": "float32"}
    }
    assert extents_in_words(ended_by(AssertionError("Size([2, 3]) is not Size([2, 4])")), session.guesses) == {}


@pytest.mark.parametrize(("left", "right"), [((8, 61), (307,)), ((8, 61), (307, 4)), ((8, 307), (61, 4))])
def test_what_is_multiplied_fits(session: Session, left: tuple[int, ...], right: tuple[int, ...]) -> None:
    x = guessed(session, "x.npy", [61, 67])
    with pytest.raises(RuntimeError) as caught:
        torch.matmul(torch.zeros(left), torch.zeros(right))
    shown = {x.about: {"shape": [307, 67], "dtype": "float32"}}
    assert extents_in_words(ended_by(caught.value), session.guesses) == shown


def ended_by(error: Exception) -> Ended:
    return Ended(script=foretell.Script(path="train.py", fake_data=True), error=error)


def test_curves_along_a_sound_are_as_long_as_what_they_are_added_to(session: Session) -> None:
    curve = known_array(session, "data/pitch/00001.npy", "", None)
    assert curve.shape == (400,)
    assert curve.min() == 1
    assert [made["shape"] for made in replaced(session.guesses, 400, 111).values()] == [[111]]


def test_keys_of_an_array_are_names_of_as_many_parts_as_are_taken(session: Session) -> None:
    for arrays in (guessed(session, "data/train_2d.npz"), Unshaped(session, "data/train_3d.pth.tar", tensors=True)):
        for key in list(arrays.keys()):
            _subject, _action, name = key
            assert not name.endswith("-sh")
            rows, _ = arrays[key].shape
            assert rows > 1000


def test_lists_for_tests_are_shorter(session: Session) -> None:
    train, test = (list_of_files(session, f"data/{name}_files.txt", "").readlines() for name in ("train", "test"))
    assert len(train) == 8 * len(test) == 2048


AGAIN = """
    import os, signal
    import numpy as np, torch

    assert "first" not in globals()
    first = np.load("data/first.npy")
    rows, channels, times = first.shape
    {then}
    model = torch.nn.Linear(4, 4).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(5):
        model(torch.randn(8, 4).cuda()).sum().backward()
        optimizer.step(); optimizer.zero_grad()
"""


def test_every_run_begins_anew_and_a_crash_of_a_later_one_is_told(script: Write) -> None:
    assert foretell.capture_graph(script(AGAIN.format(then=""), fake_data=True)).samples == 8
    with pytest.raises(CaptureError, match="SIGTERM"):
        foretell.capture_graph(script(AGAIN.format(then="os.kill(os.getpid(), signal.SIGTERM)"), fake_data=True))


@pytest.mark.parametrize(
    ("source", "first", "last"),
    [
        ("u, i = line.rstrip().split(' ')\nu = int(u)\ni = int(i)", "1 1", 2),
        ("user, item, label = line.split('\\t')\nx.append((int(user), int(item), int(label)))", "1\t1\t0", 3),
        ("parts = line.strip('\\n').split(' ')\nseen = [int(i) for i in parts[1:]]\nwho = int(parts[0])", "1 1", 16),
        ("rows = [list(map(int, line.split(','))) for line in file]", "1,1", 16),
    ],
)
def test_lines_that_are_read_as_whole_numbers_have_numbers_from_one_on(
    session: Session, source: str, first: str, last: int
) -> None:
    text = ids.numbers(session, "data/train.txt", source)
    assert text is not None
    lines = text.read().splitlines()
    mark = "," if "," in first else first[1]
    assert lines[0].startswith(first)
    assert {line.count(mark) for line in lines} == {last - 1}
    rows = [list(map(int, line.split(mark))) for line in lines]
    assert (min(row[0] for row in rows), max(row[0] for row in rows)) == (1, 1024)
    assert len({row[1] for row in rows[:16]}) == 16  # what one has seen differs


def test_lines_that_have_a_name_first_are_no_numbers(session: Session) -> None:
    source = "line = row.split()\nimage = Image.open(line[0])\nbox = [int(x) for x in line[1].split(',')]"
    assert ids.numbers(session, "data/train.txt", source) is None
    assert ids.numbers(session, "data/train.txt", "name, count = line.split()\ncount = int(count)") is None
    ratings = ids.numbers(session, "ml/ratings.dat", "u, i, r, t = line.split('::')\nkeep(int(u), int(i))")
    assert ratings is not None
    assert ratings.readline().count("::") == 3
    seen = ids.numbers(session, "data/ml-1m.txt", "u, i = line.rstrip().split(' ')\nkeep(int(u), int(i))")
    assert seen is not None
    assert len({line.split()[0] for line in seen}) == 6040


def test_a_view_with_an_open_side_shows_what_the_others_are() -> None:
    (given,) = _of_view((64, 61, 67), (64, 61, 25, -1))
    assert given.extents == ((67, 75),)
    assert list(_of_view((64, 61, 75), (64, 61, 25, -1))) == []
    assert list(_of_view((64, 0), (64, 3, -1))) == []


def test_weights_of_classes_and_what_is_expanded_show_their_shapes(script: Write) -> None:
    text = """
        import numpy as np, torch
        from torch import nn

        class Rows(torch.utils.data.Dataset):
            rows = [None] * 100
            def __len__(self):
                return 100
            def __getitem__(self, i):
                given = self.rows[i].given
                return torch.as_tensor(np.asarray(given)), 1

        weight = torch.from_numpy(np.load("/none/balance.npy").astype(np.float32))
        loss = nn.CrossEntropyLoss(weight=weight).cuda()
        model = nn.Linear(32, 21).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x, y in torch.utils.data.DataLoader(Rows(), 4):
            x = x.cuda().unsqueeze(-1).expand(-1, -1, 16).permute(0, 2, 1)
            loss(model(x).mean(1), y.cuda()).backward()
            optimizer.step(); optimizer.zero_grad()
    """
    graph = foretell.capture_graph(script(text, fake_data=True))
    assert graph.samples == 4
    (listed,) = [c.text for c in graph.caveats if c.code == "fake-data"]
    assert "array /none/balance.npy (21)" in listed
    assert "array given of __getitem__ in train.py (32)" in listed


STEP = """
        model = MODEL.cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x, y in torch.utils.data.DataLoader(Rows(), 4):
            nn.functional.mse_loss(model(x.float().cuda()), y.float().cuda()).backward()
            optimizer.step(); optimizer.zero_grad()
"""


def test_arrays_of_one_file_come_apart_where_one_is_larger(script: Write) -> None:
    text = """
        import numpy as np, torch
        from torch import nn

        class Rows(torch.utils.data.Dataset):
            file = np.load("/none/x3.npz")
            def __len__(self):
                return len(self.file["lr"])
            def __getitem__(self, i):
                return np.expand_dims(self.file["lr"][i], 0), np.expand_dims(self.file["hr"][i], 0)
    """
    model = "nn.Sequential(nn.Conv2d(1, 9, 3, padding=1), nn.PixelShuffle(3))"
    graph = foretell.capture_graph(script(text + STEP.replace("MODEL", model), fake_data=True))
    assert graph.facts.inputs == (4, 1, 61, 67)


def test_pictures_made_of_arrays_have_three_channels(script: Write) -> None:
    text = """
        import pickle, numpy as np, torch
        from PIL import Image
        from torch import nn

        class Rows(torch.utils.data.Dataset):
            def __init__(self):
                with open("/none/small.pickle", "rb") as file:
                    pack = pickle.load(file)
                data = pack["data"].parts_that_it_has_not
                data = [Image.fromarray(x) for x in data]
                self.data = data
            def __len__(self):
                return len(self.data)
            def __getitem__(self, i):
                x = torch.from_numpy(np.array(self.data[i].resize((32, 32)))).permute(2, 0, 1)
                return x, torch.zeros(8, 32, 32)
    """
    model = "nn.Conv2d(3, 8, 3, padding=1)"
    graph = foretell.capture_graph(script(text + STEP.replace("MODEL", model), fake_data=True))
    assert graph.facts.inputs == (4, 3, 32, 32)


def test_arrays_of_an_archive_have_the_names_that_its_reader_asks_for(script: Write) -> None:
    text = """
    import numpy as np, torch

    class Clips:
        def __init__(self, how):
            file = np.load(how["path"])
            self.data = {key: file[key] for key in file.keys()}
            assert set(self.data) == {"clips", "motion"} == set(file.files)

        def batch(self):
            return torch.from_numpy(np.asarray(self.data["motion"][: self.data["clips"].ndim * 4])).float()

    batch = Clips({"path": "/data/moving-clips.npz"}).batch()
    net = torch.nn.Linear(batch.shape[-1], 4).cuda()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for step in range(4):
        optimizer.zero_grad(); net(batch.cuda()).sum().backward(); optimizer.step()
    """
    assert foretell.capture_graph(script(text, fake_data=True)).samples == 8


CROPPED = """
    import random
    import numpy as np, torch
    from torch import nn

    class Pairs(torch.utils.data.Dataset):
        def __len__(self):
            return 64

        def __getitem__(self, i):
            low, high = np.load(f"/data/low/{i}.npy"), np.load(f"/data/high/{i}.npy")
            left = random.randint(0, low.shape[1] - 32)
            top = random.randint(0, low.shape[0] - 32)
            low = low[top : top + 32, left : left + 32]
            high = high[4 * top : 4 * top + 128, 4 * left : 4 * left + 128]
            return [np.ascontiguousarray(each, np.float32).transpose([2, 0, 1]) for each in (low, high)]

    net = nn.Sequential(nn.Conv2d(3, 48, 3, padding=1), nn.PixelShuffle(4)).cuda()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for low, high in torch.utils.data.DataLoader(Pairs(), batch_size=2):
        nn.functional.l1_loss(net(low.cuda()), high.cuda()).backward()
        optimizer.step(); optimizer.zero_grad()
"""


def test_what_a_crop_is_cut_out_of_goes_as_far_as_the_crop(script: Write) -> None:
    assert foretell.capture_graph(script(CROPPED, fake_data=True)).facts.inputs == (2, 3, 32, 32)
