"""Atari's emulator itself, as atari_py and ale_py have it, where they are not installed: screens of the published size, in no time."""

from __future__ import annotations

import os
import types
from typing import Any, Final

import numpy as np

from foretell.capture.script.pretend.games.known import Game, known_game
from foretell.capture.script.pretend.nothing import Nothing
from foretell.capture.script.session import Session

PACKAGES: Final = ("atari_py", "ale_py")
_LEGAL: Final = 18  # buttons of the console
_RAM: Final = 128
_LIVES: Final = 5


def package(name: str, session: Session) -> types.ModuleType:
    """The package, or a part of it, with an emulator; all else in it does nothing."""
    module = Nothing(name)
    module.ALEInterface = lambda *args, **kwargs: _Emulator(session)
    module.get_game_path = str
    return module


def _game(path: Any) -> Game | None:
    """By the name of a file: `space_invaders.bin` is SpaceInvaders."""
    name, _ = os.path.splitext(os.path.basename(str(path)))
    return known_game("".join(part[:1].upper() + part[1:] for part in name.split("_")) + "NoFrameskip-v4")


class _Emulator:
    def __init__(self, session: Session) -> None:
        self._session = session
        self._actions, self._limit, self._steps = _LEGAL, 0, 0

    def loadROM(self, path: Any) -> None:
        game = _game(path)
        if game is None:
            return
        self._actions, self._limit = game.actions, game.steps
        self._session.stand_in(
            f"the game {os.path.basename(str(path))}",
            f"{' x '.join(map(str, game.observed))} observed, {game.actions} actions; it takes no time",
            decides_size=game.assumed,
        )

    def getMinimalActionSet(self) -> Any:
        return np.arange(self._actions)

    def getLegalActionSet(self) -> Any:
        return np.arange(_LEGAL)

    def act(self, action: Any) -> int:
        self._steps += 1
        return 0

    def game_over(self) -> bool:
        return self._steps >= self._limit

    def reset_game(self) -> None:
        self._steps = 0

    def lives(self) -> int:
        return _LIVES

    def getScreenDims(self) -> tuple[int, int]:
        return 210, 160

    def getScreenGrayscale(self, *into: Any) -> Any:
        return np.zeros((210, 160), np.uint8)

    def getScreenRGB(self, *into: Any) -> Any:
        return np.zeros((210, 160, 3), np.uint8)

    getScreenRGB2 = getScreenRGB

    def getRAM(self, *into: Any) -> Any:
        return np.zeros(_RAM, np.uint8)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing(f"ALEInterface.{name}")  # its settings
