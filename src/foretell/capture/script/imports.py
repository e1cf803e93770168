"""What is done to a library once a script has imported it; nothing is imported for its sake."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from typing import Any

_WAITING: dict[str, list[Callable[[Any], None]]] = {}


def once_imported(name: str, adapt: Callable[[Any], None]) -> None:
    """Call `adapt` with the module of that name, now or when it is imported."""
    if name in sys.modules:
        adapt(sys.modules[name])
        return
    if not _WAITING:
        sys.meta_path.insert(0, _Finder())
    _WAITING.setdefault(name, []).append(adapt)


class _Finder:
    """Finds a module as the others do, and adapts it after it has run."""

    def __init__(self) -> None:
        self._asking = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in _WAITING or self._asking:
            return None
        self._asking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._asking = False
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            run(module)
            for adapt in _WAITING.pop(name, ()):
                adapt(sys.modules.get(name, module))  # some put another in their place

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
