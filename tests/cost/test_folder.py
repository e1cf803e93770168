"""A model's folder by version: what is new is its own, the rest is inherited, and nothing shipped changes."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

from foretell.cost.accuracy import FILE as ACCURACY
from foretell.cost.attained import FILE as ATTAINED
from foretell.cost.attained import attained_in
from foretell.cost.folder import CARD, DEFAULT, SHIPPED, check_seal, file_of, seal, shipped, versions
from foretell.cost.model import load_model, names
from foretell.cost.operators import FUSED_FILE
from foretell.errors import ModelError
from foretell.forecasting.uncertainty.jobs import jobs_of
from foretell.forecasting.uncertainty.other_devices import other_devices_of

FIRST = "h200-2026.11"
THIRD, FOURTH, SEVENTH, EIGHTH, NINTH = (f"{FIRST}.{number}" for number in (3, 4, 7, 8, 9))
LATEST = int(DEFAULT.rpartition(".")[2])
EARLIER = (*(f"{FIRST}.{number}" for number in range(LATEST - 1, 1, -1)), FIRST)  # each inherits from the next


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in (DEFAULT, *EARLIER):
        shutil.copytree(SHIPPED / name, tmp_path / name)
    return tmp_path / DEFAULT


def inherit(folder: Path, name: object) -> None:
    (folder / CARD).write_text(json.dumps(json.loads((folder / CARD).read_text()) | {"inherits": name}))
    seal(folder)


def test_the_default_model_inherits_what_did_not_change(folder: Path) -> None:
    assert versions(folder) == (folder, *(folder.parent / name for name in EARLIER))
    assert not (folder / "calibration.json").exists()
    assert file_of(folder, "calibration.json") == folder.parent / FIRST / "calibration.json"
    assert file_of(folder, "operators.safetensors") == folder.parent / NINTH / "operators.safetensors"
    assert file_of(folder, FUSED_FILE) == folder.parent / EIGHTH / FUSED_FILE
    assert file_of(folder, "other_devices.json") == folder.parent / FOURTH / "other_devices.json"
    assert file_of(folder, ATTAINED) == folder.parent / NINTH / ATTAINED
    assert load_model(str(folder)).device == "h200"


def test_models_of_all_versions_are_read() -> None:
    """The first has the errors on other devices and what trainers add under names of their own."""
    assert {DEFAULT, *EARLIER} <= set(names())
    old, new = load_model(FIRST), load_model(DEFAULT)
    assert other_devices_of(old) == other_devices_of(load_model(THIRD))
    first, second = jobs_of(old), jobs_of(new)
    assert first is not None
    assert second is not None
    assert first.overhead(None).fraction == first.overhead("tuned").fraction == pytest.approx(0.17, abs=0.02)
    products = {
        (name, group) for name, groups in old.generations.factors.items() for group in groups if "matmul" in group
    }
    kept = {(name, group) for name, groups in new.generations.factors.items() for group in groups}
    assert products - kept == products - {
        ("CDNA", "matmul fp32")
    }  # where the clock under power is known, steps were worse


def test_versions_differ_in_what_they_say_they_do() -> None:
    """How far published jobs are off is measured with each version (`foretell bench resources --write`)."""
    assert {path.name for path in (SHIPPED / EIGHTH).iterdir()} == {
        "accuracy.json", "card.json", "checksums.json", "fused.safetensors", "fused_spreads.safetensors", "host.json"
    }  # fmt: skip
    plain = [dataclasses.asdict(load_model(name).host) for name in (SEVENTH, EIGHTH)]
    assert {name for name, cost in plain[1].items() if cost != plain[0][name]} == {
        "launched", "whole", "given", "entering"
    }  # fmt: skip
    ops = {path.name for path in (SHIPPED / NINTH).iterdir()}
    assert ops == {"attained.json", "card.json", "checksums.json", "generations.json", "operators.safetensors"}


def test_a_folder_named_by_its_whole_path_is_read_again_once_it_has_changed(folder: Path) -> None:
    name = str(folder.resolve())
    shutil.copy(folder.parent / SEVENTH / "software.json", folder)
    seal(folder)
    assert load_model(name).older_software.times
    (folder.parent / SEVENTH / "software.json").unlink()
    seal(folder.parent / SEVENTH)
    (folder / "software.json").unlink()
    seal(folder)
    assert not load_model(name).older_software.times


def test_the_version_before_must_be_as_it_was(folder: Path) -> None:
    path = folder.parent / FIRST / "operators.safetensors"
    data = bytearray(path.read_bytes())
    data[-1000] ^= 1
    path.write_bytes(data)
    with pytest.raises(ModelError, match=r"operators\.safetensors is damaged"):
        check_seal(folder)


def test_the_version_before_must_be_there(folder: Path) -> None:
    shutil.rmtree(folder.parent / SEVENTH)
    with pytest.raises(ModelError, match="no model beside it"):
        load_model(str(folder))


@pytest.mark.parametrize("name", ["../elsewhere", "/etc", 7, "nothing"])
def test_nothing_but_a_folder_beside_it_is_inherited_from(folder: Path, name: object) -> None:
    inherit(folder, name)
    with pytest.raises(ModelError, match="no model beside it"):
        load_model(str(folder))


def test_versions_in_a_circle_are_refused(folder: Path) -> None:
    inherit(folder.parent / SEVENTH, DEFAULT)
    with pytest.raises(ModelError, match="in a circle"):
        load_model(str(folder))


@pytest.mark.parametrize(
    "change", [{"shares": {}}, {"bandwidth": -1}, {"tiles": {}}, {"picojoules": {"x": {"vector": 1, "matrix": 1}}}]
)
def test_rates_that_devices_attain_are_numbers(folder: Path, change: dict[str, object]) -> None:
    path = folder.parent / THIRD / ATTAINED
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ModelError, match="rates that devices attain"):
        attained_in(folder.parent / THIRD)


def test_a_folder_without_rates_takes_the_shipped_ones(tmp_path: Path) -> None:
    assert attained_in(tmp_path) == attained_in(None) == attained_in(shipped())
    assert file_of(shipped(), ACCURACY) is not None
