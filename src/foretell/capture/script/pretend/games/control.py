"""Packages around gym that are not installed: dm_control and dmc2gym (the DeepMind Control Suite), d4rl, mpi4py."""

from __future__ import annotations

import collections
import dataclasses
import enum
import importlib
import types
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from foretell.capture.script.imports import provide
from foretell.capture.script.pretend.games.known import Game, controlled
from foretell.capture.script.pretend.lacking import StandInError
from foretell.capture.script.pretend.nothing import Nothing
from foretell.capture.script.session import Session

_EPISODE: Final = 1000  # steps of the suite's
Make = Callable[[str, Game, Session], Any]


def install(session: Session, make: Make) -> None:
    modules: dict[str, dict[str, Any]] = {
        "dmc2gym": {"make": lambda *args, **kwargs: _gym(session, make, *args, **kwargs)},
        "dm_env": _dm_env(), "dm_env.specs": _specs(), "dm_control": {},
        "dm_control.suite": {"load": lambda *args, **kwargs: _Suite(session, *args, **kwargs), "ALL_TASKS": (), "BENCHMARKING": ()},
        "dm_control.suite.wrappers": {}, "dm_control.suite.wrappers.action_scale": {"Wrapper": _Wrapper},
        "dm_control.suite.wrappers.pixels": {"Wrapper": _Pixels}, "d4rl": _recorded(),
        "mpi4py": {"MPI": types.SimpleNamespace(COMM_WORLD=_Alone(), SUM=0, MIN=1, MAX=2, FLOAT=None, DOUBLE=None)},
    }  # fmt: skip

    def made(name: str) -> types.ModuleType:
        if name not in modules:
            return Nothing(name)
        module: Any = types.ModuleType(name)
        vars(module).update(modules[name])
        module.__getattr__ = lambda part: _part(name, part, modules)
        return module  # type: ignore[no-any-return]

    packages = {name.partition(".")[0] for name in modules}
    provide(
        lambda name: name in modules or (name.partition(".")[0] in packages - {"dm_env"} and "._" not in name), made
    )


def _part(name: str, part: str, modules: dict[str, dict[str, Any]]) -> Any:
    if f"{name}.{part}" in modules:
        return importlib.import_module(f"{name}.{part}")
    if part.startswith("__"):
        raise AttributeError(part)
    return Nothing(f"{name}.{part}")


def _known(domain: str, task: str) -> Game:
    game = controlled(domain, task)
    if game is None:
        raise StandInError(
            "the DeepMind Control Suite", f"{domain} {task}", "Install dm_control, or choose another task."
        )
    return game


def _gym(
    session: Session, make: Make, domain_name: str, task_name: str, seed: Any = 1, visualize_reward: bool = True,
    from_pixels: bool = False, height: int = 84, width: int = 84, camera_id: int = 0, frame_skip: int = 1,
    episode_length: int = _EPISODE, environment_kwargs: Any = None, time_limit: Any = None, channels_first: bool = True,
) -> Any:  # fmt: skip
    game = _known(domain_name, task_name)
    shape = game.observed
    if from_pixels:
        shape = (3, height, width) if channels_first else (height, width, 3)
    steps = (episode_length + frame_skip - 1) // frame_skip
    return make(
        f"{domain_name} {task_name}", dataclasses.replace(game, observed=shape, steps=steps, bound=1.0), session
    )


def _recorded() -> dict[str, Any]:
    def dataset(env: Any, dataset: Any = None, **kwargs: Any) -> Any:
        return dataset if dataset is not None else env.get_dataset()

    return {"qlearning_dataset": dataset, "get_normalized_score": lambda name, score: 0.0}


class _Alone:
    """The only process of MPI's."""

    def Get_rank(self) -> int:
        return 0

    def Get_size(self) -> int:
        return 1

    def Allreduce(self, given: Any, taken: Any, *args: Any, **kwargs: Any) -> None:
        taken[...] = given

    def allreduce(self, given: Any, *args: Any, **kwargs: Any) -> Any:
        return given

    def bcast(self, given: Any = None, *args: Any, **kwargs: Any) -> Any:
        return given

    def gather(self, given: Any, *args: Any, **kwargs: Any) -> list[Any]:
        return [given]

    allgather = gather
    rank, size = 0, 1

    def Bcast(self, *args: Any, **kwargs: Any) -> None:
        return None

    Barrier = barrier = Abort = Bcast


# dm_env


class _StepType(enum.IntEnum):
    FIRST = 0
    MID = 1
    LAST = 2


class _TimeStep(collections.namedtuple("TimeStep", "step_type reward discount observation")):
    __slots__ = ()

    def first(self) -> bool:
        return bool(self.step_type == _StepType.FIRST)

    def mid(self) -> bool:
        return bool(self.step_type == _StepType.MID)

    def last(self) -> bool:
        return bool(self.step_type == _StepType.LAST)


class _Environment:
    """What environments derive from."""

    def close(self) -> None:
        return None


class _Array:
    """What is known of an array: its shape, type and name, and bounds."""

    def __init__(self, shape: Any, dtype: Any, *bounds: Any, name: Any = None, **more: Any) -> None:
        self.shape, self.dtype = tuple(shape), np.dtype(dtype)
        named = name if name is not None or len(bounds) % 2 == 0 else bounds[-1]
        self.name = named
        self.minimum = np.asarray(more.get("minimum", bounds[0] if len(bounds) > 1 else 0))
        self.maximum = np.asarray(more.get("maximum", bounds[1] if len(bounds) > 1 else 0))

    def validate(self, value: Any) -> Any:
        return value

    def generate_value(self) -> Any:
        return np.zeros(self.shape, self.dtype)

    def replace(self, **changes: Any) -> _Array:
        made = _Array(self.shape, self.dtype, self.minimum, self.maximum, name=self.name)
        vars(made).update(changes)
        return made


def _specs() -> dict[str, Any]:
    return {"Array": _Array, "BoundedArray": _Array, "DiscreteArray": _Array, "StringArray": _Array}


def _dm_env() -> dict[str, Any]:
    return {
        "StepType": _StepType, "TimeStep": _TimeStep, "Environment": _Environment,
        "restart": lambda observation: _TimeStep(_StepType.FIRST, None, None, observation),
        "transition": lambda reward, observation, discount=1.0: _TimeStep(_StepType.MID, reward, discount, observation),
        "termination": lambda reward, observation: _TimeStep(_StepType.LAST, reward, 0.0, observation),
        "truncation": lambda reward, observation, discount=1.0: _TimeStep(_StepType.LAST, reward, discount, observation),
    }  # fmt: skip


class _Suite(_Environment):
    """A task of the suite: numbers observed as one, and pictures where they are wanted."""

    def __init__(self, session: Session, domain_name: str, task_name: str, *args: Any, **kwargs: Any) -> None:
        self._game = _known(domain_name, task_name)
        self._at = 0
        self.physics = types.SimpleNamespace(render=_picture, timestep=lambda: 0.01, control=lambda: np.zeros(1))
        self.task = self._task = types.SimpleNamespace(random=np.random.RandomState(0), visualize_reward=False)
        session.stand_in(
            f"{domain_name} {task_name} of the DeepMind Control Suite",
            f"{self._game.observed[0]} numbers observed, {self._game.actions} numbers an action; it takes no time",
        )

    def _step(self, kind: _StepType) -> _TimeStep:
        seen = collections.OrderedDict(observations=np.zeros(self._game.observed))
        first = kind is _StepType.FIRST
        return _TimeStep(kind, None if first else 0.0, None if first else 1.0, seen)

    def reset(self) -> _TimeStep:
        self._at = 0
        return self._step(_StepType.FIRST)

    def step(self, action: Any) -> _TimeStep:
        self._at += 1
        return self._step(_StepType.LAST if self._at >= _EPISODE else _StepType.MID)

    def action_spec(self) -> Any:
        bound = np.ones(self._game.actions)
        return _Array(bound.shape, np.float64, -bound, bound, name="action")

    def observation_spec(self) -> Any:
        return collections.OrderedDict(observations=_Array(self._game.observed, np.float64, name="observations"))

    def reward_spec(self) -> Any:
        return _Array((), np.float64, name="reward")

    def discount_spec(self) -> Any:
        return _Array((), np.float64, 0.0, 1.0, name="discount")


def _picture(height: int = 240, width: int = 320, *args: Any, **kwargs: Any) -> Any:
    return np.zeros((height, width, 3), np.uint8)


class _Wrapper(_Environment):
    """Changes the range of actions, which costs nothing."""

    def __init__(self, env: Any, *args: Any, **kwargs: Any) -> None:
        self._env = env

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)


class _Pixels(_Wrapper):
    """Pictures in place of numbers, or besides them."""

    def __init__(
        self,
        env: Any,
        pixels_only: bool = True,
        render_kwargs: Any = None,
        observation_key: str = "pixels",
        **kwargs: Any,
    ) -> None:
        super().__init__(env)
        self._only, self._key = pixels_only, observation_key
        self._size = (render_kwargs or {}).get("height", 240), (render_kwargs or {}).get("width", 320)

    def _seen(self, step: _TimeStep) -> Any:
        kept = {} if self._only else dict(step.observation)
        return step._replace(observation=collections.OrderedDict(kept | {self._key: _picture(*self._size)}))

    def reset(self) -> Any:
        return self._seen(self._env.reset())

    def step(self, action: Any) -> Any:
        return self._seen(self._env.step(action))

    def observation_spec(self) -> Any:
        kept = {} if self._only else dict(self._env.observation_spec())
        spec = _Array((*self._size, 3), np.uint8, 0, 255, name=self._key)
        return collections.OrderedDict(kept | {self._key: spec})
