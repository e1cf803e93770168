"""Environments of gym and gymnasium: those whose simulator is missing are stood in for, and old scripts are answered as of old."""

from __future__ import annotations

import importlib
import sys
import types
from collections import Counter
from typing import Any, Final
from weakref import WeakKeyDictionary

import numpy as np

from foretell.capture.script.imports import once_imported, provide
from foretell.capture.script.pretend.games import control, emulator
from foretell.capture.script.pretend.games.answers import give_former_numbers, takes_former_reset, takes_former_step
from foretell.capture.script.pretend.games.known import Game, known_game, registered
from foretell.capture.script.pretend.nothing import Nothing
from foretell.capture.script.session import Session

# Packages that are imported so that their environments are known by name.
_REGISTER: Final = frozenset("mujoco_py pybullet pybullet_envs roboschool Box2D".split())
_MEANINGS: Final = ("NOOP", "FIRE", "UP", "RIGHT", "LEFT", "DOWN")
_PIXEL: Final = 255
_WHOLE: Final = 2  # episodes in a row of which nothing is learnt, in a second environment: the rest of them are short
_SHORT: Final = 10  # steps
_made: WeakKeyDictionary[Session, Counter[str]] = WeakKeyDictionary()


def install(session: Session) -> None:
    for library in ("gym", "gymnasium"):
        once_imported(f"{library}.envs.registration", lambda module: _adapt(module, session))
    once_imported("gym.utils.seeding", give_former_numbers)
    if session.script.fake_data:
        provide(lambda name: name.partition(".")[0] in _REGISTER, Nothing)
        provide(lambda name: name.partition(".")[0] in emulator.PACKAGES, lambda name: emulator.package(name, session))
        control.install(session, _wrapped)


def _wrapped(identity: str, game: Game, session: Session) -> Any:
    """An environment of gym that a package other than gym makes."""
    return answering(stand_in("gym", identity, game, session))


def _adapt(module: Any, session: Session) -> None:
    make = module.make
    library = module.__name__.partition(".")[0]

    def made(id: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            environment = make(id, *args, **kwargs)
        except Exception:  # the simulator, this version or the name is missing, in each library's own words
            game = known_game(str(getattr(id, "id", id))) if session.script.fake_data else None
            environment = _other_version(module, id, make) if game is None else None
            if game is not None:
                environment = stand_in(library, str(getattr(id, "id", id)), game, session)
            if environment is None:
                raise
        return answering(environment) if library == "gym" else environment

    module.make = made
    if session.script.fake_data and (describe := getattr(module, "EnvSpec", None)) is not None:
        for identity, origin in registered():  # for scripts that look a name up before they make it
            if identity not in module.registry:
                module.registry[identity] = describe(id=identity, entry_point=origin)


def _other_version(module: Any, identity: Any, make: Any) -> Any:
    """The same environment of a version that is there: `Pendulum-v0` became `Pendulum-v1`."""
    name, _, version = str(identity).rpartition("-v")
    others = [key for key in getattr(module, "registry", ()) if key.rpartition("-v")[0] == name]
    return make(others[-1]) if name and version.isdigit() and others and identity not in others else None


def answering(environment: Any) -> Any:
    """Answers as gym did before 0.26 to a script that takes it so."""
    wrapper: Any = sys.modules["gym"].Wrapper

    class Answering(wrapper):  # type: ignore[misc]
        def step(self, action: Any) -> Any:
            answer = self.env.step(action)
            if len(answer) != 5 or not takes_former_step():
                return answer
            observed, reward, ended, cut, info = answer
            return observed, reward, bool(ended or cut), info

        def reset(self, **how: Any) -> Any:
            answer = self.env.reset(**how)
            return answer[0] if isinstance(answer, tuple) and takes_former_reset() else answer

        def seed(self, seed: Any = None) -> list[Any]:
            self.env.reset(seed=seed)
            return [seed]

        @property
        def unwrapped(self) -> Any:
            inner = self.env.unwrapped
            return answering(inner) if inner is not self.env else self

        @property
        def _max_episode_steps(self) -> Any:
            return getattr(self.env, "__dict__", {}).get("_max_episode_steps") or getattr(
                self.spec, "max_episode_steps", None
            )

    return Answering(environment)


def stand_in(library: str, identity: str, game: Game, session: Session) -> Any:
    session.stand_in(
        f"the environment {identity}",
        f"{' x '.join(map(str, game.observed))} observed, {game.actions} {'actions' if game.discrete else 'numbers an action'}; "
        "it takes no time",
        decides_size=game.assumed,
    )
    spaces, base = importlib.import_module(f"{library}.spaces"), sys.modules[library].Env
    pixels = len(game.observed) > 1 or game.observed == (128,)
    limit, kind = (_PIXEL, np.uint8) if pixels else (np.inf, np.float32)
    observation = spaces.Box(low=0 if pixels else -limit, high=limit, shape=game.observed, dtype=kind)
    action = (
        spaces.Discrete(game.actions)
        if game.discrete
        else spaces.Box(low=-game.bound, high=game.bound, shape=(game.actions,), dtype=np.float32)
    )
    numbers = np.random.default_rng(0)
    made = _made.setdefault(session, Counter())
    made[identity] += 1
    is_second = made[identity] > 1

    class Environment(base):  # type: ignore[misc, valid-type]
        metadata: Final = {"render_modes": ["human", "rgb_array"], "render_fps": 30}
        observation_space, action_space, render_mode = observation, action, "rgb_array"
        reward_range = (-np.inf, np.inf)
        spec = types.SimpleNamespace(
            id=identity, max_episode_steps=game.steps, reward_threshold=None, name=identity, kwargs={}
        )
        ale = types.SimpleNamespace(lives=lambda: 0)
        dt = 0.01
        _max_episode_steps = game.steps
        _steps = 0
        _episodes = 0  # since the last update
        _updates = 0

        def _is_over(self) -> bool:
            """At its published length. Of those that evaluate an agent the first are as long, and their lengths decide nothing."""
            evaluates = is_second and self._episodes > _WHOLE and session.passes.acts
            return self._steps >= (min(_SHORT, game.steps) if evaluates else game.steps)

        def _observed(self) -> Any:
            if pixels:
                return np.zeros(game.observed, kind)
            return numbers.standard_normal(game.observed).astype(kind)

        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            updates = len(session.updates.sequence)
            self._episodes = self._episodes + 1 if updates == self._updates else 1
            self._steps, self._updates = 0, updates
            return self._observed(), {}

        def step(self, action: Any) -> Any:
            self._steps += 1
            return self._observed(), 0.0, False, self._is_over(), {}

        def get_action_meanings(self) -> list[str]:
            return [_MEANINGS[i] if i < len(_MEANINGS) else f"ACTION{i}" for i in range(game.actions)]

        def get_dataset(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
            """What was recorded of it, as D4RL gives it: twenty episodes."""
            rows = 20 * game.steps
            seen = numbers.standard_normal((rows, *game.observed)).astype(np.float32)
            ends = (np.arange(rows) + 1) % game.steps == 0
            taken = np.zeros((rows, game.actions), np.float32)
            return {"observations": seen, "next_observations": seen, "actions": taken, "rewards": np.zeros(rows, np.float32),
                    "terminals": np.zeros(rows, bool), "timeouts": ends}  # fmt: skip

        def get_normalized_score(self, score: Any) -> float:
            return 0.0

        def render(self, *args: Any, **kwargs: Any) -> Any:
            return np.zeros((64, 64, 3), np.uint8)

        def seed(self, seed: Any = None) -> list[Any]:
            return [seed]

        def close(self) -> None:
            return None

    return Environment()
