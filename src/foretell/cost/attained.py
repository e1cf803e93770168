"""What devices attain of their published rates: the numbers of a model's folder, read off or fitted to public measurements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, get_args

from foretell.cost.files import check_numbers, reading
from foretell.cost.folder import read_once, shipped
from foretell.limits import read_json
from foretell.units import Seconds

FILE: Final = "attained.json"
Kind = Literal[
    "matmul fp32", "matmul", "attention", "convolution fp32", "winograd", "grouped fp32", "convolution", "gradients",
    "grouped", "other",
]  # fmt: skip
Capability = tuple[int, int]


class Picojoules(NamedTuple):
    """Of an operation, the board's all."""

    vector: float  # fp32
    matrix: float  # 16 bits


class TileTimes(NamedTuple):
    """Of a tile of a product on matrix units, beyond its arithmetic."""

    reading: Seconds  # of a row or column at each step of the sum, beyond what the largest tile has
    ending: Seconds  # to begin and to end, for each of its numbers: at most as long as its sums take
    split: float  # times what a tile takes to end, where its sums are added up afterwards
    shortest: int  # steps of the sum that a block makes at least


class LongAttention(NamedTuple):
    """Shares of the peak that causal attention attained at a length on the measured device."""

    length: int
    forward: float
    backward: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Attained:
    """Shares are of a published rate, by kind of op in four ages of devices (`generations` says which they are)."""

    shares: Mapping[Kind, tuple[float, float, float, float]] = field(hash=False)
    picojoules: Mapping[Capability, Picojoules] = field(
        hash=False
    )  # a capability that is not here is as the last before
    energy: Mapping[str, float] = field(hash=False)  # of an operation of a precision, over one of 16 bits
    clock_falls: float  # the power by which a clock follows the watts that are there over those it needs
    consumer_clock: float  # of boards for games, over the published one
    bandwidth: float
    bandwidth_checked: float  # where check bits lie among the data
    bandwidth_first_stacks: float  # as STREAM measures P100, the first of their kind, and AMD's
    l2_bytes_per_clock: float  # that a unit reads and writes
    cache_fits: float  # part of the cache: all of what takes less is there again
    tiles: TileTimes
    first_flash: float = 1.0  # what the first FlashAttention takes over the second
    long_attention: Mapping[str, Mapping[str, tuple[LongAttention, ...]]] = field(
        default_factory=dict, hash=False
    )  # by kernel, then by sizes of heads of keys and values
    scaled: Mapping[str, float] = field(default_factory=dict, hash=False)  # of 8-bit products: see `scaled_by`
    sources: Mapping[str, str] = field(default_factory=dict, hash=False)  # of these numbers

    def __post_init__(self) -> None:
        if set(self.shares) != set(get_args(Kind)) or any(len(ages) != 4 for ages in self.shares.values()):
            raise ValueError("shares are not four for each kind of op")
        for name, shares in self.shares.items():
            check_numbers(name, list(shares), least=1e-3, most=10)
        check_numbers("picojoules", list(self.picojoules.values()), dims=2, least=1e-3, most=1e3)
        check_numbers("energy", list(self.energy.values()), least=1e-3, most=1e3)
        rates = [self.clock_falls, self.consumer_clock, self.bandwidth, self.bandwidth_checked]
        check_numbers("a rate", [*rates, self.bandwidth_first_stacks], least=1e-3, most=10)
        check_numbers("a cache's rate", self.l2_bytes_per_clock, dims=0, least=1e-3, most=1e3)
        check_numbers("a part of the cache", self.cache_fits, dims=0, least=0, most=0.99)
        check_numbers("seconds of a tile", [self.tiles.reading, self.tiles.ending], least=0, most=1e-3)
        for kernel, sizes in self.long_attention.items():
            for rows in sizes.values():
                check_numbers(f"{kernel} attention", [row[1:] for row in rows], dims=2, least=1e-3, most=1)
                check_numbers(f"lengths of {kernel} attention", [row[0] for row in rows], least=1, most=1e9)
        check_numbers("the first FlashAttention", self.first_flash, dims=0, least=0.1, most=10)
        check_numbers("products of scaled factors", list(self.scaled.values()), least=0.1, most=10)
        check_numbers("a tile's split", [self.tiles.split, self.tiles.shortest], least=1, most=1e5)

    def scaled_by(self, scaling: str) -> float:
        """What 8-bit products take over what trees that saw none say of them, by how factors are scaled: as one tensor,
        by rows or by blocks. Units that scale blocks by themselves run them as they run those scaled as one."""
        return self.scaled.get(scaling, self.scaled.get("tensor", 1.0))

    @classmethod
    def load(cls, path: Path) -> Attained:
        with reading(path, "rates that devices attain"):
            return cls.parse(read_json(path))

    @classmethod
    def parse(cls, content: Mapping[str, Any]) -> Attained:
        return cls(
            **dict(content)
            | {
                "shares": {kind: tuple(ages) for kind, ages in content["shares"].items()},
                "picojoules": {_capability(name): Picojoules(**each) for name, each in content["picojoules"].items()},
                "tiles": TileTimes(**content["tiles"]),
                "long_attention": {
                    kernel: {heads: tuple(LongAttention(*row) for row in rows) for heads, rows in sizes.items()}
                    for kernel, sizes in content.get("long_attention", {}).items()
                },
            }
        )


def _capability(text: str) -> Capability:
    major, minor = text.split(".")
    return int(major), int(minor)


def attained_in(folder: Path | None) -> Attained:
    """As a model's folder has it; models from before it was kept there are as the shipped one."""
    known = read_once(folder, Attained.load, FILE) or read_once(shipped(), Attained.load, FILE)
    assert known is not None
    return known
