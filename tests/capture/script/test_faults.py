"""Whose fault it is when a script ends without a step: every refusal has a line, a cause and a way out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import foretell
from foretell.capture.script.causes import own_words
from foretell.capture.script.ended import Ended
from foretell.errors import CaptureError, ForetellError, WorkloadError
from tests.capture.script.conftest import Write

REFUSED = [
    pytest.param("import torch\nx = {}['key']", "script", ["line 2 of ", "KeyError: 'key'", "on any machine", "after --"], id="own"),
    pytest.param("import nowhere_to_be_found as n\nn.go()", "script", ["line 2 of ", "pip install nowhere_to_be_found"], id="package"),
    pytest.param("from torch import _six_of_old", "script", ["_six_of_old", "torch 2", "written for"], id="version"),
    pytest.param("raise ModuleNotFoundError('Run `pip install it`.')", "script", ["line 1", "pip install it", "Install"], id="words"),
    pytest.param("import numpy as np\nnp.floats_of_old", "script", ["numpy.floats_of_old", "another version of numpy"], id="attribute"),
    pytest.param("open('/nowhere/a.json')", "script", ["reads /nowhere/a.json in line 1", "--fake-data"], id="file"),
    pytest.param("import os\nos.environ['NO_SUCH_ONE']", "script", ["variable NO_SUCH_ONE", "Set it: NO_SUCH_ONE="], id="variable"),
    pytest.param("print 'hello' 5 5", "script", ["line 1 of", "Python 2", "2to3"], id="python 2"),
    pytest.param("import torch\nassert torch.cuda.device_count() > 4", "script", ["line 2", "--on 8x"], id="devices"),
    pytest.param("raise ValueError('You requested gpu: [0, 1]\\n But your machine only has: [0]')", "script", ["--on 2x"], id="few"),
    pytest.param("import os\nassert os.path.exists('/nowhere'), 'no data'", "script", ["line 2", "no data", "--fake-data"], id="data"),
    pytest.param(
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--lr', required=True)\np.parse_args()", "script",
        ["arguments", "after --", "the following arguments are required: --lr"], id="arguments",
    ),
    pytest.param(
        "import io, pickle, torch\nclass Own: pass\nf = io.BytesIO(pickle.dumps(Own(), 4))\ntorch.load(f)", "script",
        ["line 4", "more than tensors", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1"], id="pickle",
    ),
    pytest.param("import sys\nsys.exit('needs a folder.')", "script", ["line 2", "needs a folder.", "after --"], id="exit"),
    pytest.param(
        "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'pass', 'x.py'])\nsubprocess.run('true || torchrun train.py',"
        " shell=True)", "script", ["--launch"], id="processes",
    ),
    pytest.param(
        "import socket\nsocket.create_connection(('example.org', 80), 1)", "script",
        ["a connection to example.org", "offline. Give --fake-data"], id="network",
    ),
    pytest.param(
        "import torch\nfrom torch.utils.data import DataLoader\nDataLoader([], shuffle=True)", "script",
        ["empty", "line 3", "--fake-data"], id="no samples",
    ),
    pytest.param(
        "import torch\nm = torch.nn.Linear(2, 2).cuda()\no = torch.optim.SGD(m.parameters())", "script", ["makes an optimizer"], id="idle",
    ),
    pytest.param("import torch\ntorch.zeros(4).view(2.5, 2)", "script", ["line 2", "script's own"], id="view"),
    pytest.param(
        "import torch\nx = torch.zeros(3, 3).cuda()\nx.cpu(nothing=1)",
        "foretell", ["not to blame", "foretell.Workload("], id="ours",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("text", "whose", "words"), REFUSED)
def test_a_refusal_says_where_why_and_what_to_do(script: Write, text: str, whose: str, words: list[str]) -> None:
    with pytest.raises(CaptureError if whose == "foretell" else WorkloadError) as refused:
        foretell.capture_graph(script(text))
    said = str(refused.value)
    assert [word for word in words if word not in said] == []
    assert not re.search(r"[.!?]\s+(or|and) ", said)  # no half of a sentence


def test_what_was_stood_in_for_may_be_at_fault(script: Write) -> None:
    job = script("import numpy as np\nx = np.fromfile('/nowhere/a.bin', dtype=np.uint8)\n{}[int(x[0])]", fake_data=True)
    with pytest.raises(ForetellError, match=r"may come from what Foretell stood in for .*a\.bin.*not from the script"):
        foretell.capture_graph(job)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("torch.optim.SGD([torch.zeros(1)], lr=1, t_mul=2)", r"written for another version of torch than .*t_mul"),
        (
            "import io, msgpack; msgpack.load(io.BytesIO(b'a'), encoding='utf8')",
            r"another version of msgpack than .*encoding",
        ),
        ("own(2, 3)", r"line 4 of .*own\(\) takes 1 positional argument.*the script's own"),
        ("torch.device('cuda', -1)", r"line 4 of .*must not be negative.*the script's own"),
        ("print(nowhere)", r"line 4 of .*NameError.*the script's own"),
    ],
)
def test_what_no_data_brings_about_is_not_blamed_on_data(script: Write, line: str, words: str) -> None:
    read = "import numpy as np, torch\nx = np.fromfile('/nowhere/a.bin', dtype=np.uint8)\n"
    with pytest.raises(WorkloadError, match=words):
        foretell.capture_graph(script(f"{read}def own(a): return a\n{line}", fake_data=True))


def test_an_extension_of_the_repository_that_was_not_built_is_named(script: Write, tmp_path: Path) -> None:
    folder = tmp_path / "tooling" / "neighbours"
    folder.mkdir(parents=True)
    (folder / "setup.py").write_text(
        "from setuptools import Extension, setup\nsetup(ext_modules=[Extension('near', ['near.cpp'])])\n"
    )
    with pytest.raises(
        WorkloadError, match=r"tooling\.neighbours\.lib in line .*built from .*neighbours && python setup\.py build_ext"
    ):
        foretell.capture_graph(script("import tooling.neighbours.lib.near as near\nnear.knn()\n"))


@pytest.mark.parametrize("text", ["import zoo\nzoo.Net", "from zoo import nets", "import zoo.nets"])
def test_a_submodule_that_was_not_fetched_is_named(script: Write, tmp_path: Path, text: str) -> None:
    (tmp_path / "zoo").mkdir()
    (tmp_path / ".gitmodules").write_text('[submodule "zoo"]\n\tpath = zoo\n\turl = https://example.org/zoo\n')
    with pytest.raises(WorkloadError, match=r"needs zoo in line .*empty here\. Fetch it: git submodule update"):
        foretell.capture_graph(script(text))


def test_offline_with_fake_data_is_a_whole_sentence(script: Write) -> None:
    job = script("import socket\nsocket.create_connection(('example.org', 80), 1)", fake_data=True)
    with pytest.raises(WorkloadError, match=r"scripts run offline\. What was downloaded before is read"):
        foretell.capture_graph(job)


def test_words_of_a_stand_in_have_a_line_like_all_others() -> None:
    try:
        raise WorkloadError("the script loads a model that nobody knows. Give its folder.")
    except WorkloadError as error:
        found = own_words(Ended(script=foretell.Script(path="train.py"), error=error, stand_ins=()))
    assert re.search(r"Give its folder\. It happened in line \d+ of .*test_faults\.py \(raise", str(found))


def test_the_first_error_is_told_and_not_what_tidying_up_met_with(script: Write) -> None:
    text = "try:\n    width = {}['width']\n    trainer = 1\nfinally:\n    print(trainer)\n"
    with pytest.raises(WorkloadError, match=r"line 2 of .*KeyError: 'width'"):
        foretell.capture_graph(script(text))
