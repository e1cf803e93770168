"""Environments of reinforcement learning whose simulator is missing, and scripts that take them as gym once gave them."""

from __future__ import annotations

import textwrap
import types
from pathlib import Path

import numpy as np
import pytest

import foretell
from foretell.capture.script.pretend.games import _adapt
from foretell.capture.script.pretend.games.answers import give_former_numbers
from foretell.capture.script.pretend.games.known import known_game, registered
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
    pendulum.unwrapped.seed(1)
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

CONTROL = """
    import sys
    sys.path.append("site-packages")
    import d4rl, dm_env, dmc2gym, gym
    import numpy as np
    import torch
    from dm_control import manipulation, suite
    from dm_control.suite.wrappers import action_scale, pixels
    from mpi4py import MPI

    task = action_scale.Wrapper(suite.load("walker", "walk", task_kwargs={"random": 1}), minimum=-1.0, maximum=1.0)
    task = pixels.Wrapper(task, render_kwargs={"height": 84, "width": 84})
    step = task.reset()
    assert step.first() and step.observation["pixels"].shape == (84, 84, 3) and MPI.COMM_WORLD.Get_size() == 1
    assert task.action_spec().shape == task.action_spec().minimum.shape == (6,)
    assert task.step(None).mid() and isinstance(task, dm_env.Environment)
    seen = dmc2gym.make(domain_name="cheetah", task_name="run", from_pixels=True, frame_skip=4)
    assert seen.reset().shape == (3, 84, 84) and seen._max_episode_steps == 250
    data = d4rl.qlearning_dataset(gym.make("hopper-medium-v2"))
    policy = torch.nn.Linear(data["observations"].shape[1], 3)
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
    chances = []
    for step in range(4):
        kept = torch.tensor([[policy(torch.randn(11)).mean()] for _ in range(8)])
        rewards = np.array([0.0] * 8, copy=False)
        found = policy(torch.tensor(data["observations"][:8]))
        chance = torch.distributions.Normal(found, (-found.detach()).exp() - 1)
        loss = (chance.rsample() - kept).mean()
        optimizer.zero_grad()
        loss.backward()
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


@pytest.mark.usefixtures("gym")
def test_packages_around_environments_are_stood_in_for(script: Write) -> None:
    graph = foretell.capture_graph(script(CONTROL, fake_data=True))
    assert (graph.samples, graph.facts.parameters) == (8, 11 * 3 + 3)


EVALUATED = """
    import sys
    sys.path.append("site-packages")
    import gym
    import torch
    from torch import nn

    model = nn.Linear(17, 6).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    def play(env, episodes):
        steps = []
        for _ in range(episodes):
            seen, done = env.reset(), False
            steps.append(0)
            while not done:
                action = model(torch.tensor(seen).view(1, -1).cuda()).cpu().data.numpy().flatten()
                seen, reward, done, _ = env.step(action)
                steps[-1] += 1
        return steps
    env = gym.make("HalfCheetah-v2")
    assert play(env, 1) == [1000]
    assert play(gym.make("HalfCheetah-v2"), 5) == [1000, 1000, 10, 10, 10]
    for step in range(9):
        assert step % 4 or play(env, 1) == [1000]
        model(torch.randn(8, 17).cuda()).sum().backward()
        optimizer.step()
"""


@pytest.mark.usefixtures("gym")
def test_an_agent_is_evaluated_for_two_whole_episodes(script: Write) -> None:
    """Others are short; those in which it learns are whole, since a batch may be of their length."""
    assert foretell.capture_graph(script(EVALUATED, fake_data=True)).samples == 8


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


def test_names_that_packages_register_are_known() -> None:
    names = dict(registered())
    assert {"HalfCheetahBulletEnv-v0", "ALE/Pong-v5", "BreakoutNoFrameskip-v4"} <= set(names)
    assert all(known_game(name) is not None for name in names)
    module = types.SimpleNamespace(
        __name__="gymnasium.envs.registration", make=None, registry={"ALE/Pong-v5": 1}, EnvSpec=types.SimpleNamespace
    )
    for fake_data in (False, True):
        _adapt(module, types.SimpleNamespace(script=types.SimpleNamespace(fake_data=fake_data)))  # type: ignore[arg-type]
        assert ("HalfCheetahBulletEnv-v0" in module.registry) == fake_data
    assert module.registry["ALE/Pong-v5"] == 1
    assert "AtariEnv" in module.registry["PongNoFrameskip-v4"].entry_point


def test_another_environment_is_not_made_up() -> None:
    assert known_game("MyRobot-v0") is None


def test_environments_draw_numbers_by_their_former_names() -> None:
    seeding = types.SimpleNamespace(RandomNumberGenerator=np.random.Generator)
    give_former_numbers(seeding)
    numbers = seeding.RandomNumberGenerator(np.random.PCG64(0))
    numbers.seed(numbers.randint(5000) * 2)
    assert 0 <= numbers.randint(3, 5) < 5
    assert numbers.randn(2, 3).shape == numbers.rand(2, 3).shape == numbers.normal(size=(2, 3)).shape


EMULATOR = """
    import atari_py, torch
    from torch import nn

    ale = atari_py.ALEInterface()
    ale.setInt("frame_skip", 0)
    ale.loadROM(atari_py.get_game_path("space_invaders"))
    actions = ale.getMinimalActionSet()
    model = nn.Linear(84 * 84, len(actions)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    while True:
        if ale.game_over(): ale.reset_game()
        ale.act(actions[0])
        screen = torch.tensor(ale.getScreenGrayscale()[:84, :84], dtype=torch.float32, device="cuda")
        model(screen.reshape(1, -1)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_ataris_emulator_is_that_of_the_game(script: Write) -> None:
    graph = foretell.capture_graph(script(EMULATOR, fake_data=True))
    assert graph.facts.parameters == 84 * 84 * 6 + 6
