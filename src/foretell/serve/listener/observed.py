"""Every request is counted, timed and, where it asks for something of a team, written to the audit log."""

from __future__ import annotations

import time
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from foretell.serve.service import Service

_UNKNOWN: Final = "/?"  # addresses that do not exist are one: a stranger could make any number of them


class Observed:
    def __init__(self, app: ASGIApp, *, service: Service) -> None:
        self.app, self.service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status = time.perf_counter(), 500

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, watched)
        finally:
            path = getattr(scope.get("route"), "path", _UNKNOWN)
            metrics = self.service.metrics
            metrics.requests.labels(scope["method"], path, str(status)).inc()
            metrics.seconds.labels(path).observe(time.perf_counter() - began)
            caller = scope.get("state", {}).get("caller")
            if (
                caller is not None or path.startswith("/v1/") or scope["method"] == "POST"
            ):  # pages of a team and forms, too
                address = (scope.get("client") or ("?",))[0]
                self.service.audit.add(caller, str(address), f"{scope['method']} {scope['path']}", status)
