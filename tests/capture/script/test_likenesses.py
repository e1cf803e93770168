"""Small packages that are not installed, names that an installed one lacks, and data sets with nothing in them."""

from __future__ import annotations

from pathlib import Path

import pytest

import foretell
from foretell.capture.script.pretend.likenesses import PathText, Settings, _Growing
from foretell.errors import WorkloadError
from tests.capture.script.conftest import Write

STEPS = """
        model = torch.nn.Linear(width, 4).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(5):
            model(torch.randn(2, width).cuda()).sum().backward()
            optimizer.step(); optimizer.zero_grad()
"""


def test_settings_by_name_and_attribute() -> None:
    settings = Settings({"a": {"b": 3}, "c": [{"d": 4}]}, e=5)
    settings.update(f={"g": 6})
    assert (settings.a.b, settings["c"][0].d, settings.e, settings.f.g) == (3, 4, 5, 6)
    assert settings.to_dict()["a"] == {"b": 3}
    with pytest.raises(AttributeError):
        _ = settings.not_there
    growing = _Growing()
    growing.a.b.c = 1
    assert growing == {"a": {"b": {"c": 1}}}


def test_paths_that_are_texts(tmp_path: Path) -> None:
    folder = PathText(tmp_path) / "a"
    folder.makedirs_p()
    folder.makedirs_p()
    (tmp_path / "a" / "b.txt").write_text("b")
    assert [file.name for file in folder.files("*.txt")] == ["b.txt"]
    assert (folder.dirs(), folder.exists(), folder.basename(), folder.listdir()[0].stem) == ([], True, "a", "b")


def test_packages_that_are_like_others(script: Write) -> None:
    text = """
        import torch
        import cPickle
        from munch import Munch
        from prefetch_generator import BackgroundGenerator
        assert cPickle.loads(cPickle.dumps([1])) == [1]
        assert list(BackgroundGenerator(iter(range(3)), max_prefetch=2)) == [0, 1, 2]
        width = Munch(width=8).width
    """
    assert foretell.capture_graph(script(text + STEPS)).samples == 2


def test_a_name_that_a_library_lacks_is_missed_where_a_step_needs_it(script: Write) -> None:
    text = """
        import torch, scipy
        from scipy.stats import name_of_old
        from torch.nn.modules.conv import Union
        from scipy.parts_of_old import Report
        width = 8
        report = Report(width)
        scipy.function_of_old(report)
    """
    assert foretell.capture_graph(script(text + STEPS)).samples == 2
    needs = STEPS.replace("torch.randn(2, width).cuda()", "name_of_old(torch.randn(2, width).cuda())")
    with pytest.raises(WorkloadError, match=r"name_of_old from scipy\.stats.*scipy [\d.]+ has not"):
        foretell.capture_graph(script(text + needs))


def test_a_data_set_with_nothing_in_it_has_samples(script: Write) -> None:
    text = """
        import glob, torch
        from PIL import Image

        class Pictures(torch.utils.data.Dataset):
            def __init__(self):
                self.files = [f for f in glob.glob("/none/*.jpg") if len(f) > 1000]
                self.labels = []
            def __len__(self):
                return len(self.files)
            def __getitem__(self, i):
                img_path = self.files[i]
                img = Image.open(img_path).convert("RGB").resize((32, 32))
                label = self.labels[i]
                return torch.ones(3, *img.size), label

        model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, 10)).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x, y in torch.utils.data.DataLoader(Pictures(), 16, shuffle=True):
            torch.nn.functional.cross_entropy(model(x.cuda()), y.cuda()).backward()
            optimizer.step(); optimizer.zero_grad()
    """
    graph = foretell.capture_graph(script(text, fake_data=True))
    assert graph.samples == 16
    assert "data set __main__.Pictures, which is empty" in next(c.text for c in graph.caveats if c.code == "fake-data")
