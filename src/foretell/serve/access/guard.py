"""Around every request: what a browser may do with answers, how large a body may be, and whose page may ask."""

from __future__ import annotations

import asyncio
import re
import time
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from foretell.limits import limit
from foretell.serve.problems import Problem
from foretell.units import Seconds

PATIENCE: Final[Seconds] = 60.0  # until all of a request is here
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

        most = limit("bytes of a graph file") if scope["path"].rstrip("/") in _UPLOADS else MAX_JSON_BYTES
        body = _Body(receive, most)
        begun = False

        async def send_guarded(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            begun = True
            await send(message)

        async def send_unless_refused(message: Message) -> None:
            """What the app says of a body that was cut off is not the answer."""
            if body.problem is None or begun:
                await send_guarded(message)

        problem = self._stranger(scope) or _too_large(scope, most)
        if problem is None:
            try:
                await self.app(scope, body.receive, send_unless_refused)
            except Problem:
                if body.problem is None:
                    raise
            problem = body.problem
        if problem is not None and not begun:
            await problem.response()(scope, receive, send_guarded)

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


class _Body:
    """A body is counted as it comes, and waited for only so long: `problem` is why it was refused."""

    def __init__(self, receive: Receive, most: int) -> None:
        self._receive, self._most = receive, most
        self._seen, self._ended = 0, False
        self._until = time.monotonic() + PATIENCE
        self.problem: Problem | None = None

    async def receive(self) -> Message:
        if self._ended:  # whoever listens now waits for the caller to leave
            return await self._receive()
        try:
            left = max(self._until - time.monotonic(), 0.0)
            message = await asyncio.wait_for(self._receive(), left)
        except TimeoutError:
            self.problem = Problem(
                408,
                f"the body did not come within {PATIENCE:g} s.",
                next="Send it again.",
                headers={"Connection": "close"},
            )
            raise self.problem from None
        self._seen += len(message.get("body", b""))
        self._ended = not message.get("more_body", False)
        if self._seen > self._most:
            self.problem = too_large(self._most)
            raise self.problem
        return message
