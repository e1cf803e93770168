"""How long collectives take among the ranks of a job: a few kinds and sizes, in groups that lie as a plan's do.

    with join() as world:                     # in every rank, under torchrun
        records = measure_collectives(world)  # rank 0 gets a record for each; the others none

A record is a row of kind `collective`: the kind is its source; bytes, and the group, are its settings. Bytes are of the whole
tensor, which a gather ends with and a scatter begins with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, pairwise
from typing import Any, Final

import torch
import torch.distributed as dist

from foretell.measure.ranks.world import RankGone, World
from foretell.measure.record import Point, Record, StepRow
from foretell.measure.timing import Timing, clock_of, repetitions
from foretell.program import Group
from foretell.units import KIB, Bytes, Seconds

SIZES: Final[tuple[Bytes, ...]] = tuple(KIB * 4**i for i in range(10))  # 1 KiB to 256 MiB
KINDS: Final = ("all-reduce", "all-gather", "reduce-scatter", "broadcast", "all-to-all")
SECONDS: Final = 0.3  # of repetitions of one kind and size
_ELEMENT: Final = 4  # bytes of a float32
_LONGEST: Final = 3.0  # a call that takes longer is the last of its kind


def measure_collectives(
    world: World, *, seconds: Seconds = SECONDS, sizes: Sequence[Bytes] = SIZES, kinds: Sequence[str] = KINDS
) -> tuple[Record, ...]:
    """Measure in every rank at once. Of the ranks, the slowest counts."""
    cluster = layout(world)
    records: list[Record] = []
    try:
        for group in groups(world.place.size, _devices_of_a_node(world)):
            members = _joined(group, world)
            for kind in kinds:
                for nbytes in sizes:
                    share = max(nbytes // _ELEMENT // group.size, 1)  # elements of a rank
                    timing = _timed(_call(kind, share, group.size, members, world.device), world, seconds)
                    records.append(_record(kind, share * group.size * _ELEMENT, group, timing, cluster, world))
                    if timing.seconds > _LONGEST:
                        break
    except RankGone:
        raise
    except Exception as error:
        raise world.gone(error) from error
    return tuple(records) if world.place.rank == 0 else ()


def groups(ranks: int, of_a_node: int) -> Iterator[Group]:
    """All ranks; those of a node, and its halves; those with the same place in every node."""
    yield Group(size=ranks)
    inside = of_a_node if of_a_node < ranks else ranks // 2 if ranks % 2 == 0 else 1
    while inside > 1:
        if ranks % inside == 0:
            yield Group(size=inside, count=ranks // inside)
        inside //= 2
    nodes = ranks // of_a_node
    if nodes > 1 and of_a_node > 1:
        yield Group(size=nodes, stride=of_a_node, count=of_a_node)


def layout(world: World) -> str:
    """The cluster as its ranks lie: a node is what shares its interfaces."""
    device = world.gather(world.machine.provenance()["device"] or "cpu")[0]
    counts = [len(list(ranks)) for _, ranks in groupby(peer.network for peer in world.peers)]
    alike = [(count, len(list(nodes))) for count, nodes in groupby(counts)]
    return "+".join(f"{nodes}x{count}x{device}" for count, nodes in alike)


def _devices_of_a_node(world: World) -> int:
    """One where nodes differ: then there is no group that lies alike on all."""
    counts = {len(list(ranks)) for _, ranks in groupby(peer.network for peer in world.peers)}
    return counts.pop() if len(counts) == 1 else 1


def _joined(group: Group, world: World) -> Any:
    """The process group of this rank. Every rank has a hand in making all of them."""
    length = group.size * group.stride
    own = None
    for start in range(0, world.place.size, length):
        for offset in range(group.stride):
            ranks = list(range(start + offset, start + length, group.stride))
            made = dist.new_group(ranks)
            own = made if world.place.rank in ranks else own
    return own


def _timed(call: Callable[[], Any], world: World, seconds: Seconds) -> Timing:
    """Back to back, equally often in every rank; the timing of the slowest."""
    call()
    once = max(world.gather(_spent(call, world, 1).seconds))
    spent = _spent(call, world, repetitions(max(once, 1e-6), seconds) if once < _LONGEST else 1)
    every: list[Timing] = world.gather(spent)
    return max(every, key=lambda timing: timing.seconds)


def _spent(call: Callable[[], Any], world: World, count: int) -> Timing:
    clock = clock_of(world.device)
    world.barrier()
    marks = [clock.mark()]
    for _ in range(count):
        call()
        marks.append(clock.mark())
    clock.wait()
    steps = tuple(clock.seconds(a, b) for a, b in pairwise(marks))
    return Timing(steps=steps, parts={}, window=(0.0, 0.0))


def _call(kind: str, share: int, ranks: int, members: Any, device: torch.device) -> Callable[[], Any]:
    whole, part = torch.zeros(share * ranks, device=device), torch.zeros(share, device=device)
    other = torch.empty_like(whole)
    gather = _named("all_gather_single", "all_gather_into_tensor")
    scatter = _named("reduce_scatter_single", "reduce_scatter_tensor")
    calls: dict[str, Callable[[], Any]] = {
        "all-reduce": lambda: dist.all_reduce(whole, group=members),
        "all-gather": lambda: gather(whole, part, group=members),
        "reduce-scatter": lambda: scatter(part, whole, group=members),
        "broadcast": lambda: dist.broadcast(whole, group=members, group_src=0),
        "all-to-all": lambda: dist.all_to_all_single(other, whole, group=members),
    }
    return calls[kind]


def _named(*names: str) -> Callable[..., Any]:
    """The first of these that this version of torch has."""
    found: Callable[..., Any] = next(getattr(dist, name) for name in names if hasattr(dist, name))
    return found


def _record(kind: str, nbytes: Bytes, group: Group, timing: Timing, cluster: str, world: World) -> Record:
    settings = {"bytes": nbytes, "ranks": group.size, "stride": group.stride, "groups": group.count}
    point = Point(source=kind, settings={k: str(v) for k, v in settings.items()}, kind="collective")
    among = {"world_size": world.place.size, "backend": world.backend, "cluster": cluster}
    return Record(step=StepRow(**point.columns | world.machine.provenance() | timing.columns | among))
