"""Networks sampled as DeepNets-1M samples its own: cells, branches, norms, heads. Small ones for digits, wide ones for pictures."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Final

from foretell.methods.predictddl.ghn.architecture import Architecture, Node

CLASSES: Final = 10
_KERNELS: Final = (1, 3, 5)
_PATCH: Final = 8  # pixels of the widest kernel that is written


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """What is sampled from: images of a size, and how wide layers are."""

    pixels: int
    channels: int
    widths: tuple[int, ...]
    begins: int  # so many of the widths are a first layer's


DIGITS: Final = Space(pixels=8, channels=1, widths=(8, 12, 16, 24), begins=3)
PICTURES: Final = Space(
    pixels=32, channels=3, widths=(16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024), begins=5
)


@dataclass(slots=True)
class _Draft:
    """A network being drawn; every method adds nodes and returns the number of the last one."""

    random: Random
    space: Space
    nodes: list[Node] = field(default_factory=list)
    width: int = 0
    side: int = 0

    def add(
        self,
        kind: str,
        *inputs: int,
        shape: tuple[int, ...] = (),
        stride: int = 1,
        activate: bool = False,
        classes: bool = False,
    ) -> int:
        self.nodes.append(
            Node(kind=kind, inputs=inputs, shape=shape, stride=stride, activate=activate, classes=classes)
        )
        return len(self.nodes) - 1

    def normed(self, at: int, width: int, *, must: bool = False) -> int:
        """Mostly a batch norm, sometimes a layer norm, sometimes a bias alone."""
        kind = self.random.choices(("bn", "ln", ""), (6, 2, 0 if must else 2))[0]
        if kind:
            at = self.add(kind, at, shape=(width,))
        return self.add("bias", at, shape=(width,))

    def convolved(self, at: int, into: int, out: int, *, stride: int = 1, activate: bool = True) -> int:
        kind = self.random.choices(("conv", "sep_conv", "dil_conv"), (6, 2, 2))[0]
        kernel = self.random.choices(_KERNELS, (3, 5, 1) if kind == "conv" else (0, 3, 1))[0]
        if kind == "sep_conv":
            at = self.add(kind, at, shape=(into, 1, kernel, kernel), stride=stride, activate=activate)
            at = self.add("conv", at, shape=(out, into, 1, 1))
        else:
            at = self.add(kind, at, shape=(out, into, kernel, kernel), stride=stride, activate=activate)
        return self.normed(at, out)

    def attended(self, at: int) -> int:
        width = self.width
        at = self.normed(at, width, must=True)
        at = self.add("msa", at, shape=(3 * width, width, 1, 1))
        at = self.add("conv", at, shape=(width, width, 1, 1))
        return self.add("bias", at, shape=(width,))

    def cell(self, at: int) -> int:
        """A block that keeps width and side, alone, added to a skip (`sum`) or joined to its input (`concat`)."""
        join = self.random.choices(("sum", "concat", ""), (5, 2, 3))[0]
        branches = 2 if self.random.random() < 0.25 else 1
        ends = []
        for _ in range(branches):
            what = self.random.choices(("conv", "msa", "max_pool", "avg_pool"), (8, 2, 1, 1))[0]
            if what == "conv":
                end = self.convolved(at, self.width, self.width)
                if self.random.random() < 0.5:
                    end = self.convolved(end, self.width, self.width)
                if self.random.random() < 0.25:
                    end = self.add("cse", end, shape=(self.width, self.width, 1, 1))
            else:
                end = self.attended(at) if what == "msa" else self.add(what, at)
            ends.append(end)
        if join == "concat" or (branches > 1 and not join):
            ends = [at, *ends] if join else ends
            joined = self.add("concat", *ends)
            at = self.add("conv", joined, shape=(self.width, len(ends) * self.width, 1, 1), activate=True)
            return self.normed(at, self.width)
        return self.add("sum", at, *ends) if join else ends[0]

    def reduced(self, at: int) -> int:
        """Half the side; often more channels."""
        out = self.random.choice([w for w in self.space.widths if w >= self.width])
        if self.random.random() < 0.5:
            at = self.add(self.random.choice(("max_pool", "avg_pool")), at, stride=2)
            at = self.convolved(at, self.width, out)
        else:
            at = self.convolved(at, self.width, out, stride=2)
        self.width, self.side = out, self.side // 2
        return at


def sample(seed: int, space: Space = DIGITS) -> Architecture:
    """The network of a number; one in six is a multilayer perceptron."""
    draft = _Draft(Random(seed), space)
    at = draft.add("input", shape=(1, space.channels, space.pixels, space.pixels))
    at = _perceptron(draft, at) if draft.random.random() < 1 / 6 else _convolutional(draft, at)
    at = draft.add("conv", at, shape=(CLASSES, draft.width, 1, 1), activate=True, classes=True)
    draft.add("bias", at, shape=(CLASSES,))
    return tuple(draft.nodes)


def _perceptron(draft: _Draft, at: int) -> int:
    """Its first layer sees a small image at once, which is a convolution as wide as it; of a larger one, patches."""
    space = draft.space
    draft.width = draft.random.choice(space.widths)
    patch = min(space.pixels, _PATCH)
    at = draft.add("conv", at, shape=(draft.width, space.channels, patch, patch), stride=patch)
    at = draft.normed(at, draft.width)
    if patch < space.pixels:
        at = draft.add("glob_avg", at)
    for _ in range(draft.random.randrange(4)):
        out = draft.random.choice(space.widths)
        at = draft.add("conv", at, shape=(out, draft.width, 1, 1), activate=True)
        at, draft.width = draft.normed(at, out), out
    return at


def _convolutional(draft: _Draft, at: int) -> int:
    space = draft.space
    draft.width = draft.random.choice(space.widths[: space.begins])
    at = draft.add("conv", at, shape=(draft.width, space.channels, 3, 3), stride=2)
    at, draft.side = draft.normed(at, draft.width), space.pixels // 2
    if draft.random.random() < 0.2 and draft.side <= _PATCH:
        at = draft.add("pos_enc", at, shape=(1, draft.width, draft.side, draft.side))
    for _ in range(draft.random.randint(1, 4)):
        at = draft.cell(at)
        if draft.side > 2 and draft.random.random() < 0.5:
            at = draft.reduced(at)
    return draft.add("glob_avg", at)
