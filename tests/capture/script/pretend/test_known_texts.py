"""Corpora have as many different words as are published, and enough text for a step."""

from __future__ import annotations

import json

import pytest

import foretell
from foretell.capture.script.pretend.files.known_arrays import array_of_a_known_set
from foretell.capture.script.pretend.files.known_texts import known_text
from foretell.capture.script.pretend.files.sizes import size_of
from foretell.capture.script.session import Session


@pytest.mark.parametrize(
    ("path", "words", "least"),
    [
        ("../data/enwik8/train.txt", 204, 1_000_000),
        ("/data/text8/train.txt", 27, 1_000_000),
        ("data/penn/train.txt", 9_999, 887_000),
    ],
)
def test_a_corpus_has_as_many_words_as_published(path: str, words: int, least: int) -> None:
    known = known_text(path)
    assert known is not None
    text = known.text().split()
    assert len(set(text)) == words
    assert len(text) >= least - 20
    if "enwik8" in path:
        assert all(0 <= int(word) < 256 and word != "10" for word in set(text))  # a new line is one
    parts = known_text(path.replace("train", "test"))
    assert parts is not None
    assert set(parts.text().split()) <= set(text)


@pytest.mark.parametrize("path", ["data/squad/train-v1.1.json", "dev-v2.0.json"])
def test_answers_lie_where_they_are_said_to(path: str) -> None:
    known = known_text(path)
    assert known is not None
    assert known.decides_size
    found = json.loads(known.text())
    assert found["version"] == ("v2.0" if "2.0" in path else "1.1")
    asked = [
        (part["context"], one) for article in found["data"] for part in article["paragraphs"] for one in part["qas"]
    ]
    assert len(asked) == 2048
    for context, one in asked:
        answer = one["answers"][0]
        assert context[answer["answer_start"] :].startswith(answer["text"] + " ")
        assert ("is_impossible" in one) is ("2.0" in path)


def test_poses_of_people_are_by_subject_and_action() -> None:
    session = Session(foretell.Script(path="train.py"))
    seen = array_of_a_known_set(session, "dataset/data_2d_h36m_cpn_ft_h36m_dbb.npz", "positions_2d").item()
    there = array_of_a_known_set(session, "dataset/data_3d_h36m.npz", "positions_3d").item()
    about = array_of_a_known_set(session, "dataset/data_2d_h36m_gt.npz", "metadata").item()
    assert there.keys() == seen.keys() >= {"S1", "S9"}
    assert there["S1"].keys() == seen["S1"].keys() >= {"Walking", "Walking 1"}
    assert there["S1"]["Walking"].shape[1:] == (32, 3)
    assert [one.shape[1:] for one in seen["S1"]["Walking"]] == [(about["num_joints"], 2)] * 4
    assert array_of_a_known_set(session, "dataset/data_3d_other.npz", "positions_3d") is None


def test_views_go_together_and_cameras_have_depths() -> None:
    known, seen = known_text("dtu/Cameras/pair.txt"), known_text("dtu/Cameras/train/00000007_cam.txt")
    assert known is not None
    assert seen is not None
    lines = known.text().splitlines()
    views = int(lines[0])
    assert len(lines) == 1 + 2 * views
    assert all(int(lines[1 + 2 * i]) == i and len(lines[2 + 2 * i].split()[1::2]) == 10 for i in range(views))
    rows = seen.text().splitlines()
    assert (len(rows[1:5]), len(rows[7:10])) == (4, 3)
    assert [len(row.split()) for row in rows[1:5] + rows[7:10]] == [4] * 4 + [3] * 3
    assert float(rows[11].split()[1]) == 2.5
    assert size_of("dtu/Rectified/scan2_train/rect_001_0_r5000.png") == (640, 512)
    assert size_of("dtu/Depths/scan2_train/depth_map_0000.pfm") == (160, 128)
