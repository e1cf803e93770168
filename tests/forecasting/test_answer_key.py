"""The name of an answer: each thing that it rests on changes it, and how that thing is written does not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from foretell import Cluster, Conditions, JobLength, Plan, Profile, engine, hardware
from foretell.cost.folder import content_of
from foretell.forecasting.answer_key import answer_key, hardware_key
from foretell.hardware.catalog import SHIPPED

ON = "8xh100-sxm"


def key(**changed: object) -> str:
    given: dict[str, object] = {
        "step": "graph", "hardware": hardware_key(Cluster.parse(ON)), "plan": Plan(dp=8), "model": ("m", ""),
        "profile": None, "conditions": None, "job": None,
    }  # fmt: skip
    return answer_key(**given | changed)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changed",
    [
        {"step": "another"},
        {"hardware": hardware_key(Cluster.parse("8xh200"))},
        {"plan": Plan(dp=4, tp=2)},
        {"model": ("other", "")},
        {"model": ("m", "its files have changed")},
        {"profile": Profile(name="p")},
        {"conditions": Conditions(loader=0.1)},
        {"job": JobLength(samples=1e6)},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_all_that_an_answer_rests_on_names_it(changed: dict[str, object]) -> None:
    assert key(**changed) != key()


def test_how_it_is_written_does_not() -> None:
    assert hardware_key(Cluster.parse("1x8xH100")) == hardware_key(Cluster.parse(ON))
    assert key(plan=Plan.parse("zero=0,dp=8")) == key()


def test_another_engine_names_it_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    before = key()
    monkeypatch.setattr(engine, "engine_digest", lambda *rooms: "another")
    assert key() != before


def test_a_profile_that_was_fitted_again_names_it_otherwise() -> None:
    one = Profile(name="p", device=1.1)
    assert key(profile=one) != key(profile=replace(one, device=1.2))


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FORETELL_CATALOG", str(tmp_path))
    return tmp_path


def written(catalog: Path, kind: str, name: str, old: str, new: str, like: str | None = None) -> None:
    """An entry of the user's own, as a shipped one but for a few characters."""
    text = (SHIPPED / kind / f"{like or name}.toml").read_text()
    assert old in text
    (catalog / kind).mkdir(exist_ok=True)
    lines = text.replace(old, new).splitlines()
    (catalog / kind / f"{name}.toml").write_text("\n".join(x for x in lines if not x.startswith("aliases")))


def test_a_device_that_is_corrected_is_another_at_once(catalog: Path) -> None:
    before = hardware_key(Cluster.parse("8xl40s"))
    written(catalog, "devices", "l40s", "864 GB", "800 GB")
    corrected = hardware_key(Cluster.parse("8xl40s"))
    assert hardware.device("l40s").bandwidth == 800e9
    written(catalog, "devices", "l40s", "864 GB", "900 GB")
    assert hardware.device("l40s").bandwidth == 900e9
    assert len({before, corrected, hardware_key(Cluster.parse("8xl40s"))}) == 3


def test_entries_that_are_looked_up_while_it_is_priced_count(catalog: Path) -> None:
    """A host or a fabric is no part of a cluster's text."""
    before = key()
    (catalog / "hosts").mkdir()
    (catalog / "hosts" / "ours.toml").write_text("any host that a condition may name")
    assert key(hardware=hardware_key(Cluster.parse(ON))) != before


def test_a_new_device_changes_no_other_answer(catalog: Path) -> None:
    before = key()
    written(catalog, "devices", "ours", "864 GB", "800 GB", like="l40s")
    assert hardware.device("ours").bandwidth == 800e9
    assert key(hardware=hardware_key(Cluster.parse(ON))) == before


def test_a_model_that_was_fitted_again_has_another_content(tmp_path: Path) -> None:
    (tmp_path / "card.json").write_text("{}")
    before = content_of(tmp_path)
    (tmp_path / "weights.json").write_text("[1]")
    assert content_of(tmp_path) != before
