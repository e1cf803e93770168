"""A store in one record file, for machines on which nothing can be installed: what a campaign asks of one, no more."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from foretell.errors import InputError, StoreError
from foretell.measure.record import Record, StepRow
from foretell.store.record_file import RecordFile
from foretell.store.store import FINAL

_OF_A_POINT: Final = re.compile(r"point = '(\w+)'")


class FileStore:
    """Records in a file that only grows; `foretell store import` takes it into a store that answers questions."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.file = RecordFile(path)
        self._steps: list[StepRow] = []  # of the lines read so far
        self._offset = 0

    @property
    def path(self) -> Path:
        return self.file.path

    def append(self, records: Iterable[Record]) -> int:
        count = 0
        try:
            for record in records:
                self.file.append(record)
                count += 1
        except InputError as error:
            raise StoreError(str(error)) from error
        return count

    def done(self, device: str | None = None) -> frozenset[str]:
        """The keys of all points with a final outcome, on a device (by its name in the catalogue or its driver's)."""
        return frozenset(
            step.point for step in self.steps()
            if step.outcome in FINAL and device in (None, step.device, step.device_name)
        )  # fmt: skip

    def steps(self, where: str | None = None) -> Iterator[StepRow]:
        """All steps, or with `point = 'KEY'` those of a point; a file answers no other question."""
        wanted = None
        if where is not None:
            if (asked := _OF_A_POINT.fullmatch(where)) is None:
                raise StoreError(
                    f"the record file {self.path} cannot answer {where!r}, only point = 'KEY'. "
                    f"Ask a store: foretell store import {self.path}"
                )
            wanted = asked[1]
        self._read_on()
        return (step for step in self._steps if wanted in (None, step.point))

    def _read_on(self) -> None:
        """Lines that came since; one that is not whole, or not a record, is left out."""
        try:
            with open(self.path, "rb") as file:
                file.seek(self._offset)
                for line in file:
                    if not line.endswith(b"\n"):
                        break  # being written, or all that a killed writer left
                    self._offset += len(line)
                    with contextlib.suppress(InputError, UnicodeDecodeError):
                        self._steps.append(Record.from_line(line.decode()).step)
        except FileNotFoundError:
            return
        except OSError as error:
            raise StoreError(
                f"the record file {self.path} cannot be read: {error.strerror}. Choose another file."
            ) from error

    @contextmanager
    def claim(self, name: str) -> Iterator[bool]:
        """True for one process at a time; dies with it. Claims lie beside the file and leave nothing behind."""
        folder = self.path.with_name(f"{self.path.name}.claims")
        place = folder / hashlib.sha256(name.encode()).hexdigest()[:20]
        try:
            descriptor = _locked(place)
        except OSError as error:
            raise StoreError(f"cannot write beside {self.path}: {error.strerror}. Choose another file.") from error
        if descriptor is None:
            yield False
            return
        try:
            yield True
        finally:
            with contextlib.suppress(OSError):  # the folder goes with the last claim in it
                place.unlink()
                folder.rmdir()
            os.close(descriptor)


def _locked(place: Path) -> int | None:
    """The descriptor of a file locked by us; None while another process has it."""
    while True:
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(place, os.O_CREAT | os.O_RDWR, 0o644)
        except FileNotFoundError:
            continue  # the last claim took the folder away meanwhile
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.stat(place), os.fstat(descriptor)):
                return descriptor
        os.close(descriptor)  # removed between opening and locking: what we hold keeps nobody out
