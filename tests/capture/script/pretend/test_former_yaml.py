"""Settings that are read as ruamel.yaml read them until 0.18."""

from __future__ import annotations

import io
from types import ModuleType
from typing import Any

import pytest

from foretell.capture.script.pretend.former_yaml import _ruamel


def test_settings_are_read_and_written_by_functions() -> None:
    library: Any = pytest.importorskip("ruamel.yaml")
    module: Any = ModuleType("yaml")
    module.YAML, module.version_info = library.YAML, (0, 18, 0)
    _ruamel(module)
    assert module.safe_load("rate: 1e-4\nsizes: [1, 2]") == {"rate": 1e-4, "sizes": [1, 2]}
    assert module.load("a: 1", Loader=None) == {"a": 1}
    assert list(module.safe_load_all("a: 1\n---\na: 2")) == [{"a": 1}, {"a": 2}]
    into = io.StringIO()
    module.round_trip_dump({"a": 1}, into)
    assert into.getvalue() == "a: 1\n"
    assert module.safe_load(module.safe_dump({"a": 1})) == {"a": 1}


def test_an_older_version_is_left_as_it_is() -> None:
    module: Any = ModuleType("yaml")
    module.version_info = (0, 17, 4)
    _ruamel(module)
    assert not hasattr(module, "safe_load")
