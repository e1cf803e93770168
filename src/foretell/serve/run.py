"""Running the service: uvicorn, until it is told to stop."""

from __future__ import annotations

import socket
from collections.abc import Callable
from types import FrameType

import uvicorn

from foretell.errors import InputError
from foretell.serve.listener.app import make_app
from foretell.serve.service import Service
from foretell.serve.settings import Settings

_GRACE = 20  # seconds that requests in work have to end


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
