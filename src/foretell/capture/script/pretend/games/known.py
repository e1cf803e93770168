"""Environments of reinforcement learning whose simulators are not installed: what they observe and take, as published."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Final

_NAME: Final = re.compile(r"(?:[\w.-]+/)?([A-Za-z0-9_]+?)(?:-v(\d+))?$")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Game:
    """The shape of an observation (one byte each if it has several dimensions), what is chosen from, and for how long."""

    observed: tuple[int, ...]
    actions: int  # how many there are to choose from, or numbers in one
    discrete: bool = False
    bound: float = 1.0  # of each number of an action
    steps: int = 1000  # in an episode
    assumed: bool = False  # whether the number of actions is a guess


# Observed, actions, their bound, steps; in the fifth version of MuJoCo's some observe less.
_CONTINUOUS: Final[dict[str, tuple[int, int, float, int]]] = {
    "Ant": (111, 8, 1.0, 1000), "HalfCheetah": (17, 6, 1.0, 1000), "Hopper": (11, 3, 1.0, 1000),
    "Walker2d": (17, 6, 1.0, 1000), "Humanoid": (376, 17, 0.4, 1000), "HumanoidStandup": (376, 17, 0.4, 1000),
    "InvertedPendulum": (4, 1, 3.0, 1000), "InvertedDoublePendulum": (11, 1, 1.0, 1000), "Reacher": (11, 2, 1.0, 50),
    "Swimmer": (8, 2, 1.0, 1000), "Pusher": (23, 7, 2.0, 100),
    "RoboschoolAnt": (28, 8, 1.0, 1000), "RoboschoolHalfCheetah": (26, 6, 1.0, 1000),
    "RoboschoolHopper": (15, 3, 1.0, 1000), "RoboschoolWalker2d": (22, 6, 1.0, 1000),
    "RoboschoolHumanoid": (44, 17, 1.0, 1000),
    "AntBulletEnv": (28, 8, 1.0, 1000), "HalfCheetahBulletEnv": (26, 6, 1.0, 1000),
    "HopperBulletEnv": (15, 3, 1.0, 1000), "Walker2DBulletEnv": (22, 6, 1.0, 1000),
    "HumanoidBulletEnv": (44, 17, 1.0, 1000),
    "LunarLanderContinuous": (8, 2, 1.0, 1000), "BipedalWalker": (24, 4, 1.0, 1600),
    "BipedalWalkerHardcore": (24, 4, 1.0, 2000),
}  # fmt: skip
# As in D4RL, whose names say which data belong to an environment: `hopper-medium-v2`.
_RECORDED: Final[dict[str, tuple[int, int]]] = {
    "halfcheetah": (17, 6), "hopper": (11, 3), "walker2d": (17, 6), "ant": (111, 8), "antmaze": (29, 8), "maze2d": (4, 2),
    "pen": (45, 24), "door": (39, 28), "hammer": (46, 26), "relocate": (39, 30), "kitchen": (60, 9),
}  # fmt: skip
# Domains of the DeepMind Control Suite; some tasks observe more than others.
_CONTROLLED: Final[dict[str, tuple[int, int]]] = {
    "acrobot": (6, 1), "ball_in_cup": (8, 2), "cartpole": (5, 1), "cheetah": (17, 6), "finger": (12, 2), "finger_spin": (9, 2),
    "fish": (21, 5), "fish_swim": (24, 5), "hopper": (15, 4), "humanoid": (67, 21), "humanoid_CMU": (137, 56),
    "manipulator": (44, 5), "pendulum": (3, 1), "point_mass": (4, 2), "quadruped": (78, 12), "quadruped_escape": (101, 12),
    "quadruped_fetch": (90, 12), "reacher": (6, 2), "swimmer": (25, 5), "swimmer_swimmer15": (61, 14), "walker": (24, 6),
    "dog": (223, 38),
}  # fmt: skip
_SINCE: Final[dict[tuple[str, int], int]] = {
    ("Ant", 4): 27, ("Ant", 5): 105, ("Humanoid", 5): 348, ("HumanoidStandup", 5): 348,
    ("InvertedDoublePendulum", 5): 9, ("Reacher", 5): 10,
}  # fmt: skip
_ATARI: Final[dict[int, str]] = {  # how many actions do something
    3: "Freeway Skiing",
    4: "Atlantis Breakout",
    6: "Bowling DemonAttack NameThisGame Pong Qbert SpaceInvaders UpNDown",
    7: "Assault",
    8: "Gopher Phoenix Tutankham",
    9: "Asterix BeamRider CrazyClimber Enduro MsPacman VideoPinball",
    10: "Amidar TimePilot WizardOfWor",
    14: "Asteroids KungFuMaster",
    18: "Alien BankHeist BattleZone Berzerk Boxing Centipede ChopperCommand Defender DoubleDunk FishingDerby Frostbite "
    "Gravitar Hero IceHockey Jamesbond Kangaroo Krull MontezumaRevenge Pitfall PrivateEye Riverraid RoadRunner Robotank "
    "Seaquest Solaris StarGunner Tennis Venture YarsRevenge Zaxxon",
}
_GAMES: Final = {name: actions for actions, names in _ATARI.items() for name in names.split()}
_PLAYED: Final = re.compile(r"(NoFrameskip|Deterministic)$")
_KINDS: Final = ("", "NoFrameskip", "Deterministic")


def registered() -> Iterator[tuple[str, str]]:
    """Names that packages around gym register when they are imported, and where their environments would come from."""
    for name in _CONTINUOUS:
        if name.endswith("BulletEnv"):
            yield f"{name}-v0", "pybullet_envs.gym_locomotion_envs:Environment"
        elif name.startswith("Roboschool"):
            yield f"{name}-v1", "roboschool:Environment"
    for name in _GAMES:
        for identity in (f"ALE/{name}-v5", *(f"{name}{kind}-v{i}" for kind in _KINDS for i in (0, 4))):
            yield identity, "ale_py.env:AtariEnv"


def controlled(domain: str, task: str) -> Game | None:
    """By its domain and task in the DeepMind Control Suite."""
    sizes = _CONTROLLED.get(f"{domain}_{task}") or _CONTROLLED.get(domain)
    return sizes and Game(observed=(sizes[0],), actions=sizes[1])


def known_game(identity: str) -> Game | None:
    """By its name in gym or gymnasium, as `HalfCheetah-v2` or `ALE/Pong-v5`."""
    domain, more, _ = identity.partition("-")
    if domain in _RECORDED and more:
        return Game(observed=(_RECORDED[domain][0],), actions=_RECORDED[domain][1])
    if (found := _NAME.match(identity.replace("-ram", "Ram"))) is None:
        return None
    name, version = found[1], int(found[2] or 0)
    if name in _CONTINUOUS:
        observed, actions, bound, steps = _CONTINUOUS[name]
        return Game(observed=(_SINCE.get((name, version), observed),), actions=actions, bound=bound, steps=steps)
    if name == "LunarLander":
        return Game(observed=(8,), actions=4, discrete=True)
    if name == "CarRacing":
        return Game(observed=(96, 96, 3), actions=3)
    return _of_atari(identity, name)


def _of_atari(identity: str, name: str) -> Game | None:
    name, frames = _PLAYED.subn("", name)
    plain = name.removesuffix("Ram")
    if plain not in _GAMES and not frames and not identity.startswith("ALE/"):
        return None
    observed = (210, 160, 3) if plain == name else (128,)
    actions = _GAMES.get(plain, 18)
    return Game(observed=observed, actions=actions, discrete=True, steps=10_000, assumed=plain not in _GAMES)
