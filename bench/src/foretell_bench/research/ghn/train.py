"""Trains the hypernetwork to write weights of sampled networks that classify scikit-learn's digits.

    python -m foretell_bench.research.ghn.train [--steps 2000] [--seed 0] [--save FILE] [--seconds N]

Each step draws a few of 2,000 networks and a few images; the networks and digits it is judged on are never among them.
With --seconds it stops after so many of a processor, and goes on from there when it is run again; the result is the same.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from foretell.methods.predictddl.ghn.architecture import Architecture, Paths, paths
from foretell.methods.predictddl.ghn.encoder import TRAINED
from foretell_bench.research.ghn.generator import PIXELS, sample
from foretell_bench.research.ghn.hypernetwork import Hypernetwork
from foretell_bench.research.ghn.run import random_weights, run

STEPS: Final = 2000
_POOL: Final = 2000  # networks to learn on; their numbers are below those of the held-out ones
_HELD_OUT: Final = 1_000_000
_NETWORKS: Final = 4  # in a step
_IMAGES: Final = 32
_RATE: Final = 2e-3
_CLIP: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Digits:
    """Images from 0 to 1 around their mean, and which digit each is; a quarter is held out."""

    images: Tensor
    labels: Tensor
    held_images: Tensor
    held_labels: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """Accuracy on held-out digits, mean over networks."""

    generated: float
    random: float
    networks: int
    worst: float
    best: float


def digits() -> Digits:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    found = load_digits()
    images, held_out, labels, held_labels = train_test_split(
        found.images, found.target, test_size=0.25, random_state=0, stratify=found.target
    )

    def prepared(values: object) -> Tensor:
        return torch.as_tensor(values, dtype=torch.float32).view(-1, 1, PIXELS, PIXELS) / 8 - 0.6

    return Digits(
        images=prepared(images),
        labels=torch.as_tensor(labels),
        held_images=prepared(held_out),
        held_labels=torch.as_tensor(held_labels),
    )


class Training:
    """A hypernetwork and all that its next step depends on."""

    def __init__(self, steps: int = STEPS, seed: int = 0) -> None:
        self.steps, self.step, self.loss = steps, 0, float("nan")
        self._data = digits()
        torch.manual_seed(seed)
        self.network = Hypernetwork()
        self._random = torch.Generator().manual_seed(seed)
        self._optimizer = torch.optim.Adam(self.network.parameters(), lr=_RATE)
        self._schedule = torch.optim.lr_scheduler.OneCycleLR(
            self._optimizer, max_lr=_RATE, total_steps=steps + 1, pct_start=0.15
        )
        self._known: dict[int, tuple[Architecture, Paths]] = {}

    def run(self, seconds: float = math.inf, progress: Callable[[str], None] = lambda text: None) -> bool:
        """Whether it is done after at most so many seconds of a processor."""
        end = time.process_time() + seconds
        while self.step < self.steps and time.process_time() < end:
            self._advance()
            if self.step % 100 == 0:
                progress(f"step {self.step}: loss {self.loss:.3f}")
        self.network.eval()
        return self.step == self.steps

    def _advance(self) -> None:
        chosen = torch.randint(_POOL, (_NETWORKS,), generator=self._random).tolist()
        which = torch.randint(len(self._data.images), (_IMAGES,), generator=self._random)
        images, labels = self._data.images[which], self._data.labels[which]
        for number in chosen:
            if number not in self._known:
                self._known[number] = (sample(number), paths(sample(number)))
        networks = [self._known[number][0] for number in chosen]
        weights = self.network(networks, [self._known[number][1] for number in chosen])
        losses = torch.stack(
            [F.cross_entropy(run(one, own, images), labels) for one, own in zip(networks, weights, strict=True)]
        )
        losses = losses[torch.isfinite(losses)]  # a network that overflows teaches nothing
        self._optimizer.zero_grad()
        losses.mean().backward()
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), _CLIP)
        self._optimizer.step()
        self._schedule.step()
        self.step += 1
        latest = float(losses.mean().detach())
        self.loss = latest if math.isnan(self.loss) else self.loss + 0.02 * (latest - self.loss)

    def save(self, path: Path) -> None:
        state = {
            "network": self.network.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "step": self.step,
            "schedule": self._schedule.state_dict(),
            "random": self._random.get_state(),
            "loss": self.loss,
        }
        torch.save(state, path)

    def load(self, path: Path) -> None:
        state = torch.load(path, weights_only=True)
        self.network.load_state_dict(state["network"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._schedule.load_state_dict(state["schedule"])
        self._random.set_state(state["random"])
        self.step, self.loss = state["step"], state["loss"]


def train(steps: int = STEPS, seed: int = 0, progress: Callable[[str], None] = lambda text: None) -> Hypernetwork:
    training = Training(steps, seed)
    training.run(progress=progress)
    return training.network


@torch.no_grad()
def judge(network: Hypernetwork, *, networks: int = 100, first: int = _HELD_OUT) -> Judged:
    """Networks and digits that were never seen, with generated weights and as training from scratch begins."""
    data = digits()

    def accuracy(scores: Tensor) -> float:
        return float((scores.argmax(dim=1) == data.held_labels).float().mean())

    generated, untrained = [], []
    for number in range(first, first + networks):
        architecture = sample(number)
        generated.append(accuracy(run(architecture, network([architecture])[0], data.held_images)))
        untrained.append(accuracy(run(architecture, random_weights(architecture, number), data.held_images)))
    return Judged(
        generated=sum(generated) / networks,
        random=sum(untrained) / networks,
        networks=networks,
        worst=min(generated),
        best=max(generated),
    )


def main() -> None:
    from safetensors.torch import save_file

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", type=Path, default=TRAINED)
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop after these, to go on another time")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    begun = asked.save.with_suffix(".training")
    training = Training(asked.steps, asked.seed)
    if begun.exists():
        training.load(begun)
    if not training.run(asked.seconds, print):
        training.save(begun)
        print(f"stopped at step {training.step} of {training.steps}; run it again to go on")
        return
    begun.unlink(missing_ok=True)
    network = training.network
    found = judge(network)
    print(
        f"{found.networks} unseen networks, unseen digits: {found.generated:.1%} right with generated weights "
        f"(from {found.worst:.1%} to {found.best:.1%}), {found.random:.1%} with random ones"
    )
    save_file(network.state_dict(), asked.save)


if __name__ == "__main__":
    main()
