"""The nouns of hardware: what a `Device`, its `Host`, a `Link` and a rented `Instance` can do, in SI units."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

from foretell.errors import CatalogError, InputError, check_choice, did_you_mean
from foretell.precision import UNITS, Unit
from foretell.units import Bytes, BytesPerSecond, Dollars, FlopsPerSecond, Seconds

DeviceKind = Literal["gpu", "cpu", "accelerator"]
LinkKind = Literal["inside", "between", "both"]

DEFAULT_USABLE_FRACTION = 0.975  # what the driver and ECC leave of the datasheet's size, on the cards we know
DEFAULT_CONTEXT_BYTES: Bytes = 525 * 2**20  # a CUDA 12 context with the libraries a training step loads

# The units that multiply where a device has none of a type, the first that it has.
_INSTEAD: Final[Mapping[Unit, tuple[Unit, ...]]] = {
    "tf32": ("fp32",),
    "bf16": ("fp32",),  # converted, multiplied as fp32, converted back: so on Turing and older
    "fp16": ("bf16", "fp32"),  # Gaudi; as fp32 on Pascal, where PyTorch wants fp32 accumulation
    "fp8": ("bf16", "fp32"),
    "int8": ("fp16", "bf16", "fp32"),
    "fp64": ("fp32",),
}
_NAMED_UNIT: Final[Mapping[str, Unit]] = {unit: unit for unit in UNITS}
_EMULATED_FP64: Final = 1 / 32  # of the rate of fp32

_MIN_NUMBER, _MAX_NUMBER = 1e-12, 1e24  # of any number of hardware, in SI units
_POSITIVE = (
    "memory_bytes",
    "usable_bytes",
    "bandwidth",
    "compute_units",
    "l2_bytes",
    "clock_hz",
    "power_watts",
    "node_size",
)


MAX_TOGETHER: Final = 16_384  # devices of a node, more than any that is sold


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One accelerator (or CPU) as a program sees it: a board with two chips is two devices.

    Attributes:
        name: Its name in the catalog; `title` is the product's.
        memory_bytes: The datasheet's size; `usable_bytes` is what a program can have.
        bandwidth: Bytes per second of its memory.
        peaks: FLOP/s of dense matrix products by type; `vector_peaks` where others differ.
        compute_units: SMs, CUs or cores; `l2_bytes`, `clock_hz`, `power_watts` and `compute_capability` as published.
        node_size: Devices that usually share a node, over the link `inside`, with `between` among nodes, on `host`.
        sources: Where each table of numbers is from.

    Examples:
        >>> foretell.device("h200").architecture
        'Hopper'
    """

    name: str
    title: str
    vendor: str
    kind: DeviceKind
    architecture: str
    memory_bytes: Bytes  # the datasheet's size
    usable_bytes: Bytes  # what a program can have, as `torch.cuda.mem_get_info` reports the total
    bandwidth: BytesPerSecond
    peaks: Mapping[str, FlopsPerSecond] = field(hash=False)  # dense matrix products, best unit for the type
    vector_peaks: Mapping[str, FlopsPerSecond] = field(hash=False, default_factory=dict)  # where they differ
    compute_units: int  # SMs, CUs, cores
    l2_bytes: Bytes
    clock_hz: float  # boost
    power_watts: float
    compute_capability: tuple[int, int] | None = None
    consumer: bool = False  # a board for games, which runs above its published clock
    inline_ecc: bool = False  # check bits lie among the data, and are read with it
    host_link: str | None = None  # link to its host, by name; None: it has none, or its file does not say
    context_bytes: Bytes = DEFAULT_CONTEXT_BYTES
    node_size: int = 1  # devices that usually share a node
    inside: str  # link between devices of a node, by name
    between: str  # link between nodes, by name
    host: str
    sources: Mapping[str, str] = field(hash=False, default_factory=dict)  # where each table of numbers is from

    def __post_init__(self) -> None:
        what = f"device {self.name!r}"
        _check_choice(what, "kind", self.kind, get_args(DeviceKind))
        _check_together(what, self.node_size)
        for name in _POSITIVE:
            _check_positive(what, name, getattr(self, name))
        if self.context_bytes < 0:
            raise CatalogError(f"{what}: context_bytes must not be negative, got {self.context_bytes!r}.")
        if self.usable_bytes > self.memory_bytes:
            raise CatalogError(
                f"{what}: a program can use at most the memory's size, {self.memory_bytes} bytes, "
                f"got usable {self.usable_bytes}. Correct one of the two."
            )
        if "fp32" not in self.peaks:
            raise CatalogError(f"{what} needs a peak for fp32, got {', '.join(self.peaks) or 'none'}.")
        for dtype, rate in (*self.peaks.items(), *self.vector_peaks.items()):
            _check_choice(what, "peak", dtype, UNITS)
            _check_positive(what, f"peak {dtype}", rate)

    def peak(self, dtype: str) -> FlopsPerSecond:
        """Dense rate of matrix products in `dtype`.

        Without a unit for it, that of the units which run it instead; fp64 is emulated at 1/32 of fp32.
        """
        if dtype in self.peaks:
            return self.peaks[dtype]
        return self.peaks[self.unit(dtype)] * (_EMULATED_FP64 if dtype == "fp64" else 1.0)

    def unit(self, dtype: str) -> Unit:
        """The units that multiply numbers of `dtype`: its own, or what a device without them has instead."""
        wanted = _NAMED_UNIT.get(dtype)
        if dtype not in _NAMED_UNIT:
            _check_choice(f"device {self.name!r}", "dtype", dtype, UNITS)
        wanted = _NAMED_UNIT[dtype]
        if wanted in self.peaks:
            return wanted
        return next(unit for unit in _INSTEAD[wanted] if unit in self.peaks)

    def vector_peak(self, dtype: str = "fp32") -> FlopsPerSecond:
        """Rate of elementwise work, outside the matrix units; every type narrower than fp32 computes in fp32."""
        dtype = "fp64" if dtype == "fp64" else "fp32"
        return self.vector_peaks.get(dtype) or self.peak(dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The machine that feeds devices: what matters of it is how fast it issues work."""

    name: str
    title: str
    cores: int
    op_seconds: Seconds  # to dispatch one PyTorch op
    source: str
    built_in: bool = False  # a part of the board that it feeds

    def __post_init__(self) -> None:
        _check_positive(f"host {self.name!r}", "cores", self.cores)
        _check_positive(f"host {self.name!r}", "op_seconds", self.op_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What connects devices; the rate is per device and per direction."""

    name: str
    title: str
    bandwidth: BytesPerSecond
    latency: Seconds
    kind: LinkKind  # inside a node, between nodes, or either
    source: str
    fabric: str = ""  # how it runs collectives, by name; empty: pcie inside a node, rdma between nodes
    reach: int | None = None  # joins neighbours in blocks of this many; None: all of them
    beyond: str | None = None  # the link for the others, by name
    in_switch: bool = False  # its switch can add numbers up

    def __post_init__(self) -> None:
        _check_choice(f"link {self.name!r}", "kind", self.kind, get_args(LinkKind))
        if (self.reach is None) != (self.beyond is None):
            raise CatalogError(
                f"link {self.name!r}: reach and beyond belong together, got reach={self.reach!r} and "
                f"beyond={self.beyond!r}. Say what joins devices out of reach, like 'pcie-4'."
            )
        _check_positive(f"link {self.name!r}", "bandwidth", self.bandwidth)
        _check_positive(f"link {self.name!r}", "latency", self.latency)


Term = Literal["on-demand", "reserved", "spot"]
TERMS: Final[tuple[Term, ...]] = get_args(Term)


def term_named(text: str) -> Term:
    check_choice("term", text, TERMS, InputError)
    return next(term for term in TERMS if term == text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What an instance costs on one term in one region."""

    term: Term
    dollars_per_hour: Dollars
    date: str
    source: str
    region: str = ""  # "": the source says none

    def __post_init__(self) -> None:
        check_choice("term", self.term, TERMS, CatalogError)
        _check_positive(f"an offer of {self.date}", "dollars_per_hour", self.dollars_per_hour)


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """A node as a cloud rents it, with its on-demand list price, and what it costs on other terms and elsewhere."""

    name: str  # provider:type
    title: str
    device: str
    count: int
    host: str
    between: str  # link between instances, by name; "": not known, so that it is priced for one node alone
    bandwidth: BytesPerSecond | None  # per device: the instance's network divided by its devices
    dollars_per_hour: Dollars | None  # None: no list price known
    price_date: str | None
    source: str  # of the price
    offers: tuple[Offer, ...] = ()  # the list price is one of them
    domain: int | None = None  # devices of several such instances that share the link inside; None: one's own alone

    def __post_init__(self) -> None:
        _check_positive(f"instance {self.name!r}", "count", self.count)
        _check_together(f"instance {self.name!r}", max(self.count, self.domain or 0))
        if self.bandwidth is not None:
            _check_positive(f"instance {self.name!r}", "bandwidth", self.bandwidth)
        if self.domain is not None and (self.domain < self.count or self.domain % self.count):
            raise CatalogError(
                f"instance {self.name!r}: its domain is a multiple of its {self.count} devices, got {self.domain}."
            )
        if self.dollars_per_hour is not None:
            _check_positive(f"instance {self.name!r}", "dollars_per_hour", self.dollars_per_hour)

    def offer(self, term: Term, region: str | None = None) -> Offer | None:
        """The cheapest on a term, in a region or in any; None where none is known."""
        fitting = [o for o in self.offers if o.term == term and region in (None, o.region)]
        return min(fitting, key=lambda o: o.dollars_per_hour, default=None)

    @property
    def together(self) -> int:
        """Devices that share the link inside, over as many instances as can."""
        return self.domain or self.count

    @property
    def dollars_per_device_hour(self) -> Dollars | None:
        return None if self.dollars_per_hour is None else self.dollars_per_hour / self.count


def _check_together(what: str, devices: int) -> None:
    if devices > MAX_TOGETHER:
        raise CatalogError(f"{what}: at most {MAX_TOGETHER:,} devices share a node, got {devices:,}.")


def _check_positive(what: str, name: str, value: float) -> None:
    if not value > 0:
        raise CatalogError(f"{what}: {name} must be more than 0, got {value!r}.")
    if not _MIN_NUMBER <= value <= _MAX_NUMBER:  # what is computed from it would be 0 or infinite
        raise CatalogError(
            f"{what}: {name} must lie between {_MIN_NUMBER:g} and {_MAX_NUMBER:g}, got {str(value)[:40]}."
        )


def _check_choice(what: str, name: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise CatalogError(
            f"{what}: unknown {name} {value!r}. {did_you_mean(value, allowed)}Allowed: {', '.join(allowed)}."
        )
