"""Trains the hypernetwork to write weights of sampled networks that classify scikit-learn's digits, or made pictures.

    python -m foretell_bench.research.ghn.train [--steps 2000] [--seed 0] [--save FILE] [--seconds N]
    python -m foretell_bench.research.ghn.train --data pictures --shapes lookup --steps 50000 --on cuda --save FILE

Each step draws a few of many networks and a few images; the networks and images it is judged on are never among them.
Pictures are of 32 × 32 pixels in colour, and their networks up to 1,024 channels wide. With --seconds it stops after so
many, and goes on from there when it is run again; the result is the same.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from foretell.methods.predictddl.ghn.architecture import Architecture, Paths, paths
from foretell.methods.predictddl.ghn.encoder import TRAINED, WIDTH, Shapes
from foretell_bench.research.ghn.generator import CLASSES, DIGITS, PICTURES, Space, sample
from foretell_bench.research.ghn.hypernetwork import Hypernetwork
from foretell_bench.research.ghn.run import random_weights, run

STEPS: Final = 2000
POOL: Final = {"digits": 2000, "pictures": 100_000}  # networks to learn on; below the numbers of those never seen
_REMEMBERED: Final = 20_000  # networks whose paths are not found again
UNSEEN: Final = 1_000_000
_NETWORKS: Final = 4  # in a step
_IMAGES: Final = 32
_RATE: Final = 2e-3
_CLIP: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Images:
    """Images around their mean, and of which class each is; a quarter is for tests."""

    images: Tensor
    labels: Tensor
    test_images: Tensor
    test_labels: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """Accuracy on digits never seen, mean over networks."""

    generated: float
    random: float
    networks: int
    worst: float
    best: float


def digits() -> Images:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    found = load_digits()
    images, test, labels, test_labels = train_test_split(
        found.images, found.target, test_size=0.25, random_state=0, stratify=found.target
    )

    def prepared(values: object) -> Tensor:
        return torch.as_tensor(values, dtype=torch.float32).view(-1, 1, DIGITS.pixels, DIGITS.pixels) / 8 - 0.6

    return Images(
        images=prepared(images),
        labels=torch.as_tensor(labels),
        test_images=prepared(test),
        test_labels=torch.as_tensor(test_labels),
    )


def pictures(count: int = 4000) -> Images:
    """Made as CIFAR-10 is: 32 × 32 in colour, ten classes. A class is a few blobs of colours of its own, moved, turned
    around, brightened and covered with noise; so a network must see colours and where they lie to each other."""
    generator = torch.Generator().manual_seed(0)
    size, blobs = PICTURES.pixels, 3
    colours = torch.rand(CLASSES, blobs, PICTURES.channels, generator=generator)
    centres = torch.rand(CLASSES, blobs, 2, generator=generator) * 1.2 - 0.6
    spreads = 0.1 + 0.25 * torch.rand(CLASSES, blobs, generator=generator)
    labels = torch.arange(count) % CLASSES
    moved = centres[labels] + 0.3 * (torch.rand(count, 1, 2, generator=generator) - 0.5)
    flipped = torch.where(torch.rand(count, 1, generator=generator) < 0.5, -1.0, 1.0)
    moved = torch.stack([moved[..., 0] * flipped, moved[..., 1]], dim=-1)
    line = torch.linspace(-1, 1, size)
    across, down = torch.meshgrid(line, line, indexing="xy")
    far = (across - moved[..., 0, None, None]) ** 2 + (down - moved[..., 1, None, None]) ** 2
    drawn = torch.exp(-far / spreads[labels][..., None, None] ** 2)
    images = torch.einsum("nbhw,nbc->nchw", drawn, colours[labels])
    images = images * (0.6 + 0.8 * torch.rand(count, 1, 1, 1, generator=generator))
    images = images + 0.4 * torch.randn(images.shape, generator=generator)
    images = (images - images.mean()) / images.std()
    kept = count - count // 4
    return Images(images=images[:kept], labels=labels[:kept], test_images=images[kept:], test_labels=labels[kept:])


DATA: Final[Mapping[str, tuple[Space, Callable[[], Images]]]] = {
    "digits": (DIGITS, digits),
    "pictures": (PICTURES, pictures),
}


class Training:
    """A hypernetwork and all that its next step depends on."""

    def __init__(
        self,
        steps: int = STEPS,
        seed: int = 0,
        data: str = "digits",
        shapes: Shapes = "log",
        width: int = WIDTH,
        on: str = "cpu",
    ) -> None:
        self.steps, self.step, self.loss = steps, 0, float("nan")
        self.space, self.on, self.pool = DATA[data][0], on, POOL[data]
        self._data = DATA[data][1]()
        torch.manual_seed(seed)
        self.network = Hypernetwork(width, shapes).to(on)
        self._random = torch.Generator().manual_seed(seed)
        self._optimizer = torch.optim.Adam(self.network.parameters(), lr=_RATE)
        self._schedule = torch.optim.lr_scheduler.OneCycleLR(
            self._optimizer, max_lr=_RATE, total_steps=steps + 1, pct_start=0.15
        )
        self._known: dict[int, tuple[Architecture, Paths]] = {}

    def run(self, seconds: float = math.inf, progress: Callable[[str], None] = lambda text: None) -> bool:
        """Whether it is done after at most so many seconds of a processor."""
        clock = time.process_time if self.on == "cpu" else time.monotonic
        end = clock() + seconds
        while self.step < self.steps and clock() < end:
            self._advance()
            if self.step % 100 == 0:
                progress(f"step {self.step}: loss {self.loss:.3f}")
        self.network.eval()
        return self.step == self.steps

    def _advance(self) -> None:
        chosen = torch.randint(self.pool, (_NETWORKS,), generator=self._random).tolist()
        which = torch.randint(len(self._data.images), (_IMAGES,), generator=self._random)
        images, labels = self._data.images[which].to(self.on), self._data.labels[which].to(self.on)
        if len(self._known) > _REMEMBERED:
            self._known.clear()
        for number in chosen:
            if number not in self._known:
                made = sample(number, self.space)
                self._known[number] = (made, paths(made))
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
        state = torch.load(path, weights_only=True, map_location="cpu")
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
def judge(
    network: Hypernetwork, *, networks: int = 100, first: int = UNSEEN, data: str = "digits", on: str = "cpu"
) -> Judged:
    """Networks and images that were never seen, with generated weights and as training from scratch begins."""
    space, load = DATA[data]
    images, network = load(), network.to(on)
    shown, right = images.test_images.to(on), images.test_labels.to(on)

    def accuracy(scores: Tensor) -> float:
        return float((scores.argmax(dim=1) == right).float().mean())

    generated, untrained = [], []
    for number in range(first, first + networks):
        architecture = sample(number, space)
        generated.append(accuracy(run(architecture, network([architecture])[0], shown)))
        random = {i: weight.to(on) for i, weight in random_weights(architecture, number).items()}
        untrained.append(accuracy(run(architecture, random, shown)))
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
    parser.add_argument("--data", choices=DATA, default="digits")
    parser.add_argument("--shapes", choices=("log", "lookup"), default="log", help="how shapes are encoded")
    parser.add_argument("--width", type=int, default=WIDTH, help="of a node's state")
    parser.add_argument("--on", default="cpu", help="where it is trained: cpu or cuda")
    parser.add_argument("--judged", type=int, default=100, help="networks that it is judged on")
    options = parser.parse_args()
    torch.set_num_threads(1)
    begun = options.save.with_suffix(".training")
    training = Training(options.steps, options.seed, options.data, options.shapes, options.width, options.on)
    if begun.exists():
        training.load(begun)
    if not training.run(options.seconds, print):
        training.save(begun)
        print(f"stopped at step {training.step} of {training.steps}; run it again to go on")
        return
    begun.unlink(missing_ok=True)
    network = training.network
    found = judge(network, networks=options.judged, data=options.data, on=options.on)
    print(
        f"{found.networks} unseen networks, unseen images: {found.generated:.1%} right with generated weights "
        f"(from {found.worst:.1%} to {found.best:.1%}), {found.random:.1%} with random ones"
    )
    save_file(network.cpu().state_dict(), options.save)


if __name__ == "__main__":
    main()
