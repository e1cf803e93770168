"""How a service is set up."""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass, field

from foretell.errors import InputError, check_count, check_number
from foretell.units import Seconds


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

    def __post_init__(self) -> None:
        check_count("workers", self.workers, InputError)
        check_count("waiting", self.waiting, InputError)
        check_count("job_runners", self.job_runners, InputError, least=0)
        check_number("seconds", self.seconds, "seconds from 0.1 to 3600", InputError, least=0.1, most=3600)
        check_number("rate", self.rate, "requests per second from 0.01 to 1e6", InputError, least=0.01, most=1e6)
        check_number("port", self.port, "a port from 0 to 65535", InputError, most=65535)

    @property
    def is_loopback(self) -> bool:
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False
