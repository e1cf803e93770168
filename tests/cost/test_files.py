"""Model folders: damaged ones are refused, hostile ones neither crash nor run away."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

from foretell import Graph, forecast
from foretell.cost.files import save_arrays
from foretell.cost.folder import CHECKSUMS, seal
from foretell.cost.model import SHIPPED, load_model
from foretell.cost.trees import Trees
from foretell.errors import ModelError
from foretell.forecasting.uncertainty.other_devices import other_devices_of
from foretell.forecasting.uncertainty.own_device import calibration_of

GRAPH = Path(__file__).parents[1] / "fuzz" / "bases" / "experts.graph"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(SHIPPED / "h200-2026.11", tmp_path / "model"))


def changed(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_the_shipped_model_has_its_checksums() -> None:
    for path in SHIPPED.iterdir():
        assert len(json.loads((path / CHECKSUMS).read_text())) == sum(p.is_file() for p in path.rglob("*")) - 1


def test_one_flipped_bit_is_found(folder: Path) -> None:
    whole = (folder / "operators.safetensors").read_bytes()
    data = bytearray(whole)
    data[-1000] ^= 1
    (folder / "operators.safetensors").write_bytes(data)
    with pytest.raises(ModelError, match=r"operators\.safetensors is damaged, or was changed"):
        load_model(str(folder))
    (folder / "operators.safetensors").write_bytes(whole)
    (folder / CHECKSUMS).unlink()  # as models of earlier versions have none
    load_model(str(folder))


def test_checksums_of_files_elsewhere_are_not_made(folder: Path) -> None:
    (folder / CHECKSUMS).write_text(json.dumps({"../../etc/passwd": "0"}))
    with pytest.raises(ModelError, match="no file of the model"):
        load_model(str(folder))


def test_arrays_of_the_network_fit_each_other_and_are_numbers(folder: Path) -> None:
    path = folder / "interaction.safetensors"
    with safe_open(path, framework="numpy") as file:
        whole, about = {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118
    del about["version"]
    for name, array in (
        ("mean", whole["mean"][:-1]),
        ("scale", whole["scale"] * 0),
        ("head.bias", np.array([np.nan], np.float32)),
    ):
        save_arrays(path, whole | {name: array}, version=1, **about)
        seal(folder)
        with pytest.raises(ModelError, match="interaction network"):
            load_model(str(folder))


def test_costs_of_a_host_are_numbers(folder: Path) -> None:
    for change in ({"listed": "x"}, {"view": {}}, {"gap": 1e300}, {"step": [1]}):
        shutil.copy(SHIPPED / "h200-2026.11" / "host.json", folder)
        changed(folder / "host.json", **change)
        seal(folder)
        with pytest.raises(ModelError, match="costs of a host"):
            load_model(str(folder))


def test_errors_of_a_model_are_numbers(folder: Path) -> None:
    model = load_model(str(folder))
    for pairs in ([], [[1, 2, 3]], [1.0], "x", [[1e300, 0]]):
        changed(folder / "calibration.json", pairs=pairs)
        with pytest.raises(ModelError, match=r"calibration\.json"):
            calibration_of(model)
    for change in ({"held": []}, {"reach": 0}, {"unknown": [1]}, {"held": [{"device": "x"}]}):
        shutil.copy(SHIPPED / "h200-2026.11" / "elsewhere.json", folder)
        changed(folder / "elsewhere.json", **change)
        with pytest.raises(ModelError, match=r"elsewhere\.json"):
            other_devices_of(model)


def test_leaves_of_any_size_give_a_time(folder: Path) -> None:
    path = folder / "operators.safetensors"
    with safe_open(path, framework="numpy") as file:
        arrays, about = {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118
    arrays = {name: array * 1e30 if name.endswith(".value") else array for name, array in arrays.items()}
    save_arrays(path, arrays, version=2, families=about["families"])
    seal(folder)
    assert 0 < forecast(Graph.load(GRAPH), "h200", model=str(folder)).step_time.seconds < 1e6


def test_trees_without_end_are_refused() -> None:
    def trees(nodes: int) -> Trees:
        test = np.tile(np.array([0], np.uint8), nodes)
        empty = np.zeros(0, np.uint8)
        return Trees(
            test=test, cut=empty, value=np.zeros(nodes, np.float32), column=empty, missing=empty, edges=np.zeros(0), edge_counts=empty,
            sets=np.zeros((0, 1), np.uint8),
        )  # fmt: skip

    assert trees(1000).predict(np.zeros((2, 1))).tolist() == [0, 0]
    with pytest.raises(ValueError, match="more than 100,000 trees"):
        trees(200_000)
    with pytest.raises(ValueError, match="nodes, more than"):
        trees(2_000_000)
