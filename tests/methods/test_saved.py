"""Fitted methods as files: they answer as before, and a stranger's file runs nothing and breaks nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from foretell.cost.folder import seal
from foretell.errors import ForetellError, InputError
from foretell.hardware import Cluster
from foretell.methods import DNNAbacus, Driple, Ernest, PredictDDL, ScaleDL, load, save
from foretell.methods.conformance import made_up
from foretell.methods.driple.method import DripleSettings, setting_of
from foretell.methods.product import Foretell
from foretell.methods.scaledl.layers import LayerSettings
from foretell.methods.scaledl.network import NetworkSettings

QUICK: dict[str, Callable[[], Any]] = {
    "scaledl": lambda: ScaleDL(layers=LayerSettings(width=8, epochs=1), network=NetworkSettings(width=8, epochs=1)),
    "predictddl": lambda: PredictDDL(forms=("linear", "svr")),
    "driple": lambda: Driple(DripleSettings(groups=8, rounds=2, readings=2, epochs=1)),
    "dnnabacus": DNNAbacus,
    "ernest": Ernest,
    "foretell": Foretell,
}


@pytest.mark.parametrize("name", QUICK)
def test_what_is_loaded_answers_as_what_was_saved(name: str, tmp_path: Path) -> None:
    examples = made_up()
    fitted = QUICK[name]().fit(examples)
    save(fitted, tmp_path / "kept")
    assert {path.suffix for path in (tmp_path / "kept").iterdir()} == {".json", ".safetensors"}
    queries = [e.query for e in examples]
    again = load(tmp_path / "kept")
    assert again.name == fitted.name
    for before, after in zip(fitted.predict(queries), again.predict(queries), strict=True):
        assert after.values == pytest.approx(dict(before.values))
    again.fit(examples[:12])  # and it can be fitted anew


def test_a_tailored_network_is_kept_whole(tmp_path: Path) -> None:
    examples = made_up()
    here = [e for e in examples if e.query.plan.dp == 2]
    there = [replace(e, query=replace(e.query, cluster=Cluster.parse("2x1xh200"))) for e in here]
    there = [replace(e, measured={**e.measured, "network_tx_peak": 1e9}) for e in there]
    fitted = QUICK["driple"]().fit(here)
    fitted.transfer(there, setting_of(here[0].query))
    again = load(save(fitted, tmp_path / "kept"))
    queries = [e.query for e in there]
    assert [p.values for p in again.predict(queries)] == [
        pytest.approx(dict(p.values)) for p in fitted.predict(queries)
    ]


def broken(folder: Path, change: Callable[[Any], None]) -> None:
    about = json.loads((folder / "method.json").read_text())
    change(about)
    (folder / "method.json").write_text(json.dumps(about))
    seal(folder)


@pytest.mark.parametrize("change", [
    lambda about: about["method"].update({"class": "Path"}),
    lambda about: about["method"].update({"class": "Shape"}),
    lambda about: about["method"].update({"class": "os:system"}),
    lambda about: about["method"]["fields"].update({"predict": 1}),
    lambda about: about.update({"version": 99}),
    lambda about: about["method"].update({"fields": {"trees_": {"eval": "1"}}}),
])  # fmt: skip
def test_a_strangers_file_is_refused(change: Callable[[Any], None], tmp_path: Path) -> None:
    folder = save(Ernest().fit(made_up()), tmp_path / "kept")
    broken(folder, change)
    with pytest.raises(ForetellError):
        load(folder)


def test_what_is_damaged_or_not_there_is_told(tmp_path: Path) -> None:
    folder = save(Ernest().fit(made_up()), tmp_path / "kept")
    (folder / "numbers.safetensors").write_bytes(b"no")
    with pytest.raises(ForetellError, match="damaged"):
        load(folder)
    with pytest.raises(InputError, match="holds no fitted method"):
        load(tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.txt").write_text("dear")
    with pytest.raises(InputError, match="something else"):
        save(Ernest().fit(made_up()), tmp_path / "other")
    with pytest.raises(InputError, match="cannot be saved"):
        save(PredictDDL(history=lambda kind: made_up()).fit(made_up()), tmp_path / "new")
