"""Names and configurations are built offline: what a file says must not make this machine contact another."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import replace
from functools import cache, wraps
from typing import Any, Final, ParamSpec, TypeVar
from unittest.mock import patch

from foretell.errors import SourceError
from foretell.workload import Workload

P = ParamSpec("P")
T = TypeVar("T")
_building: ContextVar[bool] = ContextVar("building", default=False)  # in this thread
_whole_process: list[bool] = []  # once it is so, in every thread
_switching = threading.RLock()  # a switch is the process's: who is first must not turn it back for who is second
_HOST_IN: Final[dict[str, Callable[[tuple[Any, ...]], Any]]] = {  # Python's audit events, which say where to
    "socket.connect": lambda arguments: arguments[1],
    "socket.sendto": lambda arguments: arguments[1],
    "socket.sendmsg": lambda arguments: arguments[1],
    "socket.getaddrinfo": lambda arguments: arguments[:1],
    "socket.gethostbyname": lambda arguments: arguments[:1],
}


class Refused(SourceError, OSError):
    """A connection that a source asked for; one that looks whether there is a network finds none."""


def kept_offline(source: str, function: Callable[P, Workload]) -> Callable[P, Workload]:
    """The same function, which contacts no other machine: neither itself, nor to build its model and batch."""

    def guarded(part: Callable[..., T]) -> Callable[..., T]:
        @wraps(part)
        def run(*arguments: Any, **named: Any) -> T:
            with _offline(source):
                return part(*arguments, **named)

        return run

    @wraps(function)
    def make(*arguments: P.args, **named: P.kwargs) -> Workload:
        workload = guarded(function)(*arguments, **named)
        return replace(workload, model=guarded(workload.model), batch=guarded(workload.batch))

    return make


def refuse_connections() -> None:
    """From now on this process contacts no other machine: libraries fetch in threads of their own."""
    _listen()
    _whole_process.append(True)


@contextlib.contextmanager
def _offline(source: str) -> Iterator[None]:
    _listen()
    before = _building.set(True)
    try:
        with _switching, _hub_offline():
            yield
    except Exception as error:
        if why := refusal_in(error):
            raise SourceError(
                f"{source} asks for {why}, and names and configurations are built offline. Leave out "
                "pretrained weights and backbones by name, or write the step as file.py:function."
            ) from error
        raise
    finally:
        _building.reset(before)


@cache
def _listen() -> None:
    """Once for a process: what hears audit events cannot be taken away again."""
    sys.addaudithook(_hear)


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if event not in _HOST_IN or not (_whole_process or _building.get()):
        return
    address = _HOST_IN[event](arguments)
    host = address[0] if isinstance(address, tuple) and address else None  # a socket of this machine has a path
    host = host.decode(errors="replace") if isinstance(host, bytes) else host
    if host and host not in ("localhost", "::1") and not host.startswith("127."):
        raise Refused(f"a connection to {host}")


def _hub_offline() -> contextlib.AbstractContextManager[Any]:
    """Hugging Face's own switch, which its native downloads obey too."""
    try:
        from huggingface_hub import constants
    except ImportError:
        return contextlib.nullcontext()
    return patch.object(constants, "HF_HUB_OFFLINE", True)


def refusal_in(error: BaseException | None) -> str:
    """What was refused on the way to an error."""
    hub: Any = sys.modules.get("huggingface_hub.errors")
    of_hub = (hub.OfflineModeIsEnabled, hub.LocalEntryNotFoundError) if hub else ()
    while error is not None:
        if isinstance(error, Refused):
            return str(error)
        if isinstance(error, of_hub):
            return "a file of the Hugging Face hub that is not on this machine"
        error = error.__cause__ or error.__context__
    return ""
