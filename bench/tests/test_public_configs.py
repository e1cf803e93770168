"""The list of public configurations, and how an answer is judged."""

from __future__ import annotations

from collections import Counter

from foretell_bench.studies.scripts.public_configs import PublicConfiguration, configurations, judged, show


def test_sixty_files_of_eight_trainers_are_listed_and_most_are_worked_out() -> None:
    listed = configurations()
    assert len(listed) == len({c.script.name for c in listed}) == 60
    assert len({c.trainer for c in listed}) >= 8
    assert Counter(c.drawn_first for c in listed) == {True: 30, False: 30}
    assert sum(c.parameters is not None for c in listed) >= 40
    assert all(len(c.commit) == 40 for c in listed)


LISTED = PublicConfiguration(
    repository="a/b", commit="0" * 40, path="c.yaml", trainer="axolotl", on="8xh100-sxm", drawn_first=True,
    parameters=1_000_000, batch=2, precision="bf16", plan="dp=8,zero=3",
)  # fmt: skip


def test_an_answer_is_right_that_has_what_the_file_says() -> None:
    found = {
        "parameters": 1_000_050,
        "batch": 2,
        "precision": "bf16",
        "plan": "dp=8,zero=3,checkpointing=full",
        "drawn": 1,
    }
    assert judged(LISTED, found)["outcome"] == "right"
    other = judged(LISTED, {**found, "parameters": 1_100_000, "plan": "dp=8"})
    assert other["differs"] == {"parameters": [1_100_000, 1_000_000], "plan": ["dp=8", "dp=8,zero=3"]}
    assert "1 wrong" in show({LISTED.script.name: other})


def test_a_refusal_is_clear_that_has_a_way_out() -> None:
    clear = judged(LISTED, {"exit_code": 2, "message": "the model is not known. Give --set model=hf/NAME."})
    assert clear["outcome"] == "clear refusal"
    for code, message in ((1, "Give up"), (2, "KeyError: 'x'"), (None, "no answer in 300 s. ")):
        assert judged(LISTED, {"exit_code": code, "message": message})["outcome"] == "bad failure"
