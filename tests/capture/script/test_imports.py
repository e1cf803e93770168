"""Libraries that are adapted when they are imported, and packages of a script's own that are called like them."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

import foretell
from foretell.capture.script import imports, repository
from foretell.capture.script.pretend import former_places
from foretell.errors import WorkloadError
from tests.capture.script.conftest import Write

LOCAL = """
    import torch
    from datasets import names, width
    import wandb, evaluate, peft
    model = torch.nn.Linear(width, 4).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        model(torch.randn(len(names), width).cuda()).sum().backward()
        optimizer.step(); optimizer.zero_grad()
"""


def test_packages_of_the_scripts_own_are_not_taken_for_libraries(script: Write, tmp_path: Path) -> None:
    for name in ("datasets", "wandb", "evaluate", "peft"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("from .parts import *\n")
        (tmp_path / name / "parts.py").write_text("names, width = ['a', 'b'], 8\n")
    graph = foretell.capture_graph(script(LOCAL, fake_data=True))
    assert graph.facts.inputs == (2, 8)
    assert not [c for c in graph.caveats if c.code == "fake-data"]


ADDED = """
    import os, sys
    sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "core"))
    import bandit
    import torch
    assert bandit.width == 8
    import statistics
    assert statistics.mean([1, 3]) == 2
    model = torch.nn.Linear(bandit.width, 4).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        model(torch.randn(2, 8).cuda()).sum().backward()
        optimizer.step()
"""


def test_a_folder_that_the_script_adds_comes_before_what_is_installed(
    script: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where its author had not installed a package of that name; Python's own modules stay what they are."""
    (tmp_path / "core").mkdir()
    (tmp_path / "core" / "bandit.py").write_text("width = 8\n")
    (tmp_path / "core" / "statistics.py").write_text("width = 9\n")
    monkeypatch.chdir(tmp_path)
    assert foretell.capture_graph(script(ADDED)).facts.inputs == (2, 8)


NAMESAKE = """
    import torch
    from yaml.of_this_study import width
    from tqdm.keras import Own
    from tqdm.contrib import Part
    from torchvision.datasets import calculate_md5
    from torchvision.ops.boxes_of_then import box_iou
    try:
        from torchvision.datasets import check_md5
    except ImportError:
        check_md5 = None
    assert check_md5 is None and callable(calculate_md5) and callable(box_iou)
    from torchvision.datasets.utils import _get_confirm_token, makedir_exist_ok
    from torchvision.models.mobilenet import ConvBNReLU
    from torchvision.models.resnet import load_state_dict_from_url
    import yaml

    assert yaml.safe_load("[1]") == [1]
    model = ConvBNReLU(3, width, stride=2).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        made = model(torch.randn(2, 3, 8, 8).cuda())
        assert made.shape == (2, width, 4, 4)
        made.sum().backward()
        optimizer.step(); optimizer.zero_grad()
"""


def test_a_folder_gives_what_a_library_of_its_name_lacks_and_moved_names_are_found(
    script: Write, tmp_path: Path
) -> None:
    (tmp_path / "yaml").mkdir()
    (tmp_path / "yaml" / "of_this_study.py").write_text("width = 8\n")
    (tmp_path / "tqdm").mkdir()
    (tmp_path / "tqdm" / "contrib").mkdir()
    (tmp_path / "tqdm" / "contrib" / "__init__.py").write_text("class Part: ...\n")
    (tmp_path / "tqdm" / "keras.py").write_text("class Own: ...\n")
    assert foretell.capture_graph(script(NAMESAKE)).facts.inputs == (2, 3, 8, 8)


def test_parts_of_a_library_that_are_loaded_give_way_to_the_repositorys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contrib, utils = (importlib.import_module(f"tqdm.{part}") for part in ("contrib", "utils"))
    (tmp_path / "tqdm").mkdir()
    (tmp_path / "tqdm" / "contrib.py").write_text("class Part: ...\n")
    monkeypatch.setitem(sys.modules, "tqdm.contrib", contrib)
    repository._Modules([str(tmp_path)]).forget_namesakes()
    assert "tqdm.contrib" not in sys.modules
    assert sys.modules["tqdm.utils"] is utils


def test_a_library_is_adapted_wherever_it_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed, local = tmp_path / "site-packages", tmp_path / "repository"
    for folder in (installed, local):
        folder.mkdir()
        (folder / "sets_of_all.py").write_text("seen = []\n")
    adapted: list[object] = []
    monkeypatch.setattr(imports, "_WAITING", {})
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    imports.once_imported("sets_of_all", adapted.append)
    for folder, times in ((local, 0), (installed, 1)):
        sys.modules.pop("sets_of_all", None)
        monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
        __import__("sets_of_all")
        assert len(adapted) == times
    del sys.modules["sets_of_all"]


@pytest.mark.parametrize(
    ("builds", "said", "its_own"),
    [
        ("setup.py", 'setup(\n    name="many_sets",  # as it is installed\n)', True),
        ("setup.py", "setup(name='many_sets', version='1')", True),
        ("pyproject.toml", '[project]\nname = "many-sets"\n', True),
        ("setup.py", 'setup(name="a_study_of_many_sets")', False),
    ],
)
def test_a_librarys_own_repository_is_that_library(tmp_path: Path, builds: str, said: str, its_own: bool) -> None:
    (tmp_path / builds).write_text(said)
    file = tmp_path / "src" / "many_sets" / "parts" / "text.py"
    assert imports.is_installed("many_sets.parts.text", str(file)) is its_own


ABSENT = """
    import importlib.util, torch
    import maker_of_videos, scores_of_all.fid as fid
    from meshes_of_all.io import Reader
    from parts.boxes import overlaps

    for name in ("tried_one", "tried_two"):
        assert importlib.util.find_spec(name) is None
    try:
        import tried_one
    except ImportError:
        tried_one = None
    try:
        import tried_two
    except:
        tried_two = None
    assert fid.__version__ > "1" and tried_one is None and tried_two is None and not isinstance(1, Reader)

    @fid.checked
    def doubled(x):
        return 2 * x

    assert doubled(2) == 4

    class Own(Reader):
        pass

    model = torch.nn.Linear(8, 4).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torch.no_grad():
        score = fid.compare(model(torch.randn(6, 8).cuda()))
    best = max(0.5, float(score))
    with fid.Timer("epoch") as timer:
        timer.log(best)
    try:
        import needed_by_all
    except ImportError:
        raise RuntimeError("pip install needed_by_all")
    needed_by_all.note()
    mask = torch.ones(6, 4, dtype=bool).fill_diagonal_(0)  # on the host, of numbers on the device
    for _ in range(5):
        assert model(torch.randn(6, 8).cuda())[mask].shape == (20,)
        model(torch.randn(6, 8).cuda())[mask].sum().backward()
        optimizer.step(); optimizer.zero_grad()
        %s
"""


def test_a_package_that_is_missing_is_missed_where_it_is_used(script: Write, tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "__init__.py").write_text("")
    (tmp_path / "parts" / "boxes.pyx").write_text("")
    assert foretell.capture_graph(script(ABSENT % "")).facts.inputs == (6, 8)
    with pytest.raises(WorkloadError, match=r"uses maker_of_videos in line \d+ .*pip install maker_of_videos"):
        foretell.capture_graph(script(ABSENT % "maker_of_videos.write(mask)"))
    with pytest.raises(WorkloadError, match=r"uses meshes_of_all in line \d+ .*pip install meshes_of_all"):
        foretell.capture_graph(script(ABSENT % "torch.add(model.weight, Reader.of(1))"))
    with pytest.raises(
        WorkloadError, match=r"may come of what is missing: .*uses meshes_of_all .*pip install meshes_of_all"
    ):
        foretell.capture_graph(script(ABSENT % "{}[Reader.of(1)]"))


def test_a_name_that_a_library_moved_is_found_where_the_script_writes_it_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "site-packages" / "odds"
    library.mkdir(parents=True)
    (library / "__init__.py").write_text("kept = 1\n")
    (library / "later.py").write_text("class Ends: ...\n")
    monkeypatch.syspath_prepend(str(library.parent))
    odds = importlib.import_module("odds")
    former_places._look_further(odds)
    assert not type(odds).__module__.startswith("foretell.")  # what it lacks is not the fault of a stand-in

    def run(text: str) -> Any:
        names: dict[str, Any] = {"odds": odds}
        exec(compile(text, str(tmp_path / "train.py"), "exec"), names)
        return names.get("found")

    assert run("found = odds.Ends").__module__ == "odds.later"
    assert run("found = odds.kept") == 1
    assert run("found = hasattr(odds, 'Ends')") is False  # it asks, and has something else
    assert run("try:\n    found = odds.Ends\nexcept AttributeError:\n    found = 2") == 2
    assert run("found = odds.is_tape_available()") is False
    with pytest.raises(AttributeError, match="Nowhere"):
        run("odds.Nowhere")
    del sys.modules["odds"], sys.modules["odds.later"]
