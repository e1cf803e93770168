"""The ranks of a torchrun job: which one this process is, how it meets the others, and which one is gone when they cannot go on."""

from __future__ import annotations

import datetime
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from foretell.errors import ForetellError, InputError, did_you_mean
from foretell.measure.machine import Machine, pick_device
from foretell.measure.ranks.network import NAMED_BY, address_towards, find_interface, read_counters
from foretell.units import Seconds

TIMEOUT: Final = 300.0  # that a rank waits for the others
_GRACE: Final = 3.0  # for the others to say what happened to them
# How torch words a collective that could not go on; most of gloo's errors are plain RuntimeErrors.
_OF_OTHERS: Final = re.compile(r"gloo|nccl|pair closure|by peer|timed out|socket|broken pipe", re.IGNORECASE)
_START: Final = "torchrun --nnodes 2 --node-rank 0 --master-addr HOST --no-python foretell measure …"

T = TypeVar("T")


class RankGone(ForetellError):
    """A rank failed, ended or hangs, and the others cannot go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where this process stands in a torchrun job."""

    rank: int
    size: int
    local_rank: int
    master: str

    @classmethod
    def here(cls, environment: Mapping[str, str] = os.environ) -> Place:
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
        if missing := [name for name in names if not environment.get(name)]:
            raise InputError(
                f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set, so this process does not know "
                f"its place among the ranks. Start it with torchrun, on every host: {_START}"
            )
        rank, size, local_rank = (_count(name, environment[name]) for name in names[:3])
        if rank >= size or local_rank >= size:
            raise InputError(
                f"RANK={rank} and LOCAL_RANK={local_rank} must be below WORLD_SIZE={size}. "
                f"Let torchrun set them: {_START}"
            )
        return cls(rank=rank, size=size, local_rank=local_rank, master=environment["MASTER_ADDR"])


@dataclass(frozen=True, slots=True)
class Peer:
    """A rank, as the others know it."""

    rank: int
    host: str
    address: str
    network: str  # the same for ranks that share their interfaces

    def __str__(self) -> str:
        return f"rank {self.rank} ({self.host}, {self.address})"


class World:
    """The ranks of this job, seen from one of them."""

    def __init__(
        self, place: Place, *, backend: str, device: torch.device, interface: str, store: Any, limit: datetime.timedelta
    ) -> None:
        self.place, self.backend, self.device, self.interface = place, backend, device, interface
        self.machine = Machine(device)
        self.broken = False
        self.peers: list[Peer] = []
        self._store = store
        # Messages between ranks go their own way: they wait for no step, and need no GPU.
        self._messages = dist.new_group(backend="gloo", timeout=limit)
        self.peers = self.gather(_peer(place))

    @property
    def neighbours(self) -> int:
        """Ranks that share this one's interfaces, itself among them."""
        return sum(peer.network == self.peers[self.place.rank].network for peer in self.peers)

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, by rank."""
        values: list[Any] = [None] * self.place.size
        try:
            dist.all_gather_object(values, value, group=self._messages)
        except Exception as error:
            raise self.gone(error) from error
        return values

    def barrier(self) -> None:
        try:
            dist.barrier(group=self._messages)
        except Exception as error:
            raise self.gone(error) from error

    def together(self, make: Callable[[], T]) -> T:
        """What `make` returns, where it does so in every rank. Where it fails in one, it fails in all."""
        made: list[T] = []
        trouble: Exception | None = None
        try:
            made.append(make())
        except Exception as error:
            trouble = error
        troubles = self.gather(None if trouble is None else (_first_line(trouble), isinstance(trouble, InputError)))
        if trouble is not None:
            raise trouble
        for peer, trouble_there in zip(self.peers, troubles, strict=True):
            if trouble_there is not None:
                text, of_input = trouble_there
                raise (InputError if of_input else ForetellError)(f"{peer}: {text}.")
        return made[0]

    def gone(self, error: Exception) -> RankGone:
        """Why the ranks cannot go on. Each reports to the others what it met; one that does not is the one that is gone."""
        self.broken = True
        place = self.place
        own = "" if _of_a_collective(error) else _first_line(error)
        reports: dict[int, str] = {}
        asking = threading.Thread(target=self._ask, args=(own, reports), daemon=True)
        asking.start()
        asking.join(2 * _GRACE)  # the store itself may be on the host that hangs
        if own:
            return RankGone(f"rank {place.rank} failed: {own}.")
        text = _first_line(error).partition(". This is typically")[0]
        if failed := [f"{self.peers[rank]} failed: {report}" for rank, report in sorted({**reports}.items()) if report]:
            return RankGone(f"{'; '.join(failed)}. Rank {place.rank} cannot go on alone.")
        silent = [peer for peer in self.peers if reports and peer.rank not in reports]
        named = [peer for peer in self.peers if f"[{peer.address}]" in text]
        gone = [peer for peer in named if peer in silent] or silent or named
        return RankGone(
            f"rank {place.rank} lost {' and '.join(map(str, gone)) or 'another rank'}: it ended, or does not answer "
            f"({text}). Read the end of its output, and start the job again."
        )

    def _ask(self, own: str, reports: dict[int, str]) -> None:
        """Report what happened here, and read what the others met, for as long as is worth waiting."""
        try:
            self._store.set(f"foretell/end/{self.place.rank}", own)
            reports[self.place.rank] = own
            patience = time.monotonic() + _GRACE
            while len(reports) < self.place.size and time.monotonic() < patience:
                for peer in self.peers:
                    key = f"foretell/end/{peer.rank}"
                    if peer.rank not in reports and self._store.check([key]):
                        reports[peer.rank] = self._store.get(key).decode()
                time.sleep(0.05)
        except Exception:  # the store was with the one that is gone
            return


@contextmanager
def join(*, backend: str | None = None, interface: str | None = None, timeout: Seconds = TIMEOUT) -> Iterator[World]:
    """Join the ranks that torchrun started. NCCL takes the GPU of LOCAL_RANK, gloo the CPU.

    Args:
        backend: nccl or gloo; None: nccl where there are GPUs.
        interface: The network interface to use.
        timeout: Seconds to wait for the others.

    Returns:
        A context manager that gives the ranks.

    Raises:
        InputError: Torchrun did not start this process, or the others did not come.

    Examples:
        >>> with foretell.join_ranks(backend="gloo") as world:  # doctest: +SKIP
        ...     print(world.rank)
    """
    place = Place.here()
    backend = backend or ("nccl" if torch.cuda.is_available() else "gloo")
    if backend not in NAMED_BY:
        raise InputError(f"no backend {backend!r}. {did_you_mean(backend, NAMED_BY)}Allowed: {', '.join(NAMED_BY)}.")
    device = pick_device(f"cuda:{place.local_rank}" if backend == "nccl" else "cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if interface is None:
        interface = find_interface(place.master, backend)
    else:
        os.environ[NAMED_BY[backend]] = interface
    read_counters(interface)  # a wrong name is an error before anyone waits
    # Left alone, gloo takes the interface that the host's own name resolves to, which is often the loopback.
    os.environ.setdefault(NAMED_BY["gloo"], find_interface(place.master, "gloo"))
    limit = datetime.timedelta(seconds=timeout)
    try:
        store, rank, size = next(rendezvous("env://", timeout=limit))
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=limit)
        world = World(place, backend=backend, device=device, interface=interface, store=store, limit=limit)
    except RuntimeError as error:
        raise RankGone(
            f"rank {place.rank} could not meet the other {place.size - 1} at {place.master} within {timeout:g} s "
            f"({_first_line(error)}). Start all ranks, and let their hosts reach one another over {interface}."
        ) from error
    yield world
    if not world.broken:  # where it is, leaving in order would wait for those who are gone
        dist.destroy_process_group()


def _count(name: str, text: str) -> int:
    if not text.isdecimal():
        raise InputError(f"{name}={text!r} must be a whole number. Let torchrun set it: {_START}")
    return int(text)


def _peer(place: Place) -> Peer:
    # Containers share a kernel, hosts may share a name: both together say whose counters these are.
    kernel = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    network = f"{kernel} {os.stat('/proc/self/ns/net').st_ino}"
    return Peer(place.rank, socket.gethostname(), str(address_towards(place.master)), network)


def _of_a_collective(error: Exception) -> bool:
    return isinstance(error, dist.DistError) or _OF_OTHERS.search(str(error)) is not None


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return re.sub(r"^\[\S+:\d+\] ", "", lines[0])[:300].rstrip(".")
