"""Folders of data that are not on this machine: they are there when the script looks, and have files as it filters for.

Only what the script's own code asks is answered so: a library that looks for a file shall find what is.
"""

from __future__ import annotations

import fnmatch
import glob
import itertools
import os
import pathlib
import re
import types
from collections.abc import Callable, Iterator
from sys import _getframe
from typing import Any, Final

from foretell.capture.script.meant import classes_meant
from foretell.capture.script.pretend import overlay
from foretell.capture.script.pretend.files import kinds, listing, patterns
from foretell.capture.script.pretend.files.callers import (
    asking_frame,
    function_source,
    is_demanded,
    is_ready,
    is_unwelcome,
    source_of,
    uses_of_line,
)
from foretell.capture.script.pretend.files.entries import Entries, Entry, is_looked_for_as_file, status
from foretell.capture.script.pretend.files.line_parts import are_names
from foretell.capture.script.pretend.files.packed import packer_of
from foretell.capture.script.session import Session

FILES: Final = 2048  # of a folder: three batches of what fits on a device
FOLDERS: Final = 10
FRAMES: Final = 64  # of a folder that is a sample itself, as of a video
_LISTINGS: Final = re.compile(r"listdir|scandir|glob|iterdir|os\.walk")
_HIDDEN: Final = re.compile(
    r"^(\.|readme|put_|place_|download|get_|prepare|license)|\.(md|sh|py|gitkeep|rst)$", re.IGNORECASE
)
_LOOKING: Final = frozenset(("fsspec",))  # a library that looks for files in the script's place
_GLOBS: Final = (glob.__file__, pathlib.__file__)  # which scan a folder for a pattern, that is answered as a whole
_WILD: Final = re.compile(r"[*?\[]")


class MissingFolders:
    """Answers of the file system on data that is missing."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._given = kinds.given_in(session.script.arguments)
        self._start = os.getcwd()
        self._folders: set[str] = set()  # that a listing has made up
        self._listed: dict[str, dict[str, str]] = {}  # folder → stem → a name that a listing of it has given
        self._real: dict[str, Callable[..., Any]] = {n: getattr(os, n) for n in ("stat", "listdir", "scandir", "walk")}

    def apply(self) -> None:
        for name in ("stat", "lstat"):
            setattr(os, name, self._stat(getattr(os, name)))
        os.access = self._access(os.access)
        os.listdir = self._list(os.listdir)
        os.scandir = self._scan(os.scandir)
        os.walk = self._walk(os.walk)
        glob.glob = self._glob(glob.glob)
        glob.iglob = self._glob(glob.iglob, iter)
        for name in ("glob", "rglob"):
            setattr(pathlib.Path, name, self._path_glob(getattr(pathlib.Path, name), recursive=name == "rglob"))

    # What is there

    def is_missing_data(self, path: Any, frame: types.FrameType | None) -> bool:
        """Whether a path that is not there would be data on the user's machine, and the user's code asks."""
        if frame is None or isinstance(path, int) or overlay.is_ours(path):
            return False
        text = os.fsdecode(path)
        return bool(text) and (kinds.is_data(text, self._given, self._start) or self._was_listed(text))

    def _was_listed(self, path: str) -> bool:
        folder, name = os.path.split(os.path.abspath(path))
        return name in self._listed.get(folder, {}).values()

    def _has_partner(self, path: str) -> bool:
        """Whether a listing, of its folder or of another, has given its name, as an image and its mask have the same."""
        name = os.path.basename(path)
        return any(name in names.values() for names in self._listed.values())

    def _is_wanted(self, path: Any, frame: types.FrameType | None) -> bool:
        """As `is_missing_data`, of a folder that is listed, or without which the script would end."""
        if frame is None or isinstance(path, int) or overlay.is_ours(path) or self.is_missing_data(path, frame):
            return self.is_missing_data(path, frame)
        return kinds.may_be_data(os.fsdecode(path), self._start) and not is_ready(frame, os.fsdecode(path))

    def _stat(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def look(path: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return real(path, *args, **kwargs)
            except FileNotFoundError:
                frame = asking_frame()
                text = os.fsdecode(path)
                are_names(self._session.guesses, text)
                if is_demanded(asking_frame(_LOOKING)):
                    return status(is_looked_for_as_file(_getframe(1), text))
                if not self.is_missing_data(path, frame) or is_unwelcome(frame):
                    raise
                file = self._is_file(text) or kinds.is_no_data(text)
                if kinds.is_no_data(text) and not self._was_listed(text):
                    raise
                if file and kinds.is_cache(text) and not (self._is_prepared(text) or self._has_partner(text)):
                    self._note_absence(text)
                    raise
                return status(file)

        return look

    def _access(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def look(path: Any, *args: Any, **kwargs: Any) -> bool:
            return real(path, *args, **kwargs) or os.path.exists(path)

        return look

    def _is_file(self, path: str) -> bool:
        known = kinds.ending_of(path) in kinds.DATA - {".lmdb"} or packer_of(path) is not None
        return known and os.path.abspath(path) not in self._folders

    def _is_prepared(self, path: str) -> bool:
        """Whether a program that lies in the same folder, as that which prepares its data, names the file."""
        folder, name = os.path.split(os.path.abspath(path))
        try:
            programs = [program for program in self._real["listdir"](folder) if program.endswith(".py")]
        except OSError:
            return False
        return any(name in source_of(os.path.join(folder, program)) for program in programs[:8])

    def _note_absence(self, path: str) -> None:
        """The script goes on without a file of its data folder: what it then takes may not be what the data has."""
        decides = bool(re.search(r"meta|vocab|class|stat|config|dict", os.path.basename(path), re.IGNORECASE))
        if decides:
            self._session.stand_in(path, "not there: the script goes on without it", decides_size=True)

    # What is in it

    def _list(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def names(path: Any = ".") -> Any:
            found = []
            try:
                found = real(path)
                wanted = self.is_missing_data
            except FileNotFoundError:
                wanted = self._is_wanted
                if not wanted(path, asking_frame()):
                    raise
            frame = asking_frame() if all(_HIDDEN.search(os.fsdecode(name)) for name in found) else None
            is_package = "__init__.py" in found  # which lists its own modules
            if frame is None or is_package or not wanted(path, frame) or overlay.has(path):
                return found
            return self._names(os.fsdecode(path), frame)

        return names

    def _names(self, folder: str, frame: types.FrameType, pattern: str = "*") -> list[str]:
        """Names of files as the asking code filters for; of folders, where it lists what it has listed."""
        if pattern == "*" and self._lists_folders(folder, frame):
            meant = classes_meant(frame)
            self._session.stand_in(f"folders in {folder}", f"{meant or FOLDERS} of them", decides_size=meant is None)
            names = [listing.filters_in(frame).name(i, f"{i:05}") for i in range(meant or FOLDERS)]
            self._folders.update(os.path.join(os.path.abspath(folder), name) for name in names)
            return names
        where, count = self._size(folder)
        if pattern.endswith(".flo") and re.search(r"//\s*2\b", function_source(frame)):
            count //= 2  # two pictures to a flow
        self._session.stand_in(f"files in {where}", f"{count:,} of them")
        code = frame.f_code.co_filename
        if pattern in ("*", "*.*"):
            names = listing.names(count, folder, frame)
        else:
            names = [patterns.name_of(i, kinds.ending_of(pattern), code) for i in range(count)]
            if not fnmatch.fnmatch(names[0], pattern):
                names = [_matching(pattern, i) for i in range(count)]
        if patterns.name_of(0, "", code) != f"{0:05}":
            classes = f"{patterns.CLASSES} classes, or {patterns.PEOPLE} people, where names tell them"
            self._session.stand_in(f"names of files in {where}", classes, decides_size=True)
        known = self._listed.setdefault(os.path.abspath(folder), {})
        known.update((os.path.splitext(name)[0], name) for name in names)
        return names

    def _size(self, folder: str) -> tuple[str, int]:
        """What to call a folder, and how many files it has: few where it is one of many that a listing has made up."""
        path = os.path.abspath(folder)
        if path in self._folders:
            siblings = sum(os.path.dirname(other) == os.path.dirname(path) for other in self._folders)
            return f"folders of {os.path.dirname(path)}", FILES // max(siblings, FOLDERS)
        outer, inner = os.path.dirname(path), path
        while outer != inner:
            if os.path.basename(inner) in self._listed.get(outer, {}).values():
                return f"folders below {outer}", FRAMES
            outer, inner = os.path.dirname(outer), outer
        return folder, FILES if len(self._listed) < FOLDERS else FRAMES

    def _lists_folders(self, folder: str, frame: types.FrameType) -> bool:
        """Whether what is listed is listed again, or looked at as a folder."""
        if os.path.abspath(folder) in self._folders:
            return False
        used = uses_of_line(frame)
        if re.search(r"is_?file", used):
            return False
        return bool(re.search(r"isdir|is_dir|class_to_idx", used)) or len(_LISTINGS.findall(used)) > 1

    def _scan(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def entries(path: Any = ".") -> Any:
            try:
                return real(path)
            except FileNotFoundError:
                frame = asking_frame()
                if frame is None or not self._is_wanted(path, frame) or _getframe(1).f_code.co_filename in _GLOBS:
                    raise
                names = self._names(os.fsdecode(path), frame)
                return Entries(Entry(os.fsdecode(path), name, self._is_file(name)) for name in names)

        return entries

    def _walk(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def walk(top: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
            frame = asking_frame()
            if self._exists(top) or not self.is_missing_data(top, frame):
                return real(top, *args, **kwargs)  # type: ignore[no-any-return]
            assert frame is not None
            self._folders.add(os.path.abspath(top))
            folders = [f"{i:05}" for i in range(FOLDERS)]
            files = self._names(os.fsdecode(top), frame)
            inner: Iterator[Any] = (
                (os.path.join(os.fsdecode(top), name), [], files[: FILES // FOLDERS]) for name in folders
            )
            return itertools.chain([(os.fsdecode(top), folders, files)], inner)

        return walk

    def _exists(self, path: Any) -> bool:
        try:
            self._real["stat"](path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def _glob(self, real: Callable[..., Any], give: Callable[[list[Any]], Any] = list) -> Callable[..., Any]:
        def matching(pathname: Any, *args: Any, **kwargs: Any) -> Any:
            found = list(real(pathname, *args, **kwargs))
            frame = asking_frame() if not found else None
            root = os.fsdecode(kwargs.get("root_dir") or "")
            text = os.path.join(root, os.fsdecode(pathname))
            if frame is None or not self._matches_data(text, frame):
                return give(found)
            return give([os.path.relpath(p, root) if root else p for p in self._expand(text, frame)])

        return matching

    def _path_glob(self, real: Callable[..., Any], recursive: bool) -> Callable[..., Any]:
        def matching(self_path: pathlib.Path, pattern: str, **kwargs: Any) -> Iterator[pathlib.Path]:
            found = list(real(self_path, pattern, **kwargs)) if self._exists(self_path) else []
            frame = asking_frame() if not found else None
            text = os.path.join(self_path, "**" if recursive else "", pattern)
            if frame is None or not self._matches_data(text, frame):
                return iter(found)
            return iter([pathlib.Path(path) for path in self._expand(text, frame)])

        return matching

    def _matches_data(self, text: str, frame: types.FrameType) -> bool:
        ending = kinds.ending_of(text)
        wild = _WILD.search(text)
        if ending and "*" not in ending and ending not in kinds.DATA and re.fullmatch(r"\.\w+", ending):
            return False
        if wild is None:
            return not kinds.is_cache(text) and self.is_missing_data(text, frame) and not self._exists(text)
        folder = os.path.dirname(text[: wild.start()])
        if ending in kinds.SAMPLES and not self._exists(folder):
            return self._is_wanted(folder, frame)
        return self.is_missing_data(os.path.join(folder, "") or "data", frame)

    def _with_ending(self, folder: str, stem: str, frame: types.FrameType) -> str:
        known = self._listed.get(os.path.abspath(folder), {})
        return known.get(stem) or stem + listing.ending_for(folder, frame)

    def _expand(self, text: str, frame: types.FrameType) -> list[str]:
        *folders, last = text.split(os.sep)
        paths = [""]
        for folder in folders:
            if folder == "**":
                continue
            names = [_matching(folder, i) for i in range(FOLDERS)] if _WILD.search(folder) else [folder]
            paths = [f"{path}{name}{os.sep}" for path in paths for name in names]
        if not _WILD.search(last):
            return [path + last for path in paths]
        if last.endswith(".*") and not _WILD.search(last[:-2]):  # a file of which only the ending is not known
            return [path + self._with_ending(path, last[:-2], frame) for path in paths]
        names = self._names(paths[0], frame, last)
        each = -(-len(names) // len(paths)) if len(names) in (FILES, FILES // FOLDERS, FRAMES) else len(names)
        return [path + name for at, path in enumerate(paths) for name in names[at * each :][:each] or names[:each]]


def _matching(pattern: str, number: int) -> str:
    """A name that a pattern of the shell matches."""
    plain = re.sub(r"\[!?([^\]])[^\]]*\]", r"\1", pattern).replace("?", "0")
    name = re.sub(r"\*+", f"{number:05}", plain, count=1).replace("*", "")
    return name + ".jpg" if name.endswith(".") else name
