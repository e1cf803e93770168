"""Windows of a watched job, told to a Foretell service that was named: `foretell.watch(…, server="http://…")`."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from typing import Any, Final
from urllib.parse import urlsplit

from foretell.errors import InputError
from foretell.measure.record import StepRow
from foretell.units import Seconds
from foretell.watching.expected import Expected

_PATIENCE: Final[Seconds] = 30.0


class Poster:
    """Sends the graph and asks for its forecast once, then a measured step for every window. $FORETELL_KEY is its key."""

    def __init__(self, server: str, expected: Expected) -> None:
        if urlsplit(server).scheme not in ("http", "https"):
            raise InputError(f"server is the address of a service, like http://127.0.0.1:8760, got {server!r}.")
        if expected.graph is None:
            raise InputError(
                "a service is told about whole steps, and the forecast of one rank among several has the graph of a rank. "
                "Watch the workload itself, with on and plan."
            )
        columns = expected.columns
        self._server, self._graph = server.rstrip("/"), expected.graph
        self._question = {"graph": self._graph.hash, "on": columns["cluster"], "plan": columns["plan"]}
        self._known = False

    def post(self, row: StepRow) -> None:
        if row.step_seconds is None:
            return
        if not self._known:
            self._send("/v1/graphs", self._graph.file)
            self._send("/v1/forecasts", json.dumps(self._question).encode())
            self._known = True
        measured = {"seconds": row.step_seconds, "allocated": row.peak_allocated, "reserved": row.peak_reserved}
        self._send("/v1/measurements", json.dumps(self._question | measured).encode())

    def _send(self, path: str, body: bytes) -> None:
        headers = {"Content-Type": "application/octet-stream" if path == "/v1/graphs" else "application/json"}
        if key := os.environ.get("FORETELL_KEY"):
            headers["Authorization"] = f"Bearer {key}"
        request = urllib.request.Request(self._server + path, body, headers, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=_PATIENCE) as answer:  # nosec B310  # http or https, see above
                answer.read()
        except urllib.error.HTTPError as error:
            raise InputError(f"the service at {self._server} refuses: {_reason(error)}") from None
        except OSError as error:
            raise InputError(f"the service at {self._server} cannot be reached: {error}") from None


def _reason(error: urllib.error.HTTPError) -> str:
    try:
        problem: dict[str, Any] = json.loads(error.read(10_000))
        return f"{problem['what']} {problem['next']}"
    except (ValueError, KeyError, TypeError, OSError):
        return f"status {error.code}"
