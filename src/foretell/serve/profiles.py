"""Profiles that questions can name: a team's own, which the service fitted, then those in the folders of whoever runs it."""

from __future__ import annotations

import functools
import hashlib
import tempfile
from pathlib import Path
from typing import Any

from sqlalchemy import select

from foretell.errors import ProfileError, did_you_mean
from foretell.profile import ARRAYS, SUFFIX, Profile, profile_files
from foretell.report.profiles import profile_dict
from foretell.serve.database.connect import Database
from foretell.serve.database.tables import StoredProfile


class Profiles:
    """Those of the database are laid out as files when they are first asked for."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def path(self, team: str, name: str | None) -> Path | None:
        """The file of the profile that this team means by a name."""
        if name is None:
            return None
        with self._database.reading() as session:
            found = session.get(StoredProfile, (team, name))
        if found is not None:
            return _laid_out(found)
        known = profile_files()
        if name not in known:
            have = sorted({*known, *self.own(team)})
            raise ProfileError(
                f"no profile {name!r} on this service. {did_you_mean(name, have)}It has: {', '.join(have) or 'none'}."
            )
        return known[name]

    def own(self, team: str) -> dict[str, StoredProfile]:
        with self._database.reading() as session:
            rows = session.scalars(select(StoredProfile).filter_by(team_id=team).order_by(StoredProfile.name))
            return {row.name: row for row in rows}

    def listed(self, team: str) -> list[dict[str, Any]]:
        files = profile_files() | {name: _laid_out(row) for name, row in self.own(team).items()}
        return [profile_dict(Profile.load(path)) | {"name": name} for name, path in files.items()]


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="foretell-profiles-")


def _laid_out(row: StoredProfile) -> Path:
    """Under a name of its content's own; a residual model lies beside it under the name that the file says."""
    content = hashlib.sha256(row.text.encode() + (row.arrays or b"")).hexdigest()
    place = Path(_folder().name) / content
    path = place / f"{row.name}{SUFFIX}"
    if not path.is_file():
        place.mkdir(exist_ok=True)
        if row.arrays is not None:
            path.with_suffix(ARRAYS).write_bytes(row.arrays)
        path.write_text(row.text, encoding="utf-8")
    return path
