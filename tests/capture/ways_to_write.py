"""Ways by which a script may change what is on a machine: each is given a folder with a file and a folder in it."""

from __future__ import annotations

import ctypes
import dbm.dumb
import gzip
import io
import logging
import mmap
import os
import pathlib
import shutil
import sqlite3
import subprocess
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

FILE, FOLDER, NEW = "file.txt", "folder", "new"
TEXT = b"as it was, and as it stays\n" * 200


def prepared(folder: Path) -> None:
    (folder / FOLDER).mkdir(parents=True)
    (folder / FILE).write_bytes(TEXT)


def _descriptor(folder: Path, flags: int) -> None:
    number = os.open(folder / FILE, flags)
    os.write(number, b"changed")
    os.close(number)


def _shortened(folder: Path) -> None:
    with open(folder / FILE, "r+b") as file:
        os.ftruncate(file.fileno(), 3)


def _mapped(folder: Path) -> None:
    with open(folder / FILE, "r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        memory[:7] = b"changed"


def _database(folder: Path) -> None:
    with sqlite3.connect(folder / NEW) as base:
        base.execute("create table t (x)")
    base.close()


def _zipped(folder: Path) -> None:
    with zipfile.ZipFile(folder / NEW, "w") as file:
        file.writestr("a", "b")


def _archived(folder: Path) -> None:
    with tarfile.open(folder / NEW, "w") as file:
        file.add(folder / FILE)


def _opened(folder: Path, mode: str, opener: Callable[..., Any] = open) -> None:
    with opener(folder / (FILE if mode != "xb" else NEW), mode) as file:
        file.write(b"changed")


def _native(folder: Path) -> None:
    libc = ctypes.CDLL(None)
    number = libc.open(os.fsencode(folder / FILE), os.O_WRONLY | os.O_TRUNC)
    libc.close(number)


def _logged(folder: Path) -> None:
    handler = logging.FileHandler(folder / NEW)
    handler.emit(logging.LogRecord("a", 20, "b", 1, "c", None, None))
    handler.close()


def _table(folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet

    pyarrow.parquet.write_table(pa.table({"x": [1]}), folder / NEW)


def _jit(folder: Path) -> None:
    torch.jit.save(torch.jit.script(torch.nn.ReLU()), str(folder / NEW))


def _forked(folder: Path) -> None:
    if not (child := os.fork()):
        (folder / FILE).write_text("changed")
        os._exit(0)
    os.waitpid(child, 0)


def _shell(line: str) -> Callable[[Path], object]:
    return lambda folder: subprocess.run(line, shell=True, cwd=folder, check=True, stderr=subprocess.DEVNULL)


WAYS: dict[str, Callable[[Path], object]] = {
    "open w": lambda f: _opened(f, "wb"),
    "open a": lambda f: _opened(f, "ab"),
    "open r+": lambda f: _opened(f, "r+b"),
    "open x": lambda f: _opened(f, "xb"),
    "io.open": lambda f: _opened(f, "wb", io.open),
    "io.FileIO": lambda f: io.FileIO(f / FILE, "w").close(),
    "os.open": lambda f: _descriptor(f, os.O_WRONLY),
    "os.open, append": lambda f: _descriptor(f, os.O_WRONLY | os.O_APPEND),
    "os.truncate": lambda f: os.truncate(f / FILE, 3),
    "os.ftruncate": _shortened,
    "mmap": _mapped,
    "write_text": lambda f: (f / FILE).write_text("changed"),
    "touch": lambda f: (f / NEW).touch(),
    "unlink": lambda f: (f / FILE).unlink(),
    "os.rename": lambda f: os.rename(f / FILE, f / NEW),
    "os.replace": lambda f: os.replace(f / FILE, f / NEW),
    "os.mkdir": lambda f: os.mkdir(f / NEW),
    "os.rmdir": lambda f: os.rmdir(f / FOLDER),
    "os.symlink": lambda f: os.symlink("a", f / NEW),
    "os.link": lambda f: os.link(f / FILE, f / NEW),
    "os.mkfifo": lambda f: os.mkfifo(f / NEW),
    "shutil.copy": lambda f: shutil.copy(f / FILE, f / NEW),
    "shutil.move": lambda f: shutil.move(f / FILE, f / FOLDER),
    "shutil.rmtree": lambda f: shutil.rmtree(f / FOLDER),
    "copytree": lambda f: shutil.copytree(f / FOLDER, f / NEW),
    "sqlite3": _database,
    "dbm": lambda f: dbm.dumb.open(str(f / NEW), "n").close(),
    "zipfile": _zipped,
    "tarfile": _archived,
    "gzip": lambda f: gzip.open(f / NEW, "wb").close(),
    "tempfile": lambda f: tempfile.mkstemp(dir=f),
    "logging": _logged,
    "numpy.save": lambda f: np.save(f / NEW, np.ones(2)),
    "numpy.memmap": lambda f: np.memmap(f / FILE, np.uint8, "r+").__setitem__(slice(0, 7), 0),
    "torch.save": lambda f: torch.save({}, f / NEW),
    "torch.jit.save": _jit,
    "pyarrow": _table,
    "libc": _native,
    "fork": _forked,
    "a shell's >": _shell(f"echo changed > {FILE}"),
    "rm": _shell(f"rm {FILE}"),
    "mv": _shell(f"mv {FILE} {NEW}"),
    "dd": _shell(f"dd if=/dev/zero of={NEW} count=1"),
    "os.system": lambda f: os.system(f"cd {f} && truncate -s 3 {FILE}"),
}
ABOUT_FILES: dict[str, Callable[[Path], object]] = {
    "os.chmod": lambda f: os.chmod(f / FILE, 0o600),
    "os.utime": lambda f: os.utime(f / FILE, (1, 1)),
    "chmod": _shell(f"chmod 600 {FILE}"),
    "Path.chmod": lambda f: pathlib.Path(f / FOLDER).chmod(0o700),
}


def state(folder: Path, *, about: bool) -> dict[str, object]:
    """What is in it: kinds, links and contents; with `about`, rights and times too."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        known = path.lstat()
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        found[str(path.relative_to(folder))] = (
            (known.st_mode if about else known.st_mode & 0o170000), (known.st_mtime_ns if about else 0), content,
        )  # fmt: skip
    return found
