"""Whole services on one PostgreSQL: now a service is killed, now the database itself, which the next process starts again.

Whoever holds the lock keeps the database; the others are services. One lives through the loss of its database, refuses what
it cannot keep, and goes on once it is back.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import pwd
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psycopg

from tests.soak.targets import services

SIDE_BY_SIDE = 3
SECONDS = 6.0  # a database needs one of them to recover, a job one or two
PROGRAMS = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
_PR_SET_PDEATHSIG = 1


def work(folder: Path, number: int, say: Callable[[str], None]) -> None:
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            while not services.url_file(folder).exists():
                time.sleep(0.05)
            services.work(folder, number, say)
            return
        _started(folder).wait()


def verify(folder: Path, said: Sequence[str]) -> str:
    database = _started(folder)
    try:
        return services.verify(folder, said)
    finally:
        database.send_signal(signal.SIGINT)
        database.wait()


def _started(folder: Path) -> subprocess.Popen[bytes]:
    """The server, which is killed with this process, once it answers."""
    user = pwd.getpwnam("postgres") if os.geteuid() == 0 else pwd.getpwuid(os.geteuid())  # it does not run as root
    data = folder / "postgres" / "data"
    if not data.exists():
        shutil.rmtree(data.parent, ignore_errors=True)
        data.parent.mkdir()
        os.chown(data.parent, user.pw_uid, user.pw_gid)
        folder.parent.chmod(0o711)
        making = ["initdb", "-D", f"{data}.made", "-A", "trust", "-U", "foretell", "--no-sync", "-E", "UTF8"]
        _run(making, user, data.parent).wait()
        Path(f"{data}.made").rename(data)
    settings = ["-k", str(data.parent), "-c", "listen_addresses=", "-c", "max_connections=200"]
    while True:
        server = _run(["postgres", "-D", str(data), *settings], user, data.parent)
        while server.poll() is None:  # it ends at once while one that was killed has not ended yet
            if _answers(f"postgresql://foretell@/NAME?host={data.parent}", services.url_file(folder)):
                return server
            time.sleep(0.1)


def _answers(url: str, file: Path) -> bool:
    """Whether the server does; then its database of jobs is there, and known to the services."""
    try:
        with psycopg.connect(url.replace("NAME", "postgres"), autocommit=True) as connection:
            if not connection.execute("SELECT 1 FROM pg_database WHERE datname = 'jobs'").fetchone():
                connection.execute("CREATE DATABASE jobs")
    except psycopg.OperationalError:
        return False
    new = file.with_suffix(".new")
    new.write_text(url.replace("NAME", "jobs"))
    new.rename(file)
    return True


def _run(command: list[str], user: pwd.struct_passwd, folder: Path) -> subprocess.Popen[bytes]:
    def leave_with_us() -> None:  # after the user is another, which would forget it
        os.setgroups([])
        os.setgid(user.pw_gid)
        os.setuid(user.pw_uid)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    return subprocess.Popen(
        [str(PROGRAMS[-1] / command[0]), *command[1:]], cwd=folder,
        preexec_fn=leave_with_us if os.geteuid() == 0 else lambda: ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
