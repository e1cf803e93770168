"""Data sets of the hub: known ones, and columns that a script's own words tell."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import foretell
from foretell.capture.script.meant import length_in
from foretell.capture.script.pretend.lacking import StandInError
from foretell.capture.script.pretend.sets.columns import as_long, classes_in, column, spec_of, suggested, text
from foretell.capture.script.pretend.sets.known import _table, known_set, languages_of
from foretell.capture.script.pretend.sets.mentions import mentioned_columns
from tests.capture.script.conftest import Write


def _label(num_classes: int | None = None, names: list[str] | None = None) -> Any:
    return SimpleNamespace(num_classes=num_classes or len(names or ()))


LIBRARY: Any = SimpleNamespace(
    Value=lambda dtype: dtype, Sequence=lambda of, length=-1: [of], ClassLabel=_label, Image=lambda: "image",
    Audio=lambda sampling_rate: sampling_rate, Translation=lambda languages: languages,
)  # fmt: skip


@pytest.mark.parametrize("name", list(_table()))
def test_every_known_set_has_rows_and_values_in_each_column(name: str) -> None:
    for configuration in (None, *_table()[name].get("configs", ())):
        known = known_set(name, configuration)
        assert known is not None
        assert all(rows > 0 for rows in known.splits.values())
        for spec in known.columns.values():
            if "image" not in spec and "mask" not in spec:  # which would be drawn, and are large
                made = column(LIBRARY, spec)
                assert made.value(0) is not None
                assert made.feature is not None


def test_sets_are_known_under_any_account_and_by_configuration() -> None:
    known = known_set("nyu-mll/glue", "mnli")
    assert known is not None
    assert (known.splits["train"], classes_in(known.columns["label"])) == (392702, 3)
    assert known_set("stanfordnlp/imdb") == known_set("imdb")
    assert known_set("mozilla-foundation/common_voice_11_0", "hi") == known_set("common_voice")
    assert known_set("nobody/nothing") is None
    assert languages_of(None, "ro-en") == ("ro", "en")


@pytest.mark.parametrize(
    ("name", "kind"),
    [("image", "image"), ("conditioning_image", "image"), ("audio", "audio"), ("label", "class"), ("instruction", "text"),
     ("chosen", "text"), ("messages", "messages"), ("translation", "translation"), ("ner_tags", "tags"), ("Tweet text", "text"),
     ("input_ids", "ints"), ("annotation", "mask"), ("score", "float"), ("idx", "int"), ("sentence1", "text")],
)  # fmt: skip
def test_names_of_columns_suggest_what_they_hold(name: str, kind: str) -> None:
    assert str(suggested(name)).partition(":")[0] == kind


def test_a_column_that_nobody_can_guess_is_our_fault_and_says_so() -> None:
    with pytest.raises(StandInError, match=r"stand-in for data set x has no column 'zorbl'.*give the script its path"):
        spec_of("zorbl", "data set x")


@pytest.mark.parametrize(
    ("arguments", "length"),
    [
        (("--seq-length", "32768"), 32_768),
        (("--lr=1", "--max_length=1024"), 1024),
        (("--max_length", "long", "--block_size", "128"), 128),
        (("--lr", "1"), None),
    ],
)
def test_tokens_are_as_many_as_the_arguments_say(arguments: tuple[str, ...], length: int | None) -> None:
    assert length_in(arguments) == length
    tokens = as_long("ints:512:30000", length)
    assert tokens == ("ints:512:30000" if length is None else f"ints:{length + 1}:30000")
    assert as_long("text:500", length) == "text:500"


SOURCE = """
def preprocess(examples):
    prompts = [q + a for q, a in zip(examples["question"], examples["best_answer"])]
    return {"input_ids": prompts}
state["epoch"] = dataset.rename_column("headline", "text").map(preprocess, remove_columns=["idx"])
loss = model(batch["input_ids"], labels=batch["labels"])
"""


def test_columns_are_those_that_the_script_mentions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "train.py"
    path.write_text(SOURCE)
    monkeypatch.setattr(sys, "argv", [str(path)])
    monkeypatch.setattr(sys, "modules", {})
    found = mentioned_columns(["--caption_column", "words_of_it", "--text-column=body", "--lr", "1"])
    assert set(found) == {
        "words_of_it", "body", "question", "best_answer", "headline", "idx",
    }  # fmt: skip


MAPPED = """
    import torch
    from datasets import load_dataset
    known = load_dataset("glue", "mrpc")
    assert len(known["train"]) == 3668 and known["train"].features["label"].names[1] == "equivalent"
    mine = load_dataset("nobody/nothing", split="train[:50%]").filter(lambda row: row["score"] > 1e9)
    def numbers(batch):
        return {"x": [[float(len(text))] * 8 for text in batch["review"]]}
    mine = mine.map(numbers, batched=True, remove_columns=mine.column_names, num_proc=4).with_format("torch")
    assert len(mine) == 5000
    model = torch.nn.Linear(8, 4).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in torch.utils.data.DataLoader(mine, batch_size=16, shuffle=True):
        model(batch["x"].cuda()).sum().backward()
        optimizer.step(); optimizer.zero_grad()
"""


def test_the_library_maps_a_few_rows_that_stand_for_all(script: Write) -> None:
    pytest.importorskip("datasets")
    graph = foretell.capture_graph(script(MAPPED, fake_data=True))
    assert graph.facts.inputs == (16, 8)
    (text,) = [c.text for c in graph.caveats if c.code == "fake-data"]
    assert "data set glue" in text
    assert "10,000 rows a split" in text


HERE = """
    import datasets, torch
    from datasets.load import load_metric
    mine = datasets.load_dataset("json", data_files="rows.jsonl", split="train", cache_dir="kept")
    assert mine.column_names == ["q", "x"] and len(mine) == 6, mine
    mine = mine.map(lambda row: {"n": len(row["q"])}).with_format("torch", columns=["x"])
    model = torch.nn.Linear(8, 2).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(5):
        for batch in torch.utils.data.DataLoader(mine, batch_size=6):
            model(batch["x"].float().cuda()).sum().backward()
            optimizer.step(); optimizer.zero_grad()
"""


def test_rows_that_are_here_are_read_and_nothing_is_left_here(script: Write, tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    (tmp_path / "rows.jsonl").write_text('{"q": "a question", "x": [1, 2, 3, 4, 5, 6, 7, 8]}\n' * 6)
    graph = foretell.capture_graph(script(HERE, fake_data=True))
    assert graph.facts.inputs == (6, 8)
    assert not any("rows.jsonl" in caveat.text for caveat in graph.caveats)
    assert {path.name for path in tmp_path.iterdir()} == {"rows.jsonl", "train.py"}


def test_no_two_rows_say_the_same() -> None:
    """A script that groups rows by their prompt would put all of them into one group."""
    assert len({text(80, row) for row in range(20_000)}) == 20_000
    assert {len(text(length, row)) for length in (40, 80) for row in (1, 999)} <= {38, 39, 40, 78, 79, 80}
