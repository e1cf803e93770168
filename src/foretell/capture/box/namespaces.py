"""Namespaces of Linux: a view of this machine in which all that is written lies in memory, without a network.

Every folder of the root, and every file system that is mounted somewhere, gets an overlay of its own, whose lower layer is
what was there and whose upper one is a file system in memory. What is no such folder is read-only. All of it ends with the
first process of the box, which ends with the process that waits for it here.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import struct
import sys
from collections.abc import Iterator
from typing import Final, NoReturn

from foretell.capture.box import system
from foretell.supervisor import end_with_parent

_FILES, _TALKS, _USERS, _PROCESSES, _NETWORK = 0x20000, 0x08000000, 0x10000000, 0x20000000, 0x40000000
_READ_ONLY, _REMOUNT, _BIND, _RECURSIVE, _PRIVATE = 1, 32, 4096, 16384, 1 << 18
_NO_DEVICES: Final = 4
_OF_THE_SYSTEM: Final = ("proc", "sys", "dev", "run")  # folders of the root that are no files of anybody
_PSEUDO: Final = frozenset(
    "proc sysfs devtmpfs devpts cgroup cgroup2 mqueue debugfs tracefs securityfs pstore bpf configfs fusectl hugetlbfs "
    "binfmt_misc efivarfs autofs rpc_pipefs nsfs".split()
)
_DEVICES: Final = ("null", "zero", "full", "random", "urandom", "tty")
_KEPT: Final = 0xFF  # of root's rights: whose file it is does not matter to it; nothing that changes the system
_SETFLAGS, _UP = 0x8914, 0x41  # of a network interface: up and running
_BY_SIGNAL: Final = 128  # and its number, as shells say it
_REFUSED: Final = 97  # how a first process ends that could not be made


def enter() -> bool:
    """Returns in the box; False, in this process, where the kernel gives none."""
    uid, gid = os.getuid(), os.getgid()
    ready, ready_in_box = os.pipe()
    if not (outside := os.fork()):
        os.close(ready)
        _first(ready_in_box, uid, gid)  # returns in the box alone
        return True
    os.close(ready_in_box)
    with os.fdopen(ready, "rb") as answer:
        made = answer.read(1)
    if made:
        _end_as(os.waitpid(outside, 0)[1])
    os.waitpid(outside, 0)
    return False


def _end_as(status: int) -> NoReturn:
    """As the process in the box has ended; where a signal has ended it, by that signal."""
    code = os.waitstatus_to_exitcode(status)
    number = -code if code < 0 else code - _BY_SIGNAL
    if 0 < number < signal.NSIG:
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(code % 256)


def _first(ready: int, uid: int, gid: int) -> None:
    """In a process that goes into the box; its grandchild is the one that returns."""
    end_with_parent()
    try:
        mapped = _unshared(uid, gid)
        end_with_parent()  # which is forgotten with the change of rights
        if first := os.fork():  # the first process in the box: once it ends, all others there do
            os.close(ready)
            _end_as(os.waitpid(first, 0)[1])
        end_with_parent()
        _lay_over(in_users=mapped)
        _raise_loopback()
        system.keep_capabilities(_KEPT if uid == 0 and not mapped else 0)
    except OSError as error:
        if os.environ.get("FORETELL_DEBUG"):
            print(f"no box of namespaces: {error}", file=sys.stderr)
        os._exit(_REFUSED)
    if worker := os.fork():  # the first process gets no signals that it does not ask for; so it does nothing but wait
        os.write(ready, b"1")
        os.close(ready)
        _wait_for(worker)
    os.close(ready)
    end_with_parent()


def _wait_for(worker: int) -> NoReturn:
    """For all that end here; the box ends with the worker. A first process cannot end by a signal: its exit code says which."""
    while True:
        ended, status = os.waitpid(-1, 0)
        if ended == worker:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else _BY_SIGNAL - code)


def _unshared(uid: int, gid: int) -> bool:
    """Whether users had to be mapped: who may not leave the machine's namespaces may in one of users of its own."""
    parts = _FILES | _TALKS | _PROCESSES | _NETWORK
    try:
        system.unshare(parts)
    except OSError:
        system.unshare(parts | _USERS)
        for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
        return True
    return False


def _lay_over(*, in_users: bool) -> None:
    """Overlays in place of what there is; paths stay as they are."""
    here = os.getcwd()
    system.mount("", "/", "", _RECURSIVE | _PRIVATE)
    places = [*_folders(), *_mounts()]
    below = {place: os.open(place, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC) for place in places}
    memory = "/tmp" if os.path.isdir("/tmp") else places[0]  # nosec B108  # covered by memory that no other sees
    system.mount("tmpfs", memory, "tmpfs", 0, "mode=0755")
    upper = os.open(memory, os.O_PATH | os.O_CLOEXEC)
    for number, (place, folder) in enumerate(below.items()):
        _overlay(number, place, folder, upper, in_users=in_users)
        os.close(folder)
    os.close(upper)
    _own_system_folders()
    _read_only("/")
    os.chdir(here)


def _overlay(number: int, place: str, folder: int, upper: int, *, in_users: bool) -> None:
    """Over one folder; where none can be laid, it is read-only."""
    state = os.fstat(folder)
    made = [f"/proc/self/fd/{upper}/{number}-{part}" for part in ("upper", "work")]
    for path in made:
        os.mkdir(path)
    os.chmod(made[0], state.st_mode & 0o7777)
    with contextlib.suppress(OSError):  # of somebody who is not mapped
        os.chown(made[0], state.st_uid, state.st_gid)
    options = f"lowerdir=/proc/self/fd/{folder},upperdir={made[0]},workdir={made[1]}{',userxattr' if in_users else ''}"
    try:
        system.mount("overlay", place, "overlay", 0, options)
    except OSError:
        system.mount(f"/proc/self/fd/{folder}", place, "", _BIND | _RECURSIVE)
        _read_only(place)


def _folders() -> Iterator[str]:
    for entry in sorted(os.scandir("/"), key=lambda entry: entry.name):
        if entry.is_dir(follow_symlinks=False) and entry.name not in _OF_THE_SYSTEM:
            yield entry.path


def _mounts() -> Iterator[str]:
    """Folders that other file systems are mounted on, those above first; a file that is mounted cannot be laid over."""
    found = set()
    with open("/proc/self/mountinfo") as file:
        for line in file:
            before, _, after = line.partition(" - ")
            place = before.split()[4].encode().decode("unicode_escape")
            parts = place.split("/")
            if (
                len(parts) > 2
                and parts[1] not in _OF_THE_SYSTEM
                and after.split()[0] not in _PSEUDO
                and os.path.isdir(place)
            ):
                found.add(place)
    yield from sorted(found, key=lambda place: (place.count("/"), place))


def _read_only(place: str) -> None:
    system.mount("", place, "", _REMOUNT | _BIND | _READ_ONLY)


def _own_system_folders() -> None:
    """Devices that keep nothing, no sockets of services, the system's settings to be read, processes of the box alone."""
    devices = {
        name: os.open(f"/dev/{name}", os.O_PATH | os.O_CLOEXEC) for name in _DEVICES if os.path.exists(f"/dev/{name}")
    }
    system.mount("tmpfs", "/dev", "tmpfs", 0, "mode=0755")
    for name, node in devices.items():
        with open(f"/dev/{name}", "w"):
            system.mount(f"/proc/self/fd/{node}", f"/dev/{name}", "", _BIND)
        os.close(node)
    for name in ("shm", "pts"):
        os.mkdir(f"/dev/{name}", 0o777)
    system.mount("tmpfs", "/dev/shm", "tmpfs", _NO_DEVICES, "mode=1777")  # nosec B108  # of this process alone
    for name, target in (("fd", "/proc/self/fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        os.symlink(target, f"/dev/{name}")
    if os.path.isdir("/run"):
        system.mount("tmpfs", "/run", "tmpfs", 0, "mode=0755")
    with contextlib.suppress(OSError):  # some containers hide parts of it, and then there is no other
        system.mount("proc", "/proc", "proc")
    for place in ("/sys", *(f"/proc/{name}" for name in ("sys", "irq", "bus", "fs", "sysrq-trigger"))):
        if os.path.exists(place):
            system.mount(place, place, "", _BIND | _RECURSIVE)
            _read_only(place)


def _raise_loopback() -> None:
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SETFLAGS, struct.pack("16sH14s", b"lo", _UP, b""))
