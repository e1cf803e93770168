"""The digest that answers are found again by: it follows the content of all they rest on, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from foretell import Cluster, Plan, Profile, engine
from foretell.capture import cache as graph_cache
from foretell.profile.residuals import Residuals


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A small engine: a module, a room with another, and a model."""
    for name in ("units.py", "cost/price.py", "cost/models/a/weights.safetensors", "report/page.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    monkeypatch.setattr(engine, "_PACKAGE", tmp_path)
    engine.engine_digest.cache_clear()
    yield tmp_path
    engine.engine_digest.cache_clear()


@pytest.mark.parametrize("changed", ["units.py", "cost/price.py", "cost/models/a/weights.safetensors", "cost/new.py"])
def test_another_engine_has_another_digest(package: Path, changed: str) -> None:
    whole, room, other = engine.digest("q"), engine.engine_digest("cost"), engine.engine_digest("report")
    (package / changed).write_text("otherwise")
    assert engine.digest("q") == whole  # what is loaded stays as it is
    engine.engine_digest.cache_clear()
    assert engine.digest("q") != whole
    assert engine.engine_digest("cost") != room
    assert (engine.engine_digest("report") != other) == (changed == "units.py")


def test_what_python_compiles_changes_nothing(package: Path) -> None:
    before = engine.engine_digest()
    (package / "cost" / "__pycache__").mkdir()
    (package / "cost" / "__pycache__" / "price.pyc").write_text("compiled")
    engine.engine_digest.cache_clear()
    assert engine.engine_digest() == before


def test_a_digest_follows_the_content() -> None:
    cluster = Cluster.parse("4x8xh100-sxm")
    other = replace(cluster.nodes[0], host=replace(cluster.nodes[0].host, name="slow"))
    assert engine.digest(cluster) == engine.digest(Cluster.parse("32xh100-sxm"))  # as it is, however it is written
    assert engine.digest(cluster) != engine.digest(replace(cluster, nodes=(other,) * 4))
    assert engine.digest({"a": 1, "b": 2}) == engine.digest({"b": 2, "a": 1})
    assert engine.digest(["ab", "c"]) != engine.digest(["a", "bc"])
    assert engine.digest(Plan(dp=2)) != engine.digest(Plan(tp=2))
    with pytest.raises(TypeError, match="named by object"):
        engine.digest(object())


def test_residual_models_differ_by_every_point() -> None:
    """A text of them would be cut short."""
    points = tuple((float(i),) for i in range(5000))
    one = Residuals(columns=("a",), scales=(1.0,), points=points, weights=(0.5,) * 5000)
    other = replace(one, weights=(*one.weights[:2500], 0.25, *one.weights[2501:]))
    assert len({engine.digest(Profile(name="p", residuals=each)) for each in (one, other)}) == 2


def test_captures_are_kept_by_the_same_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    before = graph_cache.key("timm/resnet50", {})
    assert graph_cache.key("timm/resnet50", {}) == before
    monkeypatch.setattr(engine, "engine_digest", lambda *rooms: "another")
    assert graph_cache.key("timm/resnet50", {}) != before
