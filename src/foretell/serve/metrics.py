"""Numbers for Prometheus, of one process of the service."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)


class Metrics:
    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.requests = Counter(
            "foretell_requests",
            "Requests by address and status.",
            ["method", "path", "status"],
            registry=self._registry,
        )
        self.seconds = Histogram(
            "foretell_request_seconds", "How long requests took.", ["path"], buckets=_SECONDS, registry=self._registry
        )
        self.forecasts = Counter(
            "foretell_forecasts", "Forecasts, at hand or looked up and priced.", ["how"], registry=self._registry
        )

    def watch(self, name: str, help: str, read: Callable[[], float]) -> None:
        """A number that is read when it is asked for."""
        Gauge(name, help, registry=self._registry).set_function(read)

    def text(self) -> bytes:
        return generate_latest(self._registry)
