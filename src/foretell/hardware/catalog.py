"""Finds hardware by name: TOML files shipped in `catalog/`, and the user's own folders, which come first."""

from __future__ import annotations

import difflib
import os
import re
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from foretell.errors import CatalogError
from foretell.folders import Stamps, named_folders, stamps, user_folders
from foretell.hardware import catalog_file, driver_names
from foretell.hardware.device import Device, Host, Instance, Link
from foretell.hardware.fabric import Fabric
from foretell.hardware.of_a_team import team_folders

SHIPPED = Path(__file__).parent / "catalog"
T = TypeVar("T")
Folders = tuple[Path, ...]
State = tuple[Folders, Stamps]  # where files are looked for, and the user's own as they are now


def folders() -> Folders:
    """Where files are looked for, first one wins: a team's, $FORETELL_CATALOG, ~/.config/foretell/catalog, the shipped ones."""
    found = (*team_folders(), *user_folders("FORETELL_CATALOG", "catalog"))
    for folder in named_folders("FORETELL_CATALOG") if os.environ.get("FORETELL_CATALOG") else ():
        if not folder.is_dir():
            raise CatalogError(f"$FORETELL_CATALOG names {str(folder)!r}, which is no folder. Create it or correct it.")
    return (*found, SHIPPED)


_STATES: Final[ContextVar[dict[tuple[str, Folders], State] | None]] = ContextVar("states of the catalog", default=None)


@contextmanager
def catalog_as_it_is() -> Iterator[None]:
    """One answer rests on one state of the user's files: within, they are looked at once, and dozens of times otherwise."""
    if _STATES.get() is not None:
        yield
        return
    token = _STATES.set({})
    try:
        yield
    finally:
        _STATES.reset(token)


_LONGEST = 100  # a name; file systems end at 255
_MAX_FOUND, _MAX_LISTED, _MAX_PARSED = 10_000, 16, 10_000


_NOT_MODELLED: Final = re.compile(r"(?:[a-z]+:)?(tpu|v[2-7][ep]-|trainium|trn[0-9]|inferentia|inf[0-9]|neuron)")
_MADE_BY: Final = {"tr": "Trainium", "ne": "Trainium", "in": "Inferentia"}


class _Files(Generic[T]):
    """The catalog's files of one kind: shipped ones are parsed at most once, the user's again when they have changed."""

    def __init__(
        self,
        kind: str,
        table: catalog_file.Table,
        make: Callable[[str, dict[str, Any]], T],
        spelt_otherwise: Callable[[str], T | None] = lambda name: None,
    ) -> None:
        self.kind, self.table, self.make, self.spelt_otherwise = kind, table, make, spelt_otherwise
        self._parsed: dict[tuple[Path, Stamps], tuple[T, tuple[str, ...]]] = {}
        self._found: dict[tuple[str, State], T] = {}  # a forecast asks for the same few many times
        self._listed: dict[State, tuple[dict[str, T], dict[str, str]]] = {}

    def get(self, name: str) -> T:
        """By file name, which reads that one file; else by alias or another spelling, which reads them all."""
        wanted, state = name.strip().lower(), self._state()
        if (known := self._found.get((wanted, state))) is not None:
            return known
        if catalog_file.NAME.fullmatch(wanted) and len(wanted) <= _LONGEST:
            for path in (self._path(folder, wanted) for folder in state[0]):
                if path.is_file():
                    _trim(self._found, _MAX_FOUND)
                    found = self._found[wanted, state] = self._parse(wanted, path, state[1])[0]
                    return found
        things, aliases = self.listed()
        if wanted in aliases:
            return things[aliases[wanted]]
        if (known := self.spelt_otherwise(wanted[:_LONGEST])) is not None:
            return known
        if (other := _NOT_MODELLED.match(wanted)) is not None:
            kind = _MADE_BY.get(other[1][:2], "TPU")
            raise CatalogError(
                f"{name[:_LONGEST]!r} is not modelled: Foretell knows no {kind}, whose compiler decides what runs. "
                "Choose a GPU; foretell devices lists them."
            )
        bare = {rented.name.partition(":")[2]: rented.name for rented in instances()}  # without the cloud that rents it
        near = difflib.get_close_matches(wanted[:_LONGEST], [*bare, *things, *aliases], n=1, cutoff=0.5)
        hint = f"Did you mean {bare.get(near[0], aliases.get(near[0], near[0]))!r}? " if near else ""
        raise CatalogError(
            f"no {self.kind} {name!r} in the catalog. {hint}To add one, write a TOML file (see docs/reference/hardware.md)."
        )

    def all(self) -> tuple[T, ...]:
        """Every entry of the catalog."""
        return tuple(self.listed()[0].values())

    def listed(self) -> tuple[dict[str, T], dict[str, str]]:
        """Everything by name, and the name each alias stands for."""
        state = self._state()
        if (listed := self._listed.get(state)) is None:
            things: dict[str, T] = {}
            aliases: dict[str, str] = {}
            for folder in reversed(state[0]):  # so that an earlier folder replaces what a later one says
                root = folder / f"{self.kind}s"
                for path in root.rglob("*.toml"):
                    name = path.relative_to(root).as_posix().removesuffix(".toml").replace("/", ":")
                    things[name], others = self._parse(name, path, state[1])
                    aliases |= dict.fromkeys(others, name)
            _trim(self._listed, _MAX_LISTED)
            listed = self._listed[state] = dict(sorted(things.items())), aliases
        return listed

    def _state(self) -> State:
        states = _STATES.get()
        if states is None:
            return self._looked_at()
        key = self.kind, team_folders()
        if (known := states.get(key)) is None:
            known = states[key] = self._looked_at()
        return known

    def _looked_at(self) -> State:
        places = folders()
        own: Stamps = ()
        for folder in places[:-1]:
            own += stamps(f"{folder}/{self.kind}s")
        return places, own

    def _path(self, folder: Path, name: str) -> Path:
        """`aws:p5.48xlarge` lies in the folder aws: a colon is no good in a file name."""
        return folder / f"{self.kind}s" / (name.replace(":", "/") + ".toml")

    def _parse(self, name: str, path: Path, there: Stamps) -> tuple[T, tuple[str, ...]]:
        key = path, tuple(stamp for stamp in there if stamp[0] == str(path))  # none of a shipped file
        if (parsed := self._parsed.get(key)) is None:
            if catalog_file.NAME.fullmatch(name) is None:
                raise CatalogError(
                    f"{path}: a file name is lower-case letters, digits and . _ - only. Rename the file."
                )
            values = catalog_file.parse_file(path, self.table)
            try:
                _trim(self._parsed, _MAX_PARSED)
                parsed = self._parsed[key] = self.make(name, values), values["aliases"] or ()
            except CatalogError as error:
                raise CatalogError(f"{path}: {error}") from None
        return parsed


def _trim(known: dict[Any, Any], most: int) -> None:
    """Begin anew once versions of files that change often have filled it."""
    if len(known) >= most:
        known.clear()


_DEVICES = _Files("device", catalog_file.DEVICE, catalog_file.make_device, spelt_otherwise=lambda name: recognise(name))
_LINKS = _Files("link", catalog_file.LINK, catalog_file.make_link)
_FABRICS = _Files("fabric", catalog_file.FABRIC, catalog_file.make_fabric)
_HOSTS = _Files("host", catalog_file.HOST, catalog_file.make_host)
_INSTANCES = _Files("instance", catalog_file.INSTANCE, catalog_file.make_instance)

links, hosts, instances, fabric = _LINKS.all, _HOSTS.all, _INSTANCES.all, _FABRICS.get


def device(name: str) -> Device:
    """Find a device of the catalog.

    Args:
        name: Its name in the catalog, an alias or another spelling.

    Returns:
        The device, with the sources of its numbers.

    Raises:
        InputError: The catalog has none of that name; the message has the nearest.

    Examples:
        >>> foretell.device("H100").name
        'h100-sxm'
    """
    return _DEVICES.get(name)


def devices() -> tuple[Device, ...]:
    """List every device of the catalog, with those of your own folders.

    Returns:
        The devices, by name.

    Examples:
        >>> "h200" in {each.name for each in foretell.devices()}
        True
    """
    return _DEVICES.all()


def own_devices() -> frozenset[str]:
    """Names of devices that lie in the user's own folders."""
    return frozenset(
        path.relative_to(root).as_posix().removesuffix(".toml").replace("/", ":")
        for root in (folder / "devices" for folder in folders()[:-1])
        for path in root.rglob("*.toml")
    )


def host(name: str) -> Host:
    """Find a host of the catalog: the machine that feeds devices.

    Args:
        name: Its name in the catalog, an alias or another spelling.

    Returns:
        The host, with the sources of its numbers.

    Raises:
        InputError: The catalog has none of that name; the message has the nearest.

    Examples:
        >>> foretell.host("epyc-turin").name
        'epyc-turin'
    """
    return _HOSTS.get(name)


def link(name: str) -> Link:
    """Find a link of the catalog, inside a node or between nodes.

    Args:
        name: Its name in the catalog, an alias or another spelling.

    Returns:
        The link, with the sources of its numbers.

    Raises:
        InputError: The catalog has none of that name; the message has the nearest.

    Examples:
        >>> foretell.link("ib-400g").kind
        'between'
    """
    return _LINKS.get(name)


def instance(name: str) -> Instance:
    """Find a rented instance of the catalog, with its price.

    Args:
        name: Its name in the catalog, an alias or another spelling.

    Returns:
        The instance, with the sources of its numbers.

    Raises:
        InputError: The catalog has none of that name; the message has the nearest.

    Examples:
        >>> foretell.instance("aws:p5.48xlarge").count
        8
    """
    return _INSTANCES.get(name)


def state() -> State:
    """The user's files of all kinds as they are now: what the catalog says follows from it, and from what is shipped."""
    places = folders()
    return places, tuple(stamp for folder in places[:-1] for stamp in stamps(folder))


def own_files() -> Stamps:
    """The user's files that an answer about any cluster may rest on, as they are now.

    That is all but new devices: only a cluster that has one of them rests on it, and holds all of it.
    """
    return tuple(
        stamp
        for folder in folders()[:-1]
        for stamp in stamps(folder)
        if Path(stamp[0]).parent != folder / "devices" or (SHIPPED / "devices" / Path(stamp[0]).name).is_file()
    )


def read_device(name: str, text: str) -> Device:
    """A device of somebody's own, by its TOML; what cannot be read, or has a name already, is refused."""
    if catalog_file.NAME.fullmatch(name) is None or ":" in name or len(name) > _LONGEST:
        raise CatalogError(f"a device's name is lower-case letters, digits and . _ -, got {name[:_LONGEST]!r}.")
    things, aliases = _DEVICES.listed()
    if name in things or name in aliases:
        raise CatalogError(f"the catalog has {name!r} already. Choose another name.")
    with tempfile.TemporaryDirectory(prefix="foretell-device-") as folder:
        path = Path(folder) / f"{name}.toml"
        path.write_text(text, encoding="utf-8")
        try:
            made = catalog_file.make_device(name, catalog_file.parse_file(path, catalog_file.DEVICE))
        except CatalogError as error:
            raise CatalogError(str(error).replace(f"{path}: ", "").replace(str(path), name)) from None
    for other in filter(None, (made.inside, made.between, made.host_link)):
        link(other)
    host(made.host)
    return made


def fabric_of(link: Link) -> Fabric:
    """How a link runs collectives."""
    return fabric(link.fabric or ("rdma" if link.kind == "between" else "pcie"))


def labels_by_device() -> Iterator[tuple[Device, tuple[str, ...]]]:
    """Every device with all it is called: title, name and aliases."""
    things, aliases = _DEVICES.listed()
    others: dict[str, list[str]] = defaultdict(list)
    for alias, name in aliases.items():
        others[name].append(alias)
    for known in things.values():
        yield known, (known.title, known.name, *others[known.name])


def recognise(driver_name: str, memory_bytes: int | None = None) -> Device | None:
    """The device that a driver calls so, socket and memory as far as they are said.

    None when the catalog has no such model: a laptop's or a Max-Q card is not the desktop card of that number.
    """
    return driver_names.meant(labels_by_device(), driver_name, memory_bytes)


def cheapest(device_name: str) -> Instance | None:
    """The instance that rents a device for the fewest dollars per device and hour, whatever its network.

    Args:
        device_name: The device's name in the catalog.

    Returns:
        The instance, with its price and the date of it; None when none is priced.

    Examples:
        >>> foretell.cheapest_instance("h100-sxm").device
        'h100-sxm'
    """
    priced = [i for i in instances() if i.device == device_name and i.dollars_per_hour is not None]
    return min(priced, key=lambda i: i.dollars_per_device_hour or 0.0, default=None)
