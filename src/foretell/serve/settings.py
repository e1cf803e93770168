"""How a service is set up: on the command line, by the environment, by a file, in this order."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, get_type_hints

from foretell.errors import InputError, check_count, check_number, did_you_mean
from foretell.limits import read_toml
from foretell.units import Seconds

LEASE: Final[Seconds] = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Limits are what one caller can take from the others."""

    host: str = "127.0.0.1"
    port: int = 8760
    database: str | None = None  # a URL; None: a file in the user's data folder
    workers: int = field(default_factory=lambda: min(os.cpu_count() or 1, 8))  # processes that price
    seconds: Seconds = 30.0  # that one question may take
    waiting: int = 64  # questions in the queue before others are sent away
    rate: float = 50.0  # requests per second of a key, in the long run; loopback without keys has no limit
    job_runners: int = 1
    lease: Seconds = LEASE  # until the job of a process that was killed is begun again by another
    team_jobs: int = 100  # of one team that wait or run at a time
    team_seconds: Seconds = 43_200.0  # of work on one team's jobs within a day
    team_graphs: int = 10_000  # that are kept of one team
    team_devices: int = 100  # of one team's own
    methods: str | None = None  # folders of fitted methods to answer by, separated as those of $PATH
    ray: str | None = None  # the address of a Ray cluster that workers and searches for plans run on

    def __post_init__(self) -> None:
        check_count("workers", self.workers, InputError)
        check_count("waiting", self.waiting, InputError)
        check_count("job_runners", self.job_runners, InputError, least=0)
        check_number("seconds", self.seconds, "seconds from 0.1 to 3600", InputError, least=0.1, most=3600)
        check_number("lease", self.lease, "seconds from 0.5 to 3600", InputError, least=0.5, most=3600)
        check_number("rate", self.rate, "requests per second from 0.01 to 1e6", InputError, least=0.01, most=1e6)
        for quota in ("team_jobs", "team_graphs", "team_devices"):
            check_count(quota, getattr(self, quota), InputError)
        check_number("team_seconds", self.team_seconds, "seconds from 1 to 1e9", InputError, least=1, most=1e9)
        check_number("port", self.port, "a port from 0 to 65535", InputError, most=65535)

    @property
    def is_loopback(self) -> bool:
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


PREFIX: Final = "FORETELL_SERVE_"
DATABASE: Final = "FORETELL_DATABASE"  # named apart: it has a password, and every command that opens it reads it


def gathered(given: Mapping[str, Any], environment: Mapping[str, str], file: Path | None) -> Settings:
    """Of what was given, then the environment, then the file; None is not given."""
    named = {PREFIX + field.name.upper(): field.name for field in fields(Settings)} | {DATABASE: "database"}
    unknown = [name for name in environment if name.startswith(PREFIX) and name not in named]
    if unknown:
        raise InputError(f"${unknown[0]} is no setting. {did_you_mean(unknown[0], named)}Allowed: {', '.join(named)}.")
    found = {} if file is None else _read(file)
    found |= {
        named[name]: _parsed(name, named[name], text) for name, text in environment.items() if name in named and text
    }
    return Settings(**found | {name: value for name, value in given.items() if value is not None})


def _read(file: Path) -> dict[str, Any]:
    try:
        found = read_toml(file)
    except (OSError, ValueError) as error:
        raise InputError(f"{file} has no settings: {error}. Write a TOML file like deploy/foretell.toml.") from None
    kinds = _kinds()
    for name, value in found.items():
        if name not in kinds:
            raise InputError(f"{file}: no setting {name!r}. {did_you_mean(name, kinds)}Allowed: {', '.join(kinds)}.")
        if type(value) is not kinds[name] and not (kinds[name] is float and type(value) is int):
            raise InputError(f"{file}: {name} is a {_WORDS[kinds[name]]}, got {value!r}.")
    return found


_WORDS: Final = {str: "text", int: "whole number", float: "number"}


def _kinds() -> dict[str, type]:
    """What each setting is: text or a number."""
    hints = get_type_hints(Settings)
    return {f.name: next((k for k in (str, int) if hints[f.name] in (k, k | None)), float) for f in fields(Settings)}


def _parsed(variable: str, name: str, text: str) -> Any:
    kind = _kinds()[name]
    try:
        return kind(text)
    except ValueError:
        raise InputError(f"${variable} is a {_WORDS[kind]}, got {text!r}.") from None
