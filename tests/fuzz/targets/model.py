"""Model folders: files damaged, arrays and numbers changed, parts left out; what is read prices a graph."""

from __future__ import annotations

import json
import random
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open

import foretell
from foretell import Graph
from foretell.cost.files import save_arrays
from foretell.cost.folder import CARD, CHECKSUMS, DEFAULT, seal, versions
from foretell.cost.model import SHIPPED
from tests.fuzz.answers import check_forecast
from tests.fuzz.mutate import change, damaged

GRAPHS = sorted((Path(__file__).parents[1] / "bases").glob("*.graph"))
FLOATS = (0.0, -1.0, 1e30, -1e30, float("nan"), float("inf"), 1e-30)


@cache
def shipped() -> Path:
    """The shipped model with few families, so that a case is quick."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz-model-"))
    for path in (path for version in reversed(versions(SHIPPED / DEFAULT)) for path in version.glob("*.*")):
        shutil.copy(path, folder)
    (folder / CARD).write_text(json.dumps(json.loads((folder / CARD).read_text()) | {"inherits": ""}))
    arrays, about = read(folder / "operators.safetensors")
    kept = ("matmul", "elementwise", "norm", "attention")
    families = {name: entry for name, entry in json.loads(about["families"]).items() if name in kept}
    arrays = {name: array for name, array in arrays.items() if name.split(".")[0] in kept}
    save_arrays(folder / "operators.safetensors", arrays, version=2, families=json.dumps(families))
    seal(folder)
    return folder


def read(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    with safe_open(path, framework="numpy") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118  (it is no mapping)


def prepare() -> None:
    foretell.forecast(Graph.load(GRAPHS[0]), "h200", model=str(shipped()))


def case(rng: random.Random) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "model"
        shutil.copytree(shipped(), folder)
        path = rng.choice([p for p in sorted(folder.iterdir()) if p.name != "card.json"])
        match rng.randrange(5):
            case 0:
                path.unlink()
            case 1:
                path.write_bytes(damaged(rng, path.read_bytes()))
            case _ if path.suffix == ".json":
                content = json.loads(path.read_text())
                change(rng, content)
                path.write_text(json.dumps(content))
            case _:
                _change_arrays(rng, path)
        if rng.random() < 0.8 and path.name != CHECKSUMS:
            seal(folder)
        graph = Graph.load(rng.choice(GRAPHS))
        check_forecast(foretell.forecast(graph, rng.choice(("h200", "2xh200", "a10g")), model=str(folder)))


def _change_arrays(rng: random.Random, path: Path) -> None:
    arrays, about = read(path)
    name = rng.choice(list(arrays))
    array = arrays[name].copy()
    match rng.randrange(6 if array.size else 5):
        case 0:
            arrays[name] = array[: rng.randrange(len(array) + 1)]
        case 1:
            arrays[name] = array.astype(rng.choice((np.float32, np.int64, np.uint8)))
        case 2:
            arrays[name] = array.reshape(-1, 1)
        case 3:
            rng.shuffle(array)
            arrays[name] = array
        case 4:
            del arrays[name]
        case _:
            at = [rng.randrange(array.size) for _ in range(rng.choice((1, 5)))]
            values = FLOATS if array.dtype.kind == "f" else (0, 1, np.iinfo(array.dtype).max)
            array.flat[at] = rng.choice(values)
            arrays[name] = array
    if rng.random() < 0.2:
        key = rng.choice(list(about))
        about[key] = rng.choice(("", "[]", "{}", "-1", "nan", "99", '{"matmul": {}}', about[key][:-1]))
    version = about.pop("version")
    save_arrays(path, arrays, version=version, **about)  # type: ignore[arg-type]
