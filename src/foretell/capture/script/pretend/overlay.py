"""What a script writes lies in a folder of its own, where it finds it again; what is on this machine stays as it is.

Native code that writes files by itself is led there where it is known: databases, pictures, sounds, arrays.
"""

from __future__ import annotations

import builtins
import bz2
import contextlib
import functools
import inspect
import io
import os
import pathlib
import shutil
import sqlite3
import tarfile
from collections.abc import Callable, Iterator
from typing import Any, Final
from weakref import WeakKeyDictionary

import torch

from foretell.capture.script.imports import once_imported
from foretell.units import MIB, Bytes

_WRITING: Final = frozenset("wax+")
_FLAGS: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_LARGEST_COPY: Final[Bytes] = 64 * MIB
# Functions of native code that write: the module, the function, and where the path is.
_NATIVE: Final = (
    ("cv2", "imwrite", 0), ("soundfile", "write", 0), ("torchaudio", "save", 0), ("scipy.io.wavfile", "write", 0),
    ("pyarrow.parquet", "write_table", 1), ("pyarrow.feather", "write_feather", 1), ("lmdb", "open", 0),
    ("lmdb", "Environment", 0), ("h5py", "File", 0), ("cv2", "VideoWriter", 0), ("imageio", "imwrite", 0),
)  # fmt: skip


_started: list[Overlay] = []


def start(scratch: str) -> None:
    """From now on, what is written lies in that folder."""
    _started.append(Overlay(scratch))
    _started[-1].apply()


def has(path: Any) -> bool:
    """Whether the script has made a file or folder itself."""
    return bool(_started) and _started[-1].has(path)


def is_there(path: Any) -> bool:
    """Whether a file or folder is really there, whatever a stand-in says of it."""
    return not _started or _started[-1].has(path) or _started[-1].exists(os.fsdecode(path))


def is_ours(path: Any) -> bool:
    """Whether a path lies where what is written lies: only what was written is there."""
    return bool(_started) and os.path.abspath(os.fsdecode(path)).startswith(_started[-1].scratch)


def found(path: Any) -> Any:
    """The path to read for one of the script's: its own, or where it has written it."""
    return _started[-1].found(path) if _started else path


def made(path: Any) -> Any:
    """The path to write for one of the script's."""
    return _started[-1].made(path) if _started else path


def use_in_archives(opened: Callable[..., Any]) -> None:
    """Modules of Python's own that have taken `open` over by name."""
    vars(tarfile)["bltn_open"] = opened
    vars(bz2)["_builtin_open"] = opened


class Overlay:
    """Paths that a script makes, as paths in a folder of our own."""

    def __init__(self, scratch: str) -> None:
        self.scratch = scratch
        self.exists: Callable[[str], bool] = _lexists(os.lstat)
        self._stat, self._makedirs, self._list, self._rename = os.stat, os.makedirs, os.listdir, os.rename
        self._open: Callable[..., Any] = builtins.open
        self._saved: dict[str, Any] = {}  # by torch, at a path
        self._buffers: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()  # and into what is open

    def there(self, path: Any) -> str | None:
        """Where a path of the script's own making lies; None for what is no path, or is free to be written."""
        try:
            if not (text := os.fsdecode(path)):  # no file, and not the current folder either
                return None
            text = os.path.abspath(text)
        except (TypeError, ValueError):
            return None
        if text.startswith((self.scratch, "/dev/", "/proc/")):
            return None
        return os.path.join(self.scratch, "made", text.lstrip(os.sep).replace(":", "_"))

    def has(self, path: Any) -> bool:
        """Whether the script has made it."""
        other = self.there(path)
        return other is not None and self.exists(other)

    def found(self, path: Any) -> Any:
        """The path that is to be read."""
        other = self.there(path)
        return other if other is not None and self.exists(other) else path

    def made(self, path: Any) -> Any:
        """The path that is to be written, in a folder that is there."""
        other = self.there(path)
        if other is None:
            return path
        self._makedirs(os.path.dirname(other), exist_ok=True)
        return other

    def apply(self) -> None:
        self._redirect_open()
        for name in ("stat", "lstat", "statvfs", "access", "truncate", "chdir"):
            self._look(os, name)
        os.listdir = self._listed(os.listdir)
        self._merge_scans()
        for name in ("mkdir", "makedirs"):
            self._make(name)
        for name in ("remove", "unlink", "rmdir", "chmod", "utime", "chown", "lchown"):
            self._change(os, name, "path")
        for name in ("rename", "replace", "symlink", "link"):
            self._change(os, name, "src", "dst")
        self._change(shutil, "rmtree", "path")
        for name in ("copy", "copyfile", "copy2"):
            setattr(shutil, name, self._copy)
        shutil.move = self._move
        shutil.copytree = self._copy_tree
        self._redirect_native()
        self._keep_what_torch_saves()

    def _redirect_open(self) -> None:
        real, low = self._open, os.open

        def opened(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            other = self.there(file) if not isinstance(file, int) else None
            if other is None:
                return real(file, mode, *args, **kwargs)
            if _WRITING & set(mode):
                self._prepare(file, other, keep="w" not in mode and "x" not in mode)
                return real(other, mode, *args, **kwargs)
            return real(other if self.exists(other) else file, mode, *args, **kwargs)

        def opened_low(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
            other = self.there(path)
            if other is None:
                return low(path, flags, *args, **kwargs)
            if flags & _FLAGS:
                self._prepare(path, other, keep=not flags & os.O_TRUNC)
                return low(other, flags | os.O_CREAT, *args, **kwargs)
            return low(self.found(path), flags, *args, **kwargs)

        use_in_archives(opened)
        builtins.open = io.open = opened
        builtins.print = _of_the_same_kind(builtins.print)
        pathlib.io.open = opened  # type: ignore[attr-defined]
        os.open = opened_low

    def _prepare(self, path: Any, other: str, *, keep: bool) -> None:
        """Make the folder of what is to be written, and what was in the file if that is kept."""
        self._makedirs(os.path.dirname(other), exist_ok=True)
        if keep and not self.exists(other):
            with contextlib.suppress(OSError), self._open(path, "rb") as old, self._open(other, "wb") as copy:
                shutil.copyfileobj(old, copy)

    def _look(self, owner: Any, name: str) -> None:
        real: Callable[..., Any] = getattr(owner, name)

        def look(path: Any = ".", *args: Any, **kwargs: Any) -> Any:
            if name == "truncate":
                self._prepare(path, self.made(path), keep=True)
            return real(path if isinstance(path, int) else self.found(path), *args, **kwargs)

        def look_first(path: Any = ".", *args: Any, **kwargs: Any) -> Any:
            try:
                found = real(path, *args, **kwargs)
            except FileNotFoundError:
                if isinstance(path, int) or not self.has(path):
                    raise  # of the path that the script knows
                return real(self.found(path), *args, **kwargs)
            if name == "access" and not found and not isinstance(path, int):
                return real(self.found(path), *args, **kwargs)
            return found

        setattr(owner, name, look if name == "truncate" else look_first)

    def _listed(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def names(path: Any = ".") -> Any:
            if isinstance(path, int) or not self.has(path):
                return real(path)
            made = real(self.found(path))
            with contextlib.suppress(FileNotFoundError):
                return list(dict.fromkeys([*real(path), *made]))
            return made

        return names

    def _merge_scans(self) -> None:
        real = os.scandir

        @contextlib.contextmanager
        def both(path: Any) -> Iterator[Any]:
            with real(self.found(path)) as made:
                new = {entry.name: entry for entry in made}
            old: list[Any] = []
            with contextlib.suppress(FileNotFoundError), real(path) as there:
                old = [entry for entry in there if entry.name not in new]
            yield iter([*old, *new.values()])

        class Scan:
            """Names that lie there, and those that the script has made."""

            def __init__(self, path: Any) -> None:
                with both(path) as entries:
                    self._entries = list(entries)

            def __iter__(self) -> Any:
                return iter(self._entries)

            def __next__(self) -> Any:
                if not self._entries:
                    raise StopIteration
                return self._entries.pop(0)

            def __enter__(self) -> Any:
                return self

            def __exit__(self, *_: object) -> None:
                return None

            def close(self) -> None:
                return None

        def scan(path: Any = ".") -> Any:
            return real(path) if isinstance(path, int) or not self.has(path) else Scan(path)

        os.scandir = scan

    def _make(self, name: str) -> None:
        real: Callable[..., Any] = getattr(os, name)
        signature = inspect.signature(real)

        def make(*args: Any, **kwargs: Any) -> None:
            given = signature.bind(*args, **kwargs).arguments
            path = next(iter(given.values()))
            if (other := self.there(path)) is None:
                real(*args, **kwargs)
            elif not self.has(path) and not self.exists(os.path.abspath(os.fsdecode(path))):
                self._makedirs(other, exist_ok=True)
            elif not given.get("exist_ok"):
                raise FileExistsError(17, "File exists", os.fspath(path))

        setattr(os, name, make)

    def _change(self, owner: Any, name: str, *paths: str) -> None:
        """Let only what the script has made itself be changed; `paths` are the names of the arguments that say what."""
        real: Callable[..., Any] = getattr(owner, name)

        def change(*args: Any, **kwargs: Any) -> None:
            if kwargs.get("dir_fd") is not None:  # a name in a folder that is open, as `rmtree` removes them
                if os.path.realpath(f"/proc/self/fd/{kwargs['dir_fd']}").startswith(self.scratch):
                    real(*args, **kwargs)
                return
            given = [*args[: len(paths)], *(kwargs.pop(path) for path in paths[len(args) :])]
            first, *others = moved = [self.there(path) or path for path in given]
            if self.exists(os.fsdecode(first)):
                for other in others:
                    self._makedirs(os.path.dirname(os.fsdecode(other)), exist_ok=True)
                self._follow_saved(name, [os.path.abspath(os.fsdecode(path)) for path in given])
                real(*moved, *args[len(paths) :], **kwargs)

        setattr(owner, name, change)

    def _follow_saved(self, name: str, paths: list[str]) -> None:
        """What torch has saved goes where its file goes."""
        if paths[0] in self._saved:
            kept = self._saved[paths[0]]
            if name in ("remove", "unlink", "rename", "replace"):
                del self._saved[paths[0]]
            if len(paths) > 1:
                self._saved[paths[1]] = kept

    def _copy(self, src: Any, dst: Any, *args: Any, **kwargs: Any) -> Any:
        if os.path.isdir(dst):
            dst = os.path.join(dst, os.path.basename(os.fspath(src)))
        source, target = self.found(src), self.made(dst)
        with contextlib.suppress(FileNotFoundError, IsADirectoryError, shutil.SameFileError):
            if self._stat(source).st_size <= _LARGEST_COPY:
                with self._open(source, "rb") as old, self._open(target, "wb") as new:
                    shutil.copyfileobj(old, new)
                self._follow_saved("copy", [os.path.abspath(os.fsdecode(path)) for path in (src, dst)])
        return dst

    def _move(self, src: Any, dst: Any, *args: Any, **kwargs: Any) -> Any:
        """What the script has made, a folder as well, goes there; what was here before stays, and is copied."""
        source = os.path.abspath(os.fsdecode(self.found(src)))
        if not source.startswith(self.scratch):
            return self._copy(src, dst)
        if os.path.isdir(dst):
            dst = os.path.join(dst, os.path.basename(os.fspath(src).rstrip(os.sep)))
        self._rename(source, self.made(dst))
        self._follow_saved("rename", [os.path.abspath(os.fsdecode(path)) for path in (src, dst)])
        return dst

    def _copy_tree(self, src: Any, dst: Any, *args: Any, **kwargs: Any) -> Any:
        """The folder is there then; of what is in it, what is small."""
        self.made(os.path.join(os.fsdecode(dst), "_"))
        for name in self._list(self.found(src))[:256] if os.path.isdir(self.found(src)) else ():
            if os.path.isfile(os.path.join(src, name)):
                self._copy(os.path.join(src, name), os.path.join(dst, name))
        return dst

    def _redirect_native(self) -> None:
        connect = sqlite3.connect

        def connected(database: Any, *args: Any, **kwargs: Any) -> Any:
            if str(database) == ":memory:" or kwargs.get("uri"):
                return connect(database, *args, **kwargs)
            other = self.made(database)
            self._prepare(database, str(other), keep=True)
            return connect(other, *args, **kwargs)

        sqlite3.connect = connected
        for module, name, at in _NATIVE:
            once_imported(module, lambda m, name=name, at=at: self._redirect(m, name, at))  # type: ignore[misc]
        once_imported("torch.jit", lambda m: setattr(m, "save", lambda *args, **kwargs: None))
        torch.onnx.export = lambda *args, **kwargs: None

    def _redirect(self, module: Any, name: str, at: int) -> None:
        real: Any = getattr(module, name, None)
        if real is None:
            return

        def led(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
            if len(args) <= at or not isinstance(args[at], str | os.PathLike):
                return args
            reads = kwargs.get("readonly") or (
                name == "File" and (args[at + 1 : at + 2] or (kwargs.get("mode", "r"),))[0] == "r"
            )
            return (*args[:at], self.found(args[at]) if reads else str(self.made(args[at])), *args[at + 1 :])

        if isinstance(real, type):
            make: Callable[..., Any] = vars(real).get("__init__", object.__init__)

            def init(self_: Any, *args: Any, **kwargs: Any) -> None:
                make(self_, *led(args, kwargs), **kwargs)

            with contextlib.suppress(TypeError):  # a native class, which opens by itself
                real.__init__ = init  # type: ignore[misc]
                return
        setattr(module, name, lambda *args, **kwargs: real(*led(args, kwargs), **kwargs))

    def _keep_what_torch_saves(self) -> None:
        """By reference: what lies on the accelerator has no contents to write."""
        load: Callable[..., Any] = torch.load

        def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
            if isinstance(f, str | os.PathLike):
                self._saved[os.path.abspath(os.fsdecode(f))] = obj
                with self._open(self.made(f), "ab"):
                    pass
            else:
                with contextlib.suppress(TypeError):
                    self._buffers[f] = obj
                if isinstance(name := getattr(f, "name", None), str):
                    self._saved[os.path.abspath(name)] = obj

        def loaded(f: Any, *args: Any, **kwargs: Any) -> Any:
            with contextlib.suppress(TypeError):
                if f in self._buffers:
                    return self._buffers[f]
            name = f if isinstance(f, str | os.PathLike) else getattr(f, "name", None)
            if isinstance(name, str | os.PathLike):
                path = os.path.abspath(os.fsdecode(name))
                if path in self._saved:
                    return self._saved[path]
                f = self.found(f) if f is name else f
            return load(f, *args, **kwargs)

        torch.save = save
        torch.load = loaded


def _lexists(lstat: Callable[..., Any]) -> Callable[[str], bool]:
    """As `os.path.lexists`, of the file system as it is."""

    def exists(path: str) -> bool:
        try:
            lstat(path)
        except (OSError, ValueError):
            return False
        return True

    return exists


def _of_the_same_kind(function: Callable[..., Any]) -> Callable[..., Any]:
    """Scripts put their own in place of `print` where it is still of the type that `open` is."""

    @functools.wraps(function)
    def same(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return same
