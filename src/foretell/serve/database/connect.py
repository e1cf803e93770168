"""Opening the database: its tables are brought to this version first, and transactions that write take their turn."""

from __future__ import annotations

import sqlite3
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, Engine, Insert, Select, create_engine, event, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, OperationalError
from sqlalchemy.exc import TimeoutError as NoConnectionLeft
from sqlalchemy.orm import Session

from foretell.errors import InputError
from foretell.folders import service_folder

_MIGRATIONS: Final = Path(__file__).parent / "migrations"
_WRITES: Final = "foretell_writes"
_PATIENCE: Final = 10.0  # seconds that a writer of SQLite waits for another
# A server that says nothing at all, as its machine is gone, would be waited for by every thread, for minutes and hours.
_SILENT: Final[dict[str, int]] = {
    "connect_timeout": 10, "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": 30_000,
}  # fmt: skip
_MIGRATING: Final = 0x666F7265  # PostgreSQL's advisory lock: two processes that start together migrate once
_DRIVERS: Final = {"postgresql": "postgresql+psycopg", "postgres": "postgresql+psycopg", "sqlite": "sqlite"}


class Database:
    """The tables behind one URL."""

    def __init__(self, url: str | None = None) -> None:
        self.engine = _open(url or _embedded())
        self._writer = self.engine.execution_options(**{_WRITES: True})
        self._writes = threading.Lock()
        try:
            self._migrate()
        except DBAPIError as error:
            raise InputError(
                f"the database {self.engine.url.render_as_string()} cannot be used: {error.orig}. "
                "Check the URL, and that its server runs."
            ) from None

    @contextmanager
    def reading(self) -> Iterator[Session]:
        with Session(self.engine, expire_on_commit=False) as session:
            yield session

    @contextmanager
    def writing(self) -> Iterator[Session]:
        """Kept when the block ends, and not at all when it raises."""
        with self._turn(), Session(self._writer, expire_on_commit=False) as session, session.begin():
            yield session

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """One thread writes to SQLite at a time: those who wait in there sleep, and whoever comes just then is first."""
        took = self.is_embedded and self._writes.acquire(timeout=_PATIENCE)
        try:
            yield
        finally:
            if took:
                self._writes.release()

    def read(self, statement: Select[Any], **values: object) -> Any:
        """The first row of a statement that was made before, or None: the quick way, without objects."""
        with self.engine.connect() as connection:
            return connection.execute(statement, values).first()

    def add(self, insert: Insert, row: Mapping[str, object]) -> None:
        """Keep one row by a statement that was made before, the quick way."""
        with self._turn(), self._writer.begin() as connection:
            connection.execute(insert, row)

    @contextmanager
    def snapshot(self) -> Iterator[Session]:
        """Reads all it reads as of one moment."""
        engine = self.engine if self.is_embedded else self.engine.execution_options(isolation_level="REPEATABLE READ")
        with Session(engine) as session:
            yield session

    def close(self) -> None:
        self.engine.dispose()

    @property
    def is_embedded(self) -> bool:
        return self.engine.dialect.name == "sqlite"

    def _migrate(self) -> None:
        with self._writer.begin() as connection:
            if not self.is_embedded:
                connection.execute(text(f"SELECT pg_advisory_xact_lock({_MIGRATING})"))
            command.upgrade(migrations(connection), "head")


def migrations(connection: Connection) -> Config:
    """What Alembic needs to know; it works on this connection, in its transaction."""
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def is_away(error: BaseException) -> bool:
    """Whether the database cannot be had for a while, rather than that it was asked something wrong."""
    if isinstance(error, OperationalError):  # SQLite says so of wrong statements, too
        return getattr(error.orig, "sqlite_errorcode", None) != sqlite3.SQLITE_ERROR
    if isinstance(error, DBAPIError):
        return error.connection_invalidated
    return isinstance(error, NoConnectionLeft)


def new_id() -> str:
    return uuid.uuid4().hex


def now() -> float:
    return time.time()


def _embedded() -> str:
    folder = service_folder()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return f"sqlite:///{folder / 'service.sqlite'}"


def _open(url: str) -> Engine:
    try:
        parsed = make_url(url)
        driver = _DRIVERS.get(parsed.drivername)
        if driver is None:
            raise ArgumentError(f"{parsed.drivername!r} is not supported")
        if driver == "sqlite":
            return _open_sqlite(url)
        ours = {name: value for name, value in _SILENT.items() if name not in parsed.query}
        parsed = parsed.set(drivername=driver)
        return create_engine(parsed, connect_args=ours, pool_size=20, max_overflow=20, pool_pre_ping=True)
    except (ArgumentError, NoSuchModuleError, ModuleNotFoundError) as error:
        raise InputError(
            f"no database can be opened: {error}. Write its URL like postgresql://user@host/name (pip install psycopg) "
            "or sqlite:///file.sqlite."
        ) from None


def _open_sqlite(url: str) -> Engine:
    # Answers are read by many threads while one writes; a busy database is waited for.
    engine = create_engine(url, connect_args={"timeout": _PATIENCE}, pool_size=20, max_overflow=40)

    @event.listens_for(engine, "connect")
    def _connected(connection: Any, _: Any) -> None:
        connection.isolation_level = None  # transactions are ours: the driver begins none by itself
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def _begun(connection: Connection) -> None:
        # One that reads first and then writes would be refused once another has written in between.
        writes = connection.get_execution_options().get(_WRITES, False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine
