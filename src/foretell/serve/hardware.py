"""Devices of a team's own, kept in the database; nobody else can name them."""

from __future__ import annotations

import threading
import time
from typing import Final

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError

from foretell.errors import did_you_mean
from foretell.hardware import Device, read_device
from foretell.serve.database.connect import Database, now
from foretell.serve.database.tables import StoredDevice
from foretell.serve.problems import Problem
from foretell.units import Seconds

_FRESH: Final[Seconds] = 5.0  # until what another process of the service has added is looked for


class TeamHardware:
    """What is found is believed for a moment, so that a question at hand asks no database."""

    def __init__(self, database: Database, most: int) -> None:
        self._database, self._most = database, most
        self._known: dict[str, tuple[float, dict[str, str]]] = {}
        self._lock = threading.Lock()

    def known(self, team: str) -> dict[str, str] | None:
        """By name, the TOML of each; None where the database has to be asked."""
        at, found = self._known.get(team, (0.0, None))
        return found if found is not None and time.monotonic() - at < _FRESH else None

    def of(self, team: str) -> dict[str, str]:
        if (known := self.known(team)) is not None:
            return known
        with self._database.reading() as session:
            rows = session.scalars(select(StoredDevice).filter_by(team_id=team).order_by(StoredDevice.name))
            found = {row.name: row.text for row in rows}
        with self._lock:
            self._known[team] = time.monotonic(), found
        return found

    def add(self, team: str, name: str, text: str) -> Device:
        """Read by the catalog's one parser before it is kept."""
        made = read_device(name, text)
        self._forget(team)
        if (kept := len(self.of(team))) >= self._most:
            raise Problem(
                409, f"{kept:,} devices of your team are kept.", allowed=f"{self._most:,}",
                next="Remove one, or ask whoever runs the service for more (team_devices among its settings).",
            )  # fmt: skip
        try:
            with self._database.writing() as session:
                session.add(StoredDevice(team_id=team, name=name, text=text, created=now()))
        except IntegrityError:  # the same name came twice at once
            raise Problem(409, f"your team has {name!r} already.", next="Choose another name.") from None
        self._forget(team)
        return made

    def remove(self, team: str, name: str) -> None:
        self._forget(team)
        with self._database.writing() as session:
            found = session.get(StoredDevice, (team, name))
            if found is None:
                raise Problem(
                    404, f"your team has no device {name!r} of its own.", got=name,
                    next=f"{did_you_mean(name, self.of(team))}GET /v1/devices lists all.",
                )  # fmt: skip
            session.delete(found)
        self._forget(team)

    def _forget(self, team: str) -> None:
        with self._lock:
            self._known.pop(team, None)
