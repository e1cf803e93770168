"""Trains the hypernetwork on digits or made pictures by several processes that share a graphics processor.

    python -m foretell_bench.research.ghn.together FOLDER --save FILE [--workers 6] [--seconds 540] [--budget 840] [--on cuda]

One process makes a few steps a second, whatever the device: launching the many small kernels of a sampled network is
what takes time. So each draws networks of its own and takes a step with the sum of their gradients as soon as it has it,
one after another, on parameters that others have moved meanwhile (asynchronous descent; a gradient is at most as many
steps old as there are other processes). The encoder runs on the host with its gradient written out, the decoder and the
networks that it writes on the device. Parameters and the moments of Adam lie in a file of FOLDER that all map: what is
there is gone on with. The rate follows the part of --budget that is over, so that it is low at its end whatever number
of steps fits; of its first minute it learns how many networks a step may have for --steps to be reached, and whether
--seconds alone are enough.
"""

from __future__ import annotations

import argparse
import fcntl
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from foretell_bench.research.ghn.generator import sample
from foretell_bench.research.ghn.hypernetwork import Hypernetwork
from foretell_bench.research.ghn.run import run
from foretell_bench.research.ghn.train import DATA, POOL, UNSEEN, judge
from foretell_bench.research.ghn.traversal import encode, network_of

STEPS: Final = 50_000
_RATE: Final = 1.5e-3
_WARM: Final = 0.05  # of the budget, until the rate is highest
_LAST: Final = 0.01  # of the highest rate, at the end
_BETAS: Final = (0.9, 0.99)
_TINY: Final = 1e-8
_CLIP: Final = 5.0
_IMAGES: Final = 64
_MAX_NETWORKS: Final = 4  # networks in a step
_TRIAL: Final = 45.0  # seconds after which the number of networks is chosen
_SAVED: Final = 20.0  # seconds between files of weights
_SLACK: Final = 0.92  # of the steps that a rate promises
_NUMBERS: Final = ("step", "elapsed", "budget", "networks", "loss", "drawn", "skipped")


class Shared:
    """A hypernetwork's parameters, Adam's moments and a few numbers, in files that all processes map."""

    def __init__(self, folder: Path, size: int) -> None:
        self.folder, self.size = folder, size
        values = torch.from_file(str(folder / "parameters"), shared=True, size=3 * size, dtype=torch.float32)
        self.parameters, self.mean, self.square = values.split(size)
        self._numbers = torch.from_file(str(folder / "numbers"), shared=True, size=len(_NUMBERS), dtype=torch.float64)
        self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT)

    def __getitem__(self, name: str) -> float:
        return float(self._numbers[_NUMBERS.index(name)])

    def __setitem__(self, name: str, value: float) -> None:
        self._numbers[_NUMBERS.index(name)] = value

    @contextmanager
    def locked(self) -> Iterator[None]:
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def learn(self, gradient: Tensor, loss: float, networks: int) -> None:
        """One step of Adam; a gradient that is not finite teaches nothing."""
        norm = float(gradient.norm())
        with self.locked():
            self["drawn"] += networks
            if not math.isfinite(norm):
                self["skipped"] += 1
                return
            gradient.mul_(min(1.0, _CLIP / (norm + 1e-6)))
            step = self["step"] + 1
            first, second = _BETAS
            self.mean.lerp_(gradient, 1 - first)
            self.square.mul_(second).addcmul_(gradient, gradient, value=1 - second)
            root = (self.square / (1 - second**step)).sqrt_().add_(_TINY)
            rate = rate_at(self["elapsed"] / self["budget"])
            self.parameters.addcdiv_(self.mean, root, value=-rate / (1 - first**step))
            self["step"] = step
            self["loss"] = loss if step == 1 else self["loss"] + 0.01 * (loss - self["loss"])


def rate_at(part: float) -> float:
    """Up in a line, down in half a cosine."""
    if part < _WARM:
        return _RATE * max(part / _WARM, 0.02)
    done = min(1.0, (part - _WARM) / (1 - _WARM))
    return _RATE * (_LAST + (1 - _LAST) * (1 + math.cos(math.pi * done)) / 2)


class Copy:
    """A process' own hypernetwork: its encoder on the host, its decoder on the device, each one flat piece of memory."""

    def __init__(self, width: int, on: str) -> None:
        self.network, self.on = Hypernetwork(width, "lookup"), on
        encoder = list(self.network.encoder.parameters())
        for name, part in self.network.named_children():
            part.to("cpu" if name == "encoder" else on)
        decoder = [p for name, p in self.network.named_parameters() if not name.startswith("encoder.")]
        self.pieces = [_flat(encoder, "cpu"), _flat(decoder, on)]
        self.sizes = [len(values) for values, _ in self.pieces]

    def take(self, parameters: Tensor) -> None:
        for (values, gradients), there in zip(self.pieces, parameters.split(self.sizes), strict=True):
            values.copy_(there)
            gradients.zero_()

    def put(self, parameters: Tensor) -> None:
        parameters.copy_(torch.cat([values.cpu() for values, _ in self.pieces]))

    def gradient(self) -> Tensor:
        return torch.cat([gradients.cpu() for _, gradients in self.pieces])


def _flat(parameters: Sequence[nn.Parameter], on: str) -> tuple[Tensor, Tensor]:
    """Their values and gradients end to end; from now on parameters are views of it."""
    values = torch.cat([p.detach().reshape(-1) for p in parameters]).to(on)
    gradients = torch.zeros_like(values)
    sizes = [p.numel() for p in parameters]
    for p, own, gradient in zip(parameters, values.split(sizes), gradients.split(sizes), strict=True):
        p.data, p.grad = own.view(p.shape), gradient.view(p.shape)
    return values, gradients


def work(folder: Path, number: int, data: str, width: int, on: str, seconds: float) -> None:
    """One process: steps until the time is over."""
    torch.set_num_threads(1)
    torch.backends.cuda.matmul.allow_tf32 = True
    copy = Copy(width, on)
    shared = Shared(folder, sum(copy.sizes))
    space, load = DATA[data]
    found = load()
    images, labels = found.images.to(on), found.labels.to(on)
    random, end = Random(f"{number} {shared['step']}"), time.monotonic() + seconds
    while time.monotonic() < end and shared["elapsed"] < shared["budget"]:
        copy.take(shared.parameters)
        losses = []
        networks = int(shared["networks"])
        for _ in range(networks):
            one = network_of(sample(random.randrange(POOL[data]), space))
            which = torch.tensor(random.choices(range(len(labels)), k=_IMAGES)).to(on, non_blocking=True)
            states = encode(copy.network.encoder, one).to(on, non_blocking=True)
            weights = copy.network.decode(one.architecture, states)
            loss = F.cross_entropy(run(one.architecture, weights, images[which]), labels[which]) / networks
            loss.backward()
            losses.append(loss.detach())
        shared.learn(copy.gradient(), float(torch.stack(losses).sum()), networks)


def begin(folder: Path, width: int, seconds: float, budget: float) -> tuple[Copy, Shared]:
    folder.mkdir(parents=True, exist_ok=True)
    is_new = not (folder / "parameters").exists()
    torch.manual_seed(0)
    copy = Copy(width, "cpu")
    shared = Shared(folder, sum(copy.sizes))
    if is_new:
        copy.put(shared.parameters)
        shared["budget"], shared["networks"] = max(seconds, budget), 1
    return copy, shared


def choose(shared: Shared, rate: float, seconds: float, steps: int) -> None:
    """From networks in a second: how many a step has, and whether the time of this call is enough."""
    if rate * seconds * _SLACK >= steps:
        shared["budget"] = min(shared["budget"], seconds)
    shared["networks"] = min(_MAX_NETWORKS, max(1, int(rate * shared["budget"] * _SLACK / steps)))


def main() -> None:
    from safetensors.torch import save_file

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="what is shared, to go on with another time")
    parser.add_argument("--save", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--cores", help="one for each worker, as 2,3,12; without, the system's choice")
    parser.add_argument("--seconds", type=float, default=540.0, help="of this call")
    parser.add_argument("--budget", type=float, default=0.0, help="seconds of all calls together")
    parser.add_argument("--steps", type=int, default=STEPS, help="wanted at least")
    parser.add_argument("--data", choices=DATA, default="pictures")
    parser.add_argument("--width", type=int, default=32, help="of a node's state")
    parser.add_argument("--on", default="cuda", help="where networks run: cpu or cuda")
    parser.add_argument(
        "--judged", type=int, default=200, help="unseen networks that it is judged on at the end; 0: none"
    )
    parser.add_argument("--number", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.number is not None:
        work(options.folder, options.number, options.data, options.width, options.on, options.seconds)
        return
    torch.set_num_threads(1)
    copy, shared = begin(options.folder, options.width, options.seconds, options.budget)
    cores = options.cores.split(",") if options.cores else [""] * options.workers
    trained = _train(options, copy, shared, cores)
    copy.take(shared.parameters)
    save_file(copy.network.state_dict(), options.save)
    print(f"{'done' if trained else 'stopped'} at step {shared['step']:.0f}, {shared['drawn']:.0f} networks, "
          f"{shared['skipped']:.0f} skipped, loss {shared['loss']:.3f}", flush=True)  # fmt: skip
    if not options.judged:
        return
    network = Hypernetwork(options.width, "lookup")
    network.load_state_dict(copy.network.state_dict())
    print(judge(network.eval(), networks=options.judged, first=UNSEEN, data=options.data, on=options.on), flush=True)


def _train(options: argparse.Namespace, copy: Copy, shared: Shared, cores: Sequence[str]) -> bool:
    """Whether the budget is spent after this call."""
    from safetensors.torch import save_file

    began = last = saved = time.monotonic()
    command = [sys.executable, "-m", "foretell_bench.research.ghn.together", *sys.argv[1:]]
    alone = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen([*(["taskset", "-c", core] if core else []), *command, "--number", str(number)], env=alone)
        for number, core in enumerate(cores)
    ]
    at, first = last, shared["drawn"]
    is_chosen = shared["step"] > 0
    while any(process.poll() is None for process in processes) and last - began < options.seconds + 15:
        time.sleep(0.2)
        now = time.monotonic()
        if shared["drawn"] > first:  # starting up is no part of the budget
            shared["elapsed"] += now - last
        else:
            at = now
        if not is_chosen and now - at > min(_TRIAL, options.seconds / 4):
            rate = (shared["drawn"] - first) / (now - at)
            choose(shared, rate, options.seconds - (at - began), options.steps)
            is_chosen = True
            print(f"{rate:.1f} networks/s, {shared['networks']:.0f} a step, {shared['budget']:.0f} s", flush=True)
        if now - saved > _SAVED:
            saved = now
            copy.take(shared.parameters)
            save_file(copy.network.state_dict(), options.save)
            print(f"{now - began:.0f} s: step {shared['step']:.0f}, loss {shared['loss']:.3f}", flush=True)
        last = now
    for process in processes:
        if process.poll() is None:
            process.terminate()
    return shared["elapsed"] >= shared["budget"]


if __name__ == "__main__":
    main()
