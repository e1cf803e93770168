"""Landlock, a part of Linux by which a process gives up rights for good (documented in the kernel's userspace-api/landlock)."""

from __future__ import annotations

import contextlib
import ctypes
import os
import tempfile
from typing import Final

from foretell.capture.box import system

_CREATE, _ADD, _RESTRICT = 444, 445, 446  # system calls
_VERSION: Final = 1  # flag: say which version there is
_BENEATH: Final = 1  # a rule about a folder and all that is in it
# Rights by the version that has them first: to write, remove and make files; to move them, to shorten them.
_WRITING: Final = sum(1 << bit for bit in (1, 4, 5, 6, 7, 8, 9, 10, 11, 12))
_MOVING, _SHORTENING = 1 << 13, 1 << 14
_OF_FILES: Final = 1 << 1 | _SHORTENING
_TCP: Final = 0b11  # to listen and to connect
_DEVICES: Final = ("null", "zero", "full", "random", "urandom", "tty", "ptmx")


class _Rights(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64))


class _Rule(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32))


def enter() -> bool:
    """Writes are refused from here on but in the folder for temporary files; False where there is no Landlock."""
    try:
        version = system.call(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION))
    except OSError:
        return False
    handled = _WRITING | (_MOVING if version >= 2 else 0) | (_SHORTENING if version >= 3 else 0)
    rights = _Rights(files=handled, network=_TCP if version >= 4 else 0)
    size = ctypes.sizeof(rights) if version >= 4 else 8
    try:
        rules = system.call(_CREATE, ctypes.byref(rights), ctypes.c_size_t(size), ctypes.c_uint32(0))
        for folder in (tempfile.gettempdir(), "/dev/shm", "/dev/pts", "/proc/self"):  # nosec B108  # granted, not written
            _allow(rules, folder, handled)
        for name in _DEVICES:
            _allow(rules, f"/dev/{name}", handled & _OF_FILES)
        system.control(system.NO_NEW_PRIVILEGES)
        system.call(_RESTRICT, ctypes.c_int(rules), ctypes.c_uint32(0))
    except OSError:
        return False
    os.close(rules)
    return True


def _allow(rules: int, path: str, rights: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
        rule = _Rule(allowed=rights, folder=folder)
        try:
            system.call(_ADD, ctypes.c_int(rules), ctypes.c_int(_BENEATH), ctypes.byref(rule), ctypes.c_uint32(0))
        finally:
            os.close(folder)
