"""Around every request: what a browser may do with answers, how large a body may be, and whose page may ask."""

from __future__ import annotations

import re
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from foretell.limits import limit
from foretell.serve.problems import Problem

MAX_JSON_BYTES: Final = 2**18  # bytes of a question
HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",  # without any, a browser does not say which page a form is of
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
    "Cache-Control": "no-store",
}
_LOOPBACK: Final = ("127.0.0.1", "localhost", "[::1]")
_PORT: Final = re.compile(r":\d+$")
_UPLOADS: Final = ("/v1/graphs", "/ask", "/planner")


class Guard:
    """The outermost part of the app."""

    def __init__(self, app: ASGIApp, *, is_open: bool) -> None:
        self.app, self.is_open = app, is_open

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        most = limit("bytes of a graph file") if scope["path"].rstrip("/") in _UPLOADS else MAX_JSON_BYTES
        problem = self._stranger(scope) or _too_large(scope, most)
        if problem is not None:
            await problem.response()(scope, receive, send_guarded)
            return
        await self.app(scope, _counted(receive, most), send_guarded)

    def _stranger(self, scope: Scope) -> Problem | None:
        """A page of another site, in the browser of somebody who may ask: it asks with their loopback or their cookie."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if self.is_open and _PORT.sub("", host) not in _LOOPBACK:
            return Problem(
                403, "without keys the service answers on loopback names only.", got=host,
                allowed=", ".join(_LOOPBACK), next="Ask under one of them, or make keys: foretell serve key --help",
            )  # fmt: skip
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2] != host:
            return Problem(
                403,
                "pages of other sites may not ask.",
                got=origin,
                allowed=host,
                next="Ask from the service's own page.",
            )
        return None


def _too_large(scope: Scope, most: int) -> Problem | None:
    length = Headers(scope=scope).get("content-length")
    if length is None or (length.isascii() and length.isdigit() and int(length[:20]) <= most):
        return None
    return too_large(most)


def too_large(most: int) -> Problem:
    return Problem(413, f"a body here has at most {most:,} bytes.", allowed=f"{most:,} bytes", next="Send less.")


def _counted(receive: Receive, most: int) -> Receive:
    """A body without a stated length is counted as it comes."""
    seen = 0

    async def counted() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > most:
            raise too_large(most)
        return message

    return counted
