"""Finds hardware by name: TOML files shipped in `catalog/`, and the user's own folders, which come first."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

from foretell.errors import CatalogError
from foretell.hardware import catalog_schema as schema
from foretell.hardware.device import Device, Host, Instance, Link
from foretell.hardware.fabric import Fabric
from foretell.units import Dollars

SHIPPED = Path(__file__).parent / "catalog"
T = TypeVar("T")
Folders = tuple[Path, ...]


def folders() -> Folders:
    """Where files are looked for, first one wins: $FORETELL_CATALOG, ~/.config/foretell/catalog, the shipped ones."""
    asked = [Path(part).expanduser() for part in os.environ.get("FORETELL_CATALOG", "").split(os.pathsep) if part]
    for folder in asked:
        if not folder.is_dir():
            raise CatalogError(f"$FORETELL_CATALOG names {str(folder)!r}, which is no folder. Create it or correct it.")
    return (*asked, Path("~/.config/foretell/catalog").expanduser(), SHIPPED)


class _Shelf(Generic[T]):
    """The catalogue's files of one kind, each read at most once."""

    def __init__(self, what: str, table: schema.Table, make: Callable[[str, dict[str, Any]], T]) -> None:
        self.what, self.table, self.make = what, table, make
        self._read: dict[Path, tuple[T, tuple[str, ...]]] = {}
        self._listed: dict[Folders, tuple[dict[str, T], dict[str, str]]] = {}

    def get(self, name: str) -> T:
        """By file name, which reads that one file; else by alias, which reads them all."""
        wanted, places = name.strip().lower(), folders()
        if schema.NAME.fullmatch(wanted):
            for path in (self._path(folder, wanted) for folder in places):
                if path in self._read or path.is_file():
                    return self._load(wanted, path)[0]
        things, aliases = self._list(places)
        if wanted in aliases:
            return things[aliases[wanted]]
        near = difflib.get_close_matches(wanted, [*things, *aliases], n=1, cutoff=0.5)
        hint = f"Did you mean {aliases.get(near[0], near[0])!r}? " if near else ""
        raise CatalogError(
            f"no {self.what} {name!r} in the catalogue. {hint}To add one, write a TOML file (see docs/reference/hardware.md)."
        )

    def all(self) -> tuple[T, ...]:
        return tuple(self._list(folders())[0].values())

    def _path(self, folder: Path, name: str) -> Path:
        """`aws:p5.48xlarge` lies in the folder aws: a colon is no good in a file name."""
        return folder / f"{self.what}s" / (name.replace(":", "/") + ".toml")

    def _list(self, places: Folders) -> tuple[dict[str, T], dict[str, str]]:
        """Everything by name, and the name each alias stands for."""
        if places not in self._listed:
            things: dict[str, T] = {}
            aliases: dict[str, str] = {}
            for folder in reversed(places):  # so that an earlier folder replaces what a later one says
                root = folder / f"{self.what}s"
                for path in root.rglob("*.toml"):
                    name = path.relative_to(root).as_posix().removesuffix(".toml").replace("/", ":")
                    things[name], others = self._load(name, path)
                    aliases |= dict.fromkeys(others, name)
            self._listed[places] = dict(sorted(things.items())), aliases
        return self._listed[places]

    def _load(self, name: str, path: Path) -> tuple[T, tuple[str, ...]]:
        if path not in self._read:
            if schema.NAME.fullmatch(name) is None:
                raise CatalogError(
                    f"{path}: a file name is lower-case letters, digits and . _ - only. Rename the file."
                )
            values = schema.read_file(path, self.table)
            try:
                self._read[path] = self.make(name, values), values["aliases"] or ()
            except CatalogError as error:
                raise CatalogError(f"{path}: {error}") from None
        return self._read[path]


_DEVICES = _Shelf("device", schema.DEVICE, schema.make_device)
_LINKS = _Shelf("link", schema.LINK, schema.make_link)
_FABRICS = _Shelf("fabric", schema.FABRIC, schema.make_fabric)
_HOSTS = _Shelf("host", schema.HOST, schema.make_host)
_INSTANCES = _Shelf("instance", schema.INSTANCE, schema.make_instance)


def device(name: str) -> Device:
    """The device called `name`, by its name (`h100-sxm`) or an alias (`h100`)."""
    return _DEVICES.get(name)


def devices() -> tuple[Device, ...]:
    return _DEVICES.all()


def recognise(driver_name: str, memory_bytes: int | None = None) -> Device | None:
    """The device that a driver calls `NVIDIA A100-SXM4-80GB`; None when nothing in the catalogue is near.

    Some word beside the vendor that has a number or is its name must agree, and the memory within a tenth; then most
    words win.
    """
    said = _words(driver_name)
    things, aliases = _DEVICES._list(folders())
    named = {word for word in said if word in things} | {aliases[word] for word in said if word in aliases}
    found: list[tuple[int, bool, float, Device]] = []
    for known in things.values():
        agree = said & (_words(known.title) | _words(known.name)) - _words(known.vendor)
        off = abs((memory_bytes or known.usable_bytes) / known.usable_bytes - 1)
        telling = any(any(c.isdigit() for c in word) or word == known.name != "cpu" for word in agree)
        if telling and off < 0.1:
            found.append((len(agree), known.name in named, -off, known))
    return max(found, key=lambda f: f[:3])[3] if found else None


def _words(text: str) -> set[str]:
    """`a100 sxm 80gb` of `A100-SXM4-80GB`: the catalogue leaves out the generation of a socket."""
    words = re.findall(r"[a-z0-9]+", re.sub(r"(\d+) gb\b", r"\1gb", text.lower()))
    return {re.sub(r"^sxm\d$", "sxm", word) for word in words}


def link(name: str) -> Link:
    return _LINKS.get(name)


def links() -> tuple[Link, ...]:
    return _LINKS.all()


def fabric(name: str) -> Fabric:
    """How a kind of link carries collectives."""
    return _FABRICS.get(name)


def fabric_of(link: Link) -> Fabric:
    return fabric(link.fabric or ("rdma" if link.kind == "between" else "pcie"))


def host(name: str) -> Host:
    return _HOSTS.get(name)


def hosts() -> tuple[Host, ...]:
    return _HOSTS.all()


def instance(name: str) -> Instance:
    """The rented node called `name`, written `provider:type`."""
    return _INSTANCES.get(name)


def instances() -> tuple[Instance, ...]:
    return _INSTANCES.all()


def cheapest(device_name: str) -> Instance | None:
    """The instance that rents this device for the fewest dollars per device and hour; None when none is priced."""
    priced = [i for i in instances() if i.device == device_name and i.dollars_per_hour is not None]
    return min(priced, key=lambda i: i.dollars_per_device_hour or 0.0, default=None)


def dollars_per_device_hour(device_name: str) -> Dollars | None:
    offer = cheapest(device_name)
    return None if offer is None else offer.dollars_per_device_hour
