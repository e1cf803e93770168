"""A Ray cluster, spoken to by a process of its own. What campaigns and searches on one have in common.

When the head goes away, Ray holds Python's lock for a minute and then ends the process it is in; and forks of a process
with Ray inherit its threads' locks and its handler of SIGTERM. So no process of the user's has Ray in it.
"""

from __future__ import annotations

import importlib.util
import logging
import multiprocessing
import socket
import subprocess
import sys
from typing import Any, Final

from foretell.errors import InputError
from foretell.units import Seconds

START: Final[Seconds] = 60.0  # to connect
_LEAVING: Final[Seconds] = 5.0


class RayProcess:
    """Runs `serve`, named as module:function and called with its end of the link, beside this process."""

    def __init__(self, serve: str) -> None:
        module, _, function = serve.partition(":")
        self.link, theirs = multiprocessing.Pipe()
        code = "from multiprocessing.connection import Connection\n"
        code += f"from {module} import {function}\n{function}(Connection({theirs.fileno()}))"
        self._popen = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
        theirs.close()

    def close(self) -> None:
        self.link.close()  # at which it leaves the cluster in order
        try:
            self._popen.wait(timeout=_LEAVING)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()


def check_installed(what: str) -> None:
    if importlib.util.find_spec("ray") is None:
        raise InputError(f"{what} on a cluster needs Ray. Install it with: pip install 'foretell[ray]'")


def head_is_gone(address: str) -> str:
    return f"the head of the Ray cluster at {address} does not answer any more. Look after it with: ray status."


# In the process that Ray runs in


def connect(address: str, folder: str | None = None) -> Any:
    """The module, connected to a cluster; `folder` is sent to every node, to run in."""
    import ray

    host, colon, port = address.removeprefix("ray://").rpartition(":")
    try:
        if colon and not answers(f"{host}:{port}"):
            raise ConnectionError("nothing listens there")
        environment = {"working_dir": folder} if folder else None
        ray.init(address=address, runtime_env=environment, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:
        raise InputError(
            f"no Ray cluster at {address!r}: {str(error).strip() or type(error).__name__}. Start one with "
            "`ray start --head` and its nodes with `ray start --address=HOST:PORT`, or leave out --ray."
        ) from None
    return ray


def answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=2).close()
    except (OSError, ValueError):
        return False
    return True
