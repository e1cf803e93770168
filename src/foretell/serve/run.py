"""Running the service: uvicorn, until it is told to stop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from foretell.errors import InputError
from foretell.serve.access.guard import PATIENCE
from foretell.serve.listener.app import make_app
from foretell.serve.service import Service
from foretell.serve.settings import Settings

_GRACE = 20  # seconds that requests in work have to end


class Patient(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """Closes a connection whose request's head does not come to its end: byte by byte, it would stay for ever."""

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop()  # a request is in work
        elif self._late is None:
            self._wait()

    def _wait(self) -> None:
        self._late = self.loop.call_later(PATIENCE, self._give_up)

    def _stop(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _give_up(self) -> None:
        self._late = None
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()  # no harm where the caller has left already


class _Server(uvicorn.Server):
    """Tells the service when it shall stop: a listener to events would hold it up."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._service.stopping = True
        super().handle_exit(sig, frame)


def run(settings: Settings, say: Callable[[str], None]) -> None:
    """Serve; `say` is told where, once the port is open and every worker is ready."""
    with _bound(settings) as listening:
        service = Service(settings)
        service.engine.warm()
        host, port = listening.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        say(f"http://{shown}:{port}")
        config = uvicorn.Config(
            make_app(service),
            http=Patient,
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=_GRACE,
            server_header=False,
        )
        _Server(config, service).run(sockets=[listening])


def _bound(settings: Settings) -> socket.socket:
    try:
        family, *_, address = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(1024)
        return listening
    except OSError as error:
        raise InputError(
            f"nothing can listen on {settings.host} port {settings.port}: {error.strerror}. Choose another --host or --port."
        ) from None
