"""Callers and their keys. A key is shown once, when it is made; the database has its hash."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import threading
from dataclasses import dataclass
from typing import Any, Final, get_args

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from foretell.errors import InputError, check_choice
from foretell.serve.database.connect import Database, new_id, now
from foretell.serve.database.tables import Key, Role, Team

LOCAL: Final = "local"  # the team of whoever asks on loopback where no keys were made
_WRITTEN: Final = re.compile(r"ftl_([0-9a-f]{16})_([A-Za-z0-9_-]{20,100})")
_ROLES: Final = get_args(Role)  # each may do what those before it may
_FRESH: Final = 5.0  # seconds that a key is believed without asking the database, so how late a revocation can be
_MAX_KNOWN_KEYS: Final = 10_000
_LONGEST: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who asks: a key of a team, or the person at this machine."""

    team: str
    key: str
    role: Role
    team_name: str = LOCAL

    @property
    def signed_in(self) -> bool:
        return self.key != LOCAL

    def may(self, role: Role) -> bool:
        return _ROLES.index(self.role) >= _ROLES.index(role)


def team_of(session: Session, name: str) -> Team:
    """By its name; made where there is none."""
    if not 0 < len(name) <= _LONGEST or not name.isprintable():
        raise InputError(f"a team's name has 1 to {_LONGEST} printable characters, got {name!r}.")
    team = session.scalar(select(Team).where(Team.name == name))
    if team is None:
        session.add(team := Team(id=new_id(), name=name, created=now()))
        session.flush()
    return team


def make_key(database: Database, team: str, role: str, label: str = "") -> str:
    """The secret of a new key. It cannot be had a second time."""
    check_choice("role", role, _ROLES, InputError)
    name, secret = secrets.token_hex(8), secrets.token_urlsafe(32)
    with database.writing() as session:
        owner = team_of(session, team)
        key = Key(id=name, team_id=owner.id, role=role, label=label[:_LONGEST], hash=_hash(secret), created=now())
        session.add(key)
    return f"ftl_{name}_{secret}"


def revoke_key(database: Database, name: str) -> None:
    with database.writing() as session:
        key = session.get(Key, name)
        if key is None or key.revoked is not None:
            raise InputError(f"there is no key {name!r} in use. List them: foretell serve keys")
        key.revoked = now()


def list_keys(database: Database) -> list[dict[str, Any]]:
    with database.reading() as session:
        rows = session.execute(select(Key, Team.name).join(Team, Key.team_id == Team.id).order_by(Key.created))
        return [
            {"key": key.id, "team": team, "role": key.role, "label": key.label, "revoked": key.revoked is not None}
            for key, team in rows
        ]


def has_keys(database: Database) -> bool:
    """Whether any was ever made: a service whose last key was revoked is closed to all, not open to all."""
    with database.reading() as session:
        return bool(session.scalar(select(func.count()).select_from(Key)))


def local_caller(database: Database) -> Caller:
    with database.writing() as session:
        return Caller(team=team_of(session, LOCAL).id, key=LOCAL, role="admin")


class Keyring:
    """Finds the caller of a key; what it found is believed for a moment."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known: dict[str, tuple[float, Caller]] = {}
        self._lock = threading.Lock()

    def known(self, written: str) -> Caller | None:
        """Without asking the database."""
        found = self._known.get(_hash(written))
        return found[1] if found is not None and now() - found[0] < _FRESH else None

    def find(self, written: str) -> Caller | None:
        if (read := _WRITTEN.fullmatch(written)) is None:
            return None
        name, secret = read.groups()
        with self._database.reading() as session:
            key = session.get(Key, name)
            team = None if key is None else session.get(Team, key.team_id)
        if key is None or team is None or not hmac.compare_digest(key.hash, _hash(secret)) or key.revoked is not None:
            return None
        caller = Caller(team=team.id, key=key.id, role=key.role, team_name=team.name)  # type: ignore[arg-type]
        with self._lock:
            if len(self._known) >= _MAX_KNOWN_KEYS:
                self._known.clear()
            self._known[_hash(written)] = (now(), caller)
        return caller


def _hash(secret: str) -> str:
    """Secrets are 256 random bits, so a plain hash cannot be searched."""
    return hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()
