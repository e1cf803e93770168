"""Who asked for what, written in the background: a request waits for no disk, and one that is lost is counted."""

from __future__ import annotations

import logging
import queue
import threading
from typing import Final

from sqlalchemy import insert

from foretell.serve.access.keys import Caller
from foretell.serve.database.connect import Database, is_away, now
from foretell.serve.database.tables import Audit
from foretell.units import Seconds

_EVERY: Final[Seconds] = 0.5
_MAX_WAITING_ROWS: Final = 50_000  # rows that wait
_log = logging.getLogger(__name__)


class AuditLog:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._rows: queue.Queue[dict[str, object]] = queue.Queue(_MAX_WAITING_ROWS)
        self._end, self._writing = threading.Event(), threading.Lock()
        self.dropped = 0
        self._thread = threading.Thread(target=self._write, name="foretell-audit", daemon=True)
        self._thread.start()

    def add(self, caller: Caller | None, address: str, what: str, status: int) -> None:
        row = {"at": now(), "address": address[:200], "what": what[:300], "status": status}
        row |= {"team_id": caller.team if caller else None, "key_id": caller.key if caller else None}
        self._put(row)

    def _put(self, row: dict[str, object]) -> None:
        try:
            self._rows.put_nowait(row)
        except queue.Full:
            self.dropped += 1

    def close(self) -> None:
        """Write what is left."""
        self._end.set()
        self._thread.join(30)

    def _write(self) -> None:
        while not self._end.wait(_EVERY):
            self.flush()
        self.flush()

    def flush(self) -> None:
        """Write what waits; once this returns it is written, by whichever thread."""
        with self._writing:
            rows = []
            while not self._rows.empty():
                rows.append(self._rows.get_nowait())
            if not rows:
                return
            try:
                with self._database.writing() as session:
                    session.connection().execute(insert(Audit), rows)  # no objects are made of them
            except Exception as error:  # nothing may end the thread that writes
                if is_away(error) and not self._end.is_set():
                    self._put_back(rows)
                    return
                self.dropped += len(rows)
                _log.error("%d rows of the audit log are lost: %s", len(rows), error)

    def _put_back(self, rows: list[dict[str, object]]) -> None:
        """To be written once the database is there again."""
        for row in rows:
            self._put(row)
