"""Small networks that act: what reinforcement learning trains."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from foretell import Workload
from foretell.precision import PrecisionName
from foretell_bench.measuring.h200.kinds.network import Batch, network, step


class AtariPolicy(nn.Module):
    """Four frames, three convolutions, an actor and a critic on one layer."""

    def __init__(self, actions: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU(),
            nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(),
        )  # fmt: skip
        self.actor, self.critic = nn.Linear(512, actions), nn.Linear(512, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.body(x)
        return self.actor(x), self.critic(x).squeeze(-1)


def clipped_surrogate(model: nn.Module, b: Batch) -> Tensor:
    """Gains clipped near the policy that collected them, values, and entropy."""
    logits, values = model(b["x"])
    chances = logits.float().log_softmax(-1)
    ratio = (chances.gather(1, b["action"][:, None]).squeeze(1) - b["before"]).exp()
    gain = torch.minimum(ratio * b["gain"], ratio.clamp(0.8, 1.2) * b["gain"]).mean()
    entropy = -(chances.exp() * chances).sum(1).mean()
    loss: Tensor = 0.5 * F.mse_loss(values.float(), b["y"].float()) - gain - 0.01 * entropy
    return loss


def experience(batch: int, actions: int, *seen: int) -> Batch:
    return {
        "x": torch.rand(batch, *seen), "action": torch.randint(actions, (batch,)), "before": torch.randn(batch),
        "gain": torch.randn(batch), "y": torch.randn(batch),
    }  # fmt: skip


@network("policy", (8, 1024))
def atari_actor(
    batch: int = 256, precision: PrecisionName = "fp32", channels_last: bool = False, optimizer: str = "adam"
) -> Workload:
    """Proximal policy optimization on frames of 84 pixels."""
    return step("atari_actor", lambda: AtariPolicy(6), lambda: experience(batch, 6, 4, 84, 84), clipped_surrogate,
                precision=precision, channels_last=channels_last, optimizer=optimizer)  # fmt: skip


class DuelingValues(nn.Module):
    """What each action is worth: what the state is worth and what the action adds."""

    def __init__(self, actions: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(4, 16, 8, 4), nn.ReLU(), nn.Conv2d(16, 32, 4, 2), nn.ReLU(), nn.Flatten())
        self.state = nn.Sequential(nn.Linear(2592, 256), nn.ReLU(), nn.Linear(256, 1))
        self.actions = nn.Sequential(nn.Linear(2592, 256), nn.ReLU(), nn.Linear(256, actions))

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(x)
        added = self.actions(x)
        return self.state(x) + added - added.mean(1, keepdim=True)  # type: ignore[no-any-return]


@network("policy", (8, 1024))
def dueling_values(batch: int = 32, precision: PrecisionName = "fp32", optimizer: str = "adam") -> Workload:
    """Deep Q-learning: the next frames' values first, without gradients."""

    def loss(m: nn.Module, b: Batch) -> Tensor:
        with torch.no_grad():
            wanted = b["gain"] + 0.99 * m(b["x2"]).amax(1)
        return F.smooth_l1_loss(m(b["x"]).gather(1, b["action"][:, None]).squeeze(1).float(), wanted.float())

    def batches() -> Batch:
        return {**experience(batch, 6, 4, 84, 84), "x2": torch.rand(batch, 4, 84, 84)}

    return step("dueling_values", lambda: DuelingValues(6), batches, loss, precision=precision, optimizer=optimizer)


class GaussianPolicy(nn.Module):
    """Two small towers of tanh: means of the actions, and the value."""

    def __init__(self, seen: int, actions: int) -> None:
        super().__init__()

        def tower(outputs: int) -> nn.Sequential:
            return nn.Sequential(nn.Linear(seen, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs))

        self.actor, self.critic, self.spread = tower(actions), tower(1), nn.Parameter(torch.zeros(actions))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.actor(x), self.spread.exp(), self.critic(x).squeeze(-1)


@network("policy", (64, 16_384))
def gaussian_actor(batch: int = 2048, precision: PrecisionName = "fp32", optimizer: str = "adam") -> Workload:
    """Continuous actions of a walker."""

    def loss(m: nn.Module, b: Batch) -> Tensor:
        mean, spread, value = (found.float() for found in m(b["x"]))
        chance = (-0.5 * ((b["action"] - mean) / spread) ** 2 - spread.log()).sum(-1)
        ratio = (chance - b["before"]).exp()
        gain = torch.minimum(ratio * b["gain"], ratio.clamp(0.8, 1.2) * b["gain"])
        loss: Tensor = (value - b["y"]).square().mean() - gain.mean()
        return loss

    def batches() -> Batch:
        return {**experience(batch, 2, 17), "action": torch.randn(batch, 6)}

    return step(
        "gaussian_actor", lambda: GaussianPolicy(17, 6), batches, loss, precision=precision, optimizer=optimizer
    )
