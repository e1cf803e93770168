"""Published systems that were fitted, and that a service answers by beside Foretell's own engine."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from foretell.errors import InputError, did_you_mean
from foretell.methods.saved import saved_kind
from foretell.serve.problems import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedMethod:
    """A folder that `foretell fit FOLDER --method NAME` wrote; questions name it by the folder's name."""

    name: str
    method: str
    folder: Path


class FittedMethods:
    """Those in the folders that whoever runs the service named. They are looked at when it starts, read when they are asked."""

    def __init__(self, folders: str | None) -> None:
        self._known: dict[str, FittedMethod] = {}
        for folder in (Path(part).expanduser().absolute() for part in (folders or "").split(os.pathsep) if part):
            if folder.name in self._known:
                raise InputError(f"two fitted methods are called {folder.name}. Rename one of the folders.")
            self._known[folder.name] = FittedMethod(name=folder.name, method=saved_kind(folder), folder=folder)

    def listed(self) -> tuple[FittedMethod, ...]:
        return tuple(self._known.values())

    def named(self, name: str) -> FittedMethod:
        if name in self._known:
            return self._known[name]
        raise Problem(
            404, f"no fitted method {name!r} on this service. {did_you_mean(name, self._known)}".strip(),
            got=name, allowed=", ".join(self._known) or "none was named",
            next="Whoever runs the service names them: foretell serve --method FOLDER.",
        )  # fmt: skip
