"""Calls of Linux that Python has no function for."""

from __future__ import annotations

import ctypes
import os
from typing import Any, Final

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
NO_NEW_PRIVILEGES: Final = 38
DROP_BOUND: Final = 24  # a capability that nothing started from here can have
_CAPABILITIES_V3: Final = 0x20080522


def checked(result: int, what: str) -> int:
    """The result of a call, or the error that it left."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def call(number: int, *arguments: Any) -> int:
    """A system call by its number, which is the same on all processors for those of Landlock."""
    return checked(int(_LIBC.syscall(number, *arguments)), f"system call {number}")


def control(option: int, value: int = 1) -> None:
    checked(int(_LIBC.prctl(option, value, 0, 0, 0)), f"prctl {option}")


def unshare(flags: int) -> None:
    checked(int(_LIBC.unshare(flags)), "unshare")


def mount(source: str, target: str, kind: str, flags: int = 0, options: str = "") -> None:
    words = [text.encode() or None for text in (source, target, kind)]
    checked(int(_LIBC.mount(*words, ctypes.c_ulong(flags), options.encode() or None)), f"mount {kind} on {target}")


def detach(target: str) -> None:
    """Take a mount away that others may still use."""
    checked(int(_LIBC.umount2(target.encode(), 2)), f"umount {target}")


def keep_capabilities(mask: int) -> None:
    """Give up all others, for good."""
    for each in range(64):
        if not mask >> each & 1 and _LIBC.prctl(DROP_BOUND, each, 0, 0, 0) < 0:
            break  # there are no more
    head = (ctypes.c_uint32 * 2)(_CAPABILITIES_V3, 0)
    sets = (ctypes.c_uint32 * 6)(mask, mask, 0, 0, 0, 0)  # effective, permitted, inheritable; then the upper halves
    checked(int(_LIBC.capset(head, sets)), "capset")
    control(NO_NEW_PRIVILEGES)
