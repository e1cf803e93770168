"""Trains the hypernetwork to write weights of sampled networks that classify scikit-learn's digits.

    python -m foretell.methods.ghn.train [--steps 3000] [--seed 0] [--save FILE]

Each step draws a few of 2,000 networks and a few images; the networks and digits it is judged on are never among them.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from foretell.methods.ghn.architecture import Architecture, Paths, paths
from foretell.methods.ghn.generator import PIXELS, sample
from foretell.methods.ghn.hypernetwork import TRAINED, Hypernetwork
from foretell.methods.ghn.run import random_weights, run

STEPS: Final = 3000
_POOL: Final = 2000  # networks to learn on; their numbers are below those of the held-out ones
_HELD_OUT: Final = 1_000_000
_NETWORKS: Final = 4  # in a step
_IMAGES: Final = 32
_RATE: Final = 1e-3
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
    images, held, labels, held_labels = train_test_split(
        found.images, found.target, test_size=0.25, random_state=0, stratify=found.target
    )

    def prepared(values: object) -> Tensor:
        return torch.as_tensor(values, dtype=torch.float32).view(-1, 1, PIXELS, PIXELS) / 8 - 0.6

    return Digits(images=prepared(images), labels=torch.as_tensor(labels), held_images=prepared(held),
                  held_labels=torch.as_tensor(held_labels))  # fmt: skip


def train(steps: int = STEPS, seed: int = 0, say: Callable[[str], None] = lambda text: None) -> Hypernetwork:
    data = digits()
    torch.manual_seed(seed)
    network = Hypernetwork()
    optimizer = torch.optim.Adam(network.parameters(), lr=_RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=_RATE * 2, total_steps=steps + 1)
    known: dict[int, tuple[Architecture, Paths]] = {}
    running = 0.0
    for step in range(steps):
        chosen = torch.randint(_POOL, (_NETWORKS,)).tolist()
        which = torch.randint(len(data.images), (_IMAGES,))
        images, labels = data.images[which], data.labels[which]
        for number in chosen:
            if number not in known:
                known[number] = (sample(number), paths(sample(number)))
        networks = [known[number][0] for number in chosen]
        weights = network(networks, [known[number][1] for number in chosen])
        losses = torch.stack(
            [F.cross_entropy(run(one, own, images), labels) for one, own in zip(networks, weights, strict=True)]
        )
        losses = losses[torch.isfinite(losses)]  # a network that overflows teaches nothing
        optimizer.zero_grad()
        losses.mean().backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), _CLIP)
        optimizer.step()
        schedule.step()
        running += (float(losses.mean().detach()) - running) * (0.02 if step else 1.0)
        if (step + 1) % 100 == 0:
            say(f"step {step + 1}: loss {running:.3f}")
    return network.eval()


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
    return Judged(generated=sum(generated) / networks, random=sum(untrained) / networks, networks=networks,
                  worst=min(generated), best=max(generated))  # fmt: skip


def main() -> None:
    from safetensors.torch import save_file

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", type=Path, default=TRAINED)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    started = time.perf_counter()
    network = train(asked.steps, asked.seed, print)
    print(f"trained in {time.perf_counter() - started:.0f} s")
    found = judge(network)
    print(f"{found.networks} unseen networks, unseen digits: {found.generated:.1%} right with generated weights "
          f"(from {found.worst:.1%} to {found.best:.1%}), {found.random:.1%} with random ones")  # fmt: skip
    save_file(network.state_dict(), asked.save)


if __name__ == "__main__":
    main()
