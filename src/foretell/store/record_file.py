"""Records in a plain file, one line of JSON each: what a machine without pyarrow writes, and what `store import` reads."""

from __future__ import annotations

import fcntl
import gzip
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from foretell.errors import InputError
from foretell.measure.record import Record


class RecordFile:
    """A file that only grows. A killed writer loses at most the line it was writing."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def append(self, record: Record) -> None:
        """Returns once the record is on the disk."""
        line = record.to_line().encode() + b"\n"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "a+b", buffering=0) as file:
                fcntl.flock(file, fcntl.LOCK_EX)  # a long line is more than one write
                end = file.seek(0, os.SEEK_END)
                if end and os.pread(file.fileno(), 1, end - 1) != b"\n":
                    line = b"\n" + line  # another writer died in its line: ours stays whole
                _write(file.fileno(), line, end)
                os.fsync(file.fileno())
        except OSError as error:
            raise InputError(
                f"the record cannot be written to {self.path}: {error.strerror}. "
                "What was written before is whole; make room or choose another file."
            ) from error

    def records(self, broken: Callable[[int, str], None] | None = None) -> Iterator[Record]:
        """All whole records; `broken` is told the number of each line that is not one, and why."""
        number = 0
        try:
            with gzip.open(self.path) if self.path.suffix == ".gz" else open(self.path, "rb") as file:
                for number, line in enumerate(file, start=1):
                    if not line.strip():
                        continue
                    try:
                        yield Record.from_line(line.decode())
                    except Exception as error:  # whatever a stranger's line breaks, the line is to blame
                        if broken is not None:
                            broken(number, str(error))
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            if broken is not None:
                broken(number + 1, f"the file is cut short or damaged here ({error})")
        except OSError as error:
            raise InputError(
                f"the record file {self.path} cannot be read: {error.strerror}. Check the path."
            ) from error


def _write(file: int, data: bytes, end: int) -> None:
    """All of it or nothing: half a line after an error would be one more thing to skip."""
    try:
        while data:
            data = data[os.write(file, data) :]
    except OSError:
        os.ftruncate(file, end)
        raise
