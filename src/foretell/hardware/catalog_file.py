"""What a file of the catalog may say, as data; the one parser of such files; and what is made of each kind."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from foretell.errors import CatalogError, InputError, did_you_mean
from foretell.hardware.device import (
    DEFAULT_CONTEXT_BYTES,
    DEFAULT_USABLE_FRACTION,
    Device,
    Host,
    Instance,
    Link,
    Offer,
)
from foretell.hardware.fabric import PROTOCOLS, ROWS_ONCE, Fabric, Protocol
from foretell.limits import read_toml
from foretell.precision import UNITS
from foretell.units import parse_bandwidth, parse_bytes, parse_flops, parse_seconds

NAME = re.compile(r"(?!.*\.\.)[a-z0-9][a-z0-9._:-]{0,99}")  # a part of a path, so no way up
_MAX_NUMBER = 1e12  # of a plain number or count
Reader = Callable[[Any], Any]


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"must be a text, got {value!r}.")
    return value


def _name(value: Any) -> str:
    if NAME.fullmatch(_text(value)) is None:
        raise InputError(f"must be a name of lower-case letters, digits and . _ : - , got {value!r}.")
    return str(value)


def _names(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise InputError(f"must be a list of names, got {value!r}.")
    return tuple(_name(item) for item in value)


def _number(value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise InputError(f"must be a number, got {value!r}.")
    if not -_MAX_NUMBER <= value <= _MAX_NUMBER:
        raise InputError(f"must be a number up to {_MAX_NUMBER:g}, got {str(value)[:40]}.")
    return float(value)


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _MAX_NUMBER:
        raise InputError(f"must be a whole number of at least 1, got {str(value)[:40]}.")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise InputError(f"must be true or false, got {value!r}.")
    return value


def _date(value: Any) -> str:
    if re.fullmatch(r"20\d\d-(0[1-9]|1[0-2])(-\d\d)?", str(value)) is None:
        raise InputError(f"must be a date like '2025-07', got {value!r}.")
    return str(value)


def _capability(value: Any) -> tuple[int, int]:
    if re.fullmatch(r"\d+\.\d+", str(value)) is None or not isinstance(value, str):
        raise InputError(f"must be a text like '9.0', got {value!r}.")
    major, minor = value.split(".")
    return int(major), int(minor)


def _quantity(parse: Callable[[Any], float], example: str) -> Reader:
    """A text with its unit: a bare number in a file is one slip from wrong by 1000."""

    def read(value: Any) -> float:
        if not isinstance(value, str):
            raise InputError(f"must be a text with its unit, like {example!r}, got {value!r}.")
        return parse(value)

    return read


_size = _quantity(parse_bytes, "80 GiB")
_bandwidth = _quantity(parse_bandwidth, "3.35 TB/s")
_rate = _quantity(parse_flops, "989.4 TFLOP/s")
_duration = _quantity(parse_seconds, "2 us")

# A table is a dict of readers; a name that ends in "?" may be left out.
Table = Mapping[str, "Reader | Table | list[Table]"]

_RATES: Table = {"source": _text} | {f"{dtype}?": _rate for dtype in UNITS}

DEVICE: Table = {
    "title": _text,
    "aliases?": _names,
    "vendor": _text,
    "kind": _text,
    "architecture": _text,
    "compute_capability?": _capability,
    "consumer?": _flag,
    "memory": {"size": _size, "bandwidth": _bandwidth, "l2": _size, "inline_ecc?": _flag, "source": _text},
    "usable?": {"size": _size, "source": _text},
    "context?": {"size": _size, "source": _text},
    "peaks": _RATES,
    "vector?": _RATES,
    "chip": {"units": _count, "clock_mhz": _number, "power_watts": _number, "host_link?": _name, "source": _text},
    "node": {"size": _count, "inside": _name, "between": _name, "host": _name, "source": _text},
}
LINK: Table = {
    "title": _text,
    "aliases?": _names,
    "kind": _text,
    "bandwidth": _bandwidth,
    "latency": _duration,
    "source": _text,
    "fabric?": _name,
    "reach?": _count,
    "beyond?": _name,
    "in_switch?": _flag,
}
_PROTOCOL: Table = {"efficiency": _number, "knee": _number, "copy?": _number}
FABRIC: Table = {
    "title": _text,
    "aliases?": _names,
    "startup": _number,
    "hop?": _number,
    "full_at?": _number,
    "sharing?": _number,
    "error?": _number,
    "ports?": _text,
    "through?": _bandwidth,
    "units?": _count,
    "source": _text,
    **dict.fromkeys(PROTOCOLS, _PROTOCOL),
    f"{ROWS_ONCE}?": _PROTOCOL,
    "in-switch?": {**_PROTOCOL, "from": _count, "startup?": _number},
}
HOST: Table = {
    "title": _text,
    "aliases?": _names,
    "cores": _count,
    "op_time": _duration,
    "source": _text,
    "built_in?": _flag,
}
INSTANCE: Table = {
    "title": _text,
    "aliases?": _names,
    "device": _name,
    "count": _count,
    "domain?": _count,
    "host": _name,
    "network": {"link": _name, "bandwidth": _bandwidth, "source": _text},
    "price?": {"dollars_per_hour": _number, "region?": _text, "date": _date, "source": _text},
    "offers?": [{"term": _text, "region": _text, "dollars_per_hour": _number, "date": _date, "source": _text}],
}


def parse_file(path: Path, table: Table) -> dict[str, Any]:
    """The values of a file, every one checked and in SI units; optional ones left out are None."""
    try:
        data = read_toml(path)
    except (OSError, ValueError) as error:
        raise CatalogError(f"{path} cannot be read: {error}. Correct or remove the file.") from None
    return _parse_table(data, table, path=path, prefix="")


def _parse_table(data: Mapping[str, Any], table: Table, *, path: Path, prefix: str) -> dict[str, Any]:
    readers = {key.removesuffix("?"): reader for key, reader in table.items()}
    for key in data:
        if key not in readers:
            raise CatalogError(
                f"{path}: unknown field '{prefix}{key}'. {did_you_mean(key, readers)}Allowed: {', '.join(readers)}."
            )
    values: dict[str, Any] = dict.fromkeys(readers)
    for key, reader in readers.items():
        field = prefix + key
        if key not in data:
            if key in table:
                raise CatalogError(
                    f"{path}: missing field '{field}'. Add it (docs/reference/hardware.md has a whole file)."
                )
        elif callable(reader):
            try:
                values[key] = reader(data[key])
            except InputError as error:
                raise CatalogError(f"{path}: field '{field}': {error}") from None
        elif isinstance(reader, list):
            values[key] = _parse_tables(data[key], reader[0], path=path, field=field)
        elif isinstance(data[key], dict):
            values[key] = _parse_table(data[key], reader, path=path, prefix=f"{field}.")
        else:
            raise CatalogError(f"{path}: field '{field}' must be a table [{key}], got {data[key]!r}.")
    return values


def _parse_tables(data: Any, table: Table, *, path: Path, field: str) -> list[dict[str, Any]]:
    if not isinstance(data, list) or not all(isinstance(entry, dict) for entry in data):
        raise CatalogError(f"{path}: field '{field}' must be tables [[{field}]], got {str(data)[:80]}.")
    return [_parse_table(entry, table, path=path, prefix=f"{field}.") for entry in data]


def _given(values: Mapping[str, Any], *left_out: str) -> dict[str, Any]:
    """What a file says of the fields that a class has under the same names; the class knows its defaults."""
    return {key: value for key, value in values.items() if value is not None and key not in ("aliases", *left_out)}


def make_device(name: str, values: dict[str, Any]) -> Device:
    memory, chip, node = values["memory"], values["chip"], values["node"]
    usable = values["usable"] or {
        "size": round(memory["size"] * DEFAULT_USABLE_FRACTION),
        "source": f"estimate: {DEFAULT_USABLE_FRACTION:.1%} of the datasheet's size",
    }
    context = values["context"] or {
        "size": DEFAULT_CONTEXT_BYTES,
        "source": "estimate: a CUDA 12 context with cuBLAS and cuDNN loaded",
    }
    tables = {**values, "usable": usable, "context": context}
    return Device(
        name=name,
        **{key: value for key, value in _given(values).items() if not isinstance(value, dict)},
        memory_bytes=memory["size"],
        usable_bytes=usable["size"],
        context_bytes=context["size"],
        bandwidth=memory["bandwidth"],
        l2_bytes=memory["l2"],
        peaks=_given(values["peaks"], "source"),
        vector_peaks=_given(values["vector"] or {}, "source"),
        compute_units=chip["units"],
        clock_hz=chip["clock_mhz"] * 1e6,
        power_watts=chip["power_watts"],
        host_link=chip["host_link"],
        inline_ecc=bool(memory["inline_ecc"]),
        node_size=node["size"],
        inside=node["inside"],
        between=node["between"],
        host=node["host"],
        sources={key: table["source"] for key, table in tables.items() if isinstance(table, dict)},
    )


def make_link(name: str, values: dict[str, Any]) -> Link:
    return Link(name=name, **_given(values))


def make_fabric(name: str, values: dict[str, Any]) -> Fabric:
    protocols = {kind: Protocol(**_given(values[kind])) for kind in (*PROTOCOLS, ROWS_ONCE) if values.get(kind)}
    if in_switch := values["in-switch"]:
        values = values | {
            "in_switch": Protocol(**_given(in_switch, "from", "startup")),
            "in_switch_from": in_switch["from"],
            "in_switch_startup": in_switch["startup"],
        }
    return Fabric(name=name, protocols=protocols, **_given(values, *PROTOCOLS, ROWS_ONCE, "in-switch"))


def make_host(name: str, values: dict[str, Any]) -> Host:
    return Host(name=name, op_seconds=values["op_time"], **_given(values, "op_time"))


def make_instance(name: str, values: dict[str, Any]) -> Instance:
    network = values["network"]
    price = values["price"] or {"dollars_per_hour": None, "date": None, "source": "no list price known"}
    offers = [Offer(**offer) for offer in values["offers"] or ()]
    if values["price"]:
        offers.insert(0, Offer(term="on-demand", **_given(price)))
    return Instance(
        name=name,
        **_given(values, "network", "price", "offers"),
        between=network["link"],
        bandwidth=network["bandwidth"] / values["count"],
        dollars_per_hour=price["dollars_per_hour"],
        price_date=price["date"],
        source=price["source"],
        offers=tuple(offers),
    )
