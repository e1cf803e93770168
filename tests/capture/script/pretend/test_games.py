"""Environments of reinforcement learning whose simulator is missing, and scripts that take them as gym once gave them."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

import foretell
from foretell.capture.script.pretend.games.known import known_game
from tests.capture.script.conftest import Write

# The shape of gym 0.26: a step gives five things, a reset two.
GYM = """
    class Env:
        @property
        def unwrapped(self): return self

    class Wrapper(Env):
        def __init__(self, env): self.env = env
        def __getattr__(self, name):
            if name.startswith("_"): raise AttributeError(name)
            return getattr(self.env, name)
        def step(self, action): return self.env.step(action)
        def reset(self, **how): return self.env.reset(**how)

    from gym.envs.registration import make
    from gym import spaces
"""
SPACES = """
    class Box:
        def __init__(self, low, high, shape, dtype): self.shape, self.dtype, self.high = shape, dtype, [high] * shape[0]
    class Discrete:
        def __init__(self, n): self.n = n
"""
REGISTRATION = """
    registry = {"Pendulum-v1": None}
    def make(id, **how):
        if id not in registry: raise RuntimeError(f"no {id} here")
        import gym
        class Pendulum(gym.Env):
            def reset(self, seed=None): return [0.0] * 3, {}
            def step(self, action): return [0.0] * 3, 0.0, False, True, {}
        return Pendulum()
"""
FORMER = """
    import sys
    sys.path.append("site-packages")
    import gym, mujoco_py
    import torch
    from torch import nn

    class Scaled(gym.Wrapper):
        def step(self, action):
            return self.env.step(action)

    env = Scaled(gym.make("HalfCheetah-v2"))
    env.seed(0)
    wide, many = env.observation_space.shape[0], env.action_space.shape[0]
    pendulum = gym.make("Pendulum-v0")
    assert len(pendulum.reset()) == 3 and pendulum.step(0)[2] is True
    policy = nn.Linear(wide, many).cuda()
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
    state = env.reset()
    for step in range(4):
        seen = []
        for _ in range(8):
            state, reward, done, info = env.step(None)
            seen.append(torch.tensor(state))
        loss = policy(torch.stack(seen).cuda()).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
PRESENT = """
    import sys
    sys.path.append("site-packages")
    import gym
    import torch
    from torch import nn

    env = gym.make("BreakoutNoFrameskip-v4")
    assert env.unwrapped.get_action_meanings()[:2] == ["NOOP", "FIRE"]
    policy = nn.Linear(210, env.action_space.n).cuda()
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
    state, info = env.reset(seed=1)
    state = env.reset()[0]
    for step in range(4):
        out = env.step(0)
        state, reward, done, cut, info = out
        policy(torch.tensor(state).float().permute(1, 2, 0).cuda()).sum().backward()
        optimizer.step()
"""


@pytest.fixture
def gym(tmp_path: Path) -> None:
    package = tmp_path / "site-packages" / "gym"
    (package / "envs").mkdir(parents=True)
    for name, text in {
        "__init__": GYM,
        "spaces": SPACES,
        "envs/__init__": "",
        "envs/registration": REGISTRATION,
    }.items():
        (package / f"{name}.py").write_text(textwrap.dedent(text))


@pytest.mark.usefixtures("gym")
def test_a_script_of_old_is_answered_as_of_old(script: Write) -> None:
    graph = foretell.capture_graph(script(FORMER, fake_data=True))
    assert (graph.samples, graph.facts.parameters) == (8, 17 * 6 + 6)
    (told,) = [c.text for c in graph.caveats if c.code == "fake-data"]
    assert "HalfCheetah-v2" in told


@pytest.mark.usefixtures("gym")
def test_a_script_of_today_is_answered_as_of_today(script: Write) -> None:
    graph = foretell.capture_graph(script(PRESENT, fake_data=True))
    assert graph.facts.parameters == 210 * 4 + 4


@pytest.mark.parametrize(
    ("name", "observed", "actions"),
    [
        ("Humanoid-v2", (376,), 17),
        ("Humanoid-v5", (348,), 17),
        ("ALE/Pong-v5", (210, 160, 3), 6),
        ("PongDeterministic-v4", (210, 160, 3), 6),
        ("Breakout-ram-v0", (128,), 4),
        ("LunarLander-v2", (8,), 4),
    ],
)
def test_environments_are_as_published(name: str, observed: tuple[int, ...], actions: int) -> None:
    game = known_game(name)
    assert game is not None
    assert (game.observed, game.actions) == (observed, actions)


def test_another_environment_is_not_made_up() -> None:
    assert known_game("MyRobot-v0") is None
