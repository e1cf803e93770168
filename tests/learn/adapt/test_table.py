"""`steps.csv`: what a row may say, and errors that name the line."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretell import Plan
from foretell.errors import InputError
from foretell.learn.adapt.table import read_steps


def written(folder: Path, text: str) -> Path:
    path = folder / "steps.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_rows_are_steps(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "\ufeffsource,settings,cluster,plan,seconds,allocated,reserved\n"
        'timm/resnet50,"batch=64,precision=amp-bf16",8xa100,"dp=4,tp=2",0.25,1e9,\n'
        "a.py:f,batch=2 width=8;depth=3,,,1.5,,\n",
    )
    first, second = read_steps(path, device="h200")
    assert (first.workload, first.on, first.plan) == ("timm/resnet50", "8xa100", Plan(dp=4, tp=2))
    assert first.settings == {"batch": "64", "precision": "amp-bf16"}
    assert (first.seconds, first.allocated, first.reserved) == (0.25, 10**9, None)
    assert (second.on, second.plan, dict(second.settings)) == ("h200", None, {"batch": "2", "width": "8", "depth": "3"})


def test_optional_columns_may_be_missing(tmp_path: Path) -> None:
    [step] = read_steps(written(tmp_path, "seconds,source\n0.5,timm/resnet18\n"), device="t4")
    assert (step.seconds, step.on, step.allocated) == (0.5, "t4", None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("source,second\n", "unknown column 'second'. Did you mean 'seconds'"),
        ("source,plan\nx,\n", "no column seconds"),
        ("source,cluster,seconds\n", "has no rows"),
        ("source,cluster,seconds\na,h200,fast\n", "line 2: seconds must be a number, got 'fast'"),
        ("source,cluster,seconds\na,h200,1\na,h200,0\n", "line 3: .*above 0"),
        ("source,cluster,seconds\na,h200,nan\n", "line 2: .*a number, got 'nan'"),
        ("source,cluster,seconds\n,h200,1\n", "line 2: it names no source"),
        ("source,cluster,seconds\na,,1\n", "line 2: it names no cluster"),
        ("source,cluster,seconds\na,h2000,1\n", "line 2: .*h2000"),
        ("source,cluster,plan,seconds\na,h200,dp=x,1\n", "line 2: .*dp"),
        ("source,cluster,settings,seconds\na,h200,batch,1\n", "line 2: settings are like"),
        ("source,cluster,seconds\na,h200,1,2\n", "line 2: it has more or fewer cells"),
        ("source,cluster,seconds,allocated\na,h200,1,inf\n", "line 2: "),
    ],
)
def test_a_wrong_row_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_steps(written(tmp_path, text))
