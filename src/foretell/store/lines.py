"""Records as lines of JSON: what a machine without pyarrow writes, a campaign can go on from, and `store import` reads."""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import hashlib
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from foretell.errors import InputError, StoreError
from foretell.measure.record import FINAL, Record, StepRow
from foretell.store.segments import open_plain
from foretell.units import MIB

_LONGEST: Final = 256 * MIB  # of a line
_OF_A_POINT: Final = re.compile(r"point = '(\w+)'")


class RecordFile:
    """A file of records that only grows. A killed writer loses at most the line it was writing.

    Args:
        path: A file that ends in `.jsonl`.

    Raises:
        InputError: A record cannot be written.

    Examples:
        >>> foretell.RecordFile("records.jsonl").append([])
        0
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._steps: list[StepRow] = []  # of the lines read so far
        self._offset = 0

    def append(self, records: Iterable[Record]) -> int:
        """How many were written; each is on the disk before the next is asked for."""
        count = 0
        for record in records:
            try:
                self._append(record.to_line().encode() + b"\n")
            except OSError as error:
                raise StoreError(
                    f"the record cannot be written to {self.path}: {error.strerror}. "
                    "What was written before is whole; make room or choose another file."
                ) from error
            count += 1
        return count

    def _append(self, line: bytes) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "a+b", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # a long line is more than one write
            end = file.seek(0, os.SEEK_END)
            if end and os.pread(file.fileno(), 1, end - 1) != b"\n":
                line = b"\n" + line  # another writer died in its line: ours stays whole
            try:
                while line:
                    line = line[os.write(file.fileno(), line) :]
            except OSError:
                os.ftruncate(file.fileno(), end)  # half a line would be one more thing to skip
                raise
            os.fsync(file.fileno())

    def records(
        self, broken: Callable[[int, str], None] = lambda number, reason: None, *, graphs: bool = False
    ) -> Iterator[Record]:
        """All whole records; `broken` gets the number of each line that is not one, and why.

        With `graphs`, also those whose graph is not what its hash says are left out.
        """
        number = 0
        try:
            with open_plain(self.path, os.O_RDONLY) as raw:
                file = gzip.GzipFile(fileobj=raw) if self.path.suffix == ".gz" else raw
                while line := file.readline(_LONGEST + 1):
                    number += 1
                    if len(line) > _LONGEST:
                        broken(number, f"it is longer than {_LONGEST // MIB} MiB; this and what follows is not read")
                        return
                    try:
                        if line.strip():
                            record = Record.from_line(line.decode())
                            if graphs:
                                record.check_graph()
                            yield record
                    except (InputError, UnicodeDecodeError) as error:
                        broken(number, str(error))
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            broken(number + 1, f"the file is cut short or damaged here ({error})")
        except OSError as error:
            raise _unreadable(self.path, error) from error

    def done(self, device: str | None = None) -> frozenset[str]:
        """The keys of all points with a final outcome, on a device (by its name in the catalog or its driver's)."""
        return frozenset(
            step.point
            for step in self.steps()
            if step.outcome in FINAL and device in (None, step.device, step.device_name)
        )

    def steps(self, where: str | None = None) -> Iterator[StepRow]:
        """All steps, or with `point = 'KEY'` those of a point; a file answers no other question."""
        wanted = None
        if where is not None:
            if (point := _OF_A_POINT.fullmatch(where)) is None:
                raise StoreError(
                    f"the record file {self.path} cannot answer {where!r}, only point = 'KEY'. "
                    f"Ask a store: foretell store import {self.path}"
                )
            wanted = point[1]
        self._read_on()
        return (step for step in self._steps if wanted in (None, step.point))

    def _read_on(self) -> None:
        """Lines that came since; one that is not whole, or not a record, is left out."""
        try:
            with open_plain(self.path, os.O_RDONLY) as file:
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
            raise _unreadable(self.path, error) from error

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


def _unreadable(path: Path, error: OSError) -> StoreError:
    return StoreError(f"the record file {path} cannot be read: {error.strerror}. Check the path.")


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
        os.close(descriptor)  # removed between opening and locking: this lock keeps nobody out
