"""Functions that read data and fail on what stands in: the next run lets them go on, and says which lines failed."""

from __future__ import annotations

import textwrap
from typing import Any

import numpy as np
import pytest
import torch

import foretell
from foretell.capture.reads import is_library
from foretell.capture.script.ended import Ended
from foretell.capture.script.findings import StandIn
from foretell.capture.script.going_on import MADE, ROWS, Place, changed
from foretell.capture.script.guesses import Guesses
from foretell.capture.script.pretend.made_up import _Makes
from foretell.capture.script.session import Session
from foretell.capture.script.unread import GOES_ON, is_of_data, refuse_invented_sizes, unread
from foretell.errors import WorkloadError
from tests.capture.script.conftest import Write

READER = """
    def read_rows(source):
        found = []
        for name, label in source.entries:
            found.append((name, int(label)))
        first, second = source.key.split("-")
        boxes = source.boxes
        if source.is_wide:
            found = []
        assert len(boxes) > 5000, "too few"
        try:
            size = source.size
        except AttributeError:
            size = 7
        return found, first, second, boxes, size
"""


def run(text: str, name: str, *args: Any, line: int = 0) -> tuple[Any, Session]:
    """A function of a program that goes on, and what was put down."""
    session = Session(foretell.Script(path="train.py"))
    text = textwrap.dedent(text).strip()
    makes = _Makes(session)
    names: dict[str, Any] = {MADE: makes.value, ROWS: makes.rows}
    tree = changed(text, "reader.py", [Place(path="reader.py", first=1, line=line)])
    exec(compile(tree, "reader.py", "exec"), names)
    return names[name](*args), session


def test_every_name_gets_a_value_and_checks_are_passed_over() -> None:
    (found, first, second, boxes, size), session = run(READER, "read_rows", object())
    assert len(found) == 2048
    assert found[0][1] == 0
    assert isinstance(first, str)
    assert isinstance(second, str)
    assert np.asarray(boxes).shape[-1] == 4
    assert size == 7  # what the script expects to fail is left to it
    listed = [stand_in.what for stand_in in session.findings.stand_ins]
    assert any("line 5 of reader.py" in what for what in listed)
    assert any("line 9 of reader.py" in what for what in listed)


def test_one_line_alone_goes_on() -> None:
    with pytest.raises(AttributeError, match="entries"):
        run(READER, "read_rows", object(), line=5)


def test_what_fails_on_any_machine_still_fails() -> None:
    with pytest.raises(NameError):
        run("def read():\n    return not_there", "read")
    with pytest.raises(AttributeError):
        run("def read():\n    import os\n    return os.not_there", "read")


def test_objects_are_not_made_up() -> None:
    text = "def load(rows, Loader):\n    loader = Loader(rows[0])\n    return loader"
    with pytest.raises(IndexError):
        run(text, "load", [], list)


def test_a_model_of_an_invented_width_is_refused() -> None:
    guesses = Guesses()
    refuse_invented_sizes([torch.zeros(122, 8)], guesses)
    guesses.invented[61] = "array of rows"
    refuse_invented_sizes([torch.zeros(128, 8)], guesses)
    with pytest.raises(WorkloadError, match="a layer of 122, which comes of array of rows"):
        refuse_invented_sizes([torch.zeros(122, 8)], guesses)


def test_samples_end_where_they_end() -> None:
    text = """
    def __getitem__(self, index):
        return self.rows[index]
    """

    class Rows:
        rows = (1, 2)

        def __len__(self) -> int:
            return 2

    assert run(text, "__getitem__", Rows(), 1)[0] == 2
    with pytest.raises(IndexError):
        run(text, "__getitem__", Rows(), 2)


def ended_by(error: Exception) -> Ended:
    stand_in = StandIn(what="text of train.txt", assumed="words", decides_size=False)
    return Ended(script=foretell.Script(path="train.py", fake_data=True), error=error, stand_ins=(stand_in,))


def test_only_functions_that_read_data_go_on() -> None:
    def load_data() -> None:
        raise ValueError("another format")

    def build() -> None:
        raise ValueError("no such width")

    found = {}
    for function in (load_data, build):
        try:
            function()
        except ValueError as error:
            error.__traceback__ = error.__traceback__.tb_next  # type: ignore[union-attr]
            found[function.__name__] = unread(ended_by(error), Guesses())
    ((_path, first, line),) = found["load_data"][GOES_ON]
    assert (first, line) == (load_data.__code__.co_firstlineno, 0)
    assert not is_of_data(TypeError("f() got an unexpected keyword argument 'x'"))
    assert not is_of_data(FileNotFoundError(2, "no such file", "config.yaml"))
    assert found["build"] == {}
    assert is_library("pandas/_libs/lib.pyx")  # of which nobody has the file


def test_a_data_set_whose_lines_only_its_makers_know_is_forecast(script: Write) -> None:
    written = script(
        """
        import json, torch
        from PIL import Image
        import numpy as np

        class Pairs(torch.utils.data.Dataset):
            def __init__(self, root):
                self.rows = []
                for line in open(root + "/train.txt"):
                    number, _, rest = line.partition("=>")
                    self.rows.append((json.loads(rest)["file"], int(number)))

            def __len__(self):
                return len(self.rows)

            def __getitem__(self, index):
                name, number = self.rows[index]
                picture = np.asarray(Image.open(f"data/{name}").resize((24, 16)), np.float32)
                return torch.from_numpy(picture).permute(2, 0, 1), number

        model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Flatten(), torch.nn.Linear(8 * 22 * 14, 5)).cuda()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for x, y in torch.utils.data.DataLoader(Pairs("data"), batch_size=4):
            loss = torch.nn.functional.cross_entropy(model(x.cuda()), y.cuda())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        """,
        fake_data=True,
    )
    graph = foretell.capture_graph(written)
    assert graph.samples == 4
    assert graph.facts.parameters == 8 * 27 + 8 + 8 * 22 * 14 * 5 + 5
    (assumed,) = (caveat.text for caveat in graph.caveats if caveat.code == "assumed-size")
    assert "line 11 of train.py" in assumed
