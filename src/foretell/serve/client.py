"""A client of the service: captures here, where the code is, and sends the graph. httpx is known here alone."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final, Self
from urllib.parse import quote

import httpx

from foretell.errors import ForetellError, InputError
from foretell.forecasting.conditions import Conditions
from foretell.forecasting.job import JobLength
from foretell.graph import Graph
from foretell.plans import Plan
from foretell.units import Bytes, Seconds
from foretell.workload import Workload

_AGAIN: Final[Seconds] = 1.0


class ServiceError(InputError):
    """The service refused, or could not be asked."""


class Client:
    """Asks one service. Use it in a `with`, or close it.

    Args:
        url: The service's address.
        key: Of a team; None: $FORETELL_KEY.
        timeout: Seconds to wait for an answer.

    Raises:
        InputError: No address, no service there, or a question it refuses.

    Examples:
        >>> with foretell.Client("http://127.0.0.1:8760") as service:  # doctest: +SKIP
        ...     service.forecast("torchvision/resnet50", on="8xh100-sxm")["memory"]["fits"]
        True
    """

    def __init__(self, url: str, key: str | None = None, *, timeout: Seconds = 120.0) -> None:
        key = key or os.environ.get("FORETELL_KEY")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        try:
            self._http = httpx.Client(base_url=url, headers=headers, timeout=timeout)
        except (httpx.InvalidURL, UnicodeEncodeError) as error:
            raise ServiceError(
                f"{url!r} is no address of a service: {error}. Write it like http://127.0.0.1:8760."
            ) from None
        self._sent: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def send_graph(self, graph: Graph) -> str:
        """Its content hash, once the service has it; what it has is not sent again."""
        name = graph.content_hash
        if name not in self._sent and self._http_get(f"/v1/graphs/{name}").status_code != httpx.codes.OK:
            self._ask("POST", "/v1/graphs", content=graph.to_bytes())
        self._sent.add(name)
        return name

    def forecast(
        self,
        workload: Workload | Graph | str,
        on: str,
        plan: Plan | str | None = None,
        *,
        settings: Mapping[str, Any] | None = None,
        model: str | None = None,
        profile: str | None = None,
        conditions: Conditions | None = None,
        job: JobLength | None = None,
    ) -> dict[str, Any]:
        """As `foretell.forecast(…).to_dict()`. A Workload or a SOURCE is captured on this machine."""
        question: dict[str, Any] = self._about(workload, on, plan, settings)
        if conditions is not None:
            question["conditions"] = dataclasses.asdict(conditions)
        if job is not None:
            question["job"] = dataclasses.asdict(job)
        question |= {name: value for name, value in (("model", model), ("profile", profile)) if value is not None}
        answer: dict[str, Any] = self._ask("POST", "/v1/forecasts", json=question)
        return answer

    def methods(self) -> list[dict[str, Any]]:
        """Fitted methods that the service answers by."""
        found: list[dict[str, Any]] = self._ask("GET", "/v1/methods")
        return found

    def predict(
        self,
        method: str,
        workload: Workload | Graph | str,
        on: str,
        plan: Plan | str | None = None,
        *,
        settings: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """What a fitted method says of a step, with the name that `methods` lists."""
        question = self._about(workload, on, plan, settings)
        found: dict[str, Any] = self._ask("POST", f"/v1/methods/{quote(method, safe='')}/predictions", json=question)
        return found

    def measured(
        self,
        workload: Workload | Graph | str,
        on: str,
        plan: Plan | str | None = None,
        *,
        seconds: Seconds,
        allocated: Bytes | None = None,
        reserved: Bytes | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Tell the service what a step took; it answers with what was predicted."""
        question = self._about(workload, on, plan, settings)
        question |= {"seconds": seconds, "allocated": allocated, "reserved": reserved}
        answer: dict[str, Any] = self._ask("POST", "/v1/measurements", json=question)
        return answer

    def plans(
        self, workload: Workload | Graph | str, *, settings: Mapping[str, Any] | None = None, **question: Any
    ) -> str:
        """Ask for a search as `foretell.plan` does it, with what POST /v1/plans takes; the id of its job."""
        return self._begin("plans", workload, settings, question)

    def scale(
        self, workload: Workload | Graph | str, *, settings: Mapping[str, Any] | None = None, **question: Any
    ) -> str:
        """Ask for forecasts on more and more devices, with what POST /v1/scales takes; the id of the job."""
        return self._begin("scales", workload, settings, question)

    def adapt(self, device: str, name: str) -> str:
        """Ask for a profile of this name, fitted on the steps that were measured on a device; the id of the job."""
        return str(self._ask("POST", "/v1/profiles", json={"device": device, "name": name})["id"])

    def drift(self) -> list[dict[str, Any]]:
        """Whether forecasts still hold for what was measured."""
        return self._list("drift")

    def events(self, job: str) -> Iterator[dict[str, Any]]:
        """What happens to a job, until it has ended; a stream that breaks off is taken up again."""
        seen = 0
        while True:
            try:
                with self._http.stream("GET", f"/v1/jobs/{job}/events", headers={"Last-Event-ID": str(seen)}) as stream:
                    if not stream.is_success:
                        stream.read()
                        raise _error(stream)
                    for line in stream.iter_lines():
                        if line.startswith("data: "):
                            event: dict[str, Any] = json.loads(line.removeprefix("data: "))
                            seen = event["changes"]
                            yield event
                            if event["ended"] is not None:
                                return
            except httpx.TransportError:
                time.sleep(_AGAIN)
                self._ask("GET", f"/v1/jobs/{job}")

    def result(self, job: str) -> Any:
        """Of a job, once it is done; it is waited for."""
        for _ in self.events(job):
            pass
        return self._ask("GET", f"/v1/jobs/{job}/result")

    def cancel(self, job: str) -> dict[str, Any]:
        found: dict[str, Any] = self._ask("DELETE", f"/v1/jobs/{job}")
        return found

    def resume(self, job: str) -> dict[str, Any]:
        found: dict[str, Any] = self._ask("POST", f"/v1/jobs/{job}/resume")
        return found

    def jobs(self) -> list[dict[str, Any]]:
        return self._list("jobs")

    def devices(self) -> list[dict[str, Any]]:
        return self._list("devices")

    def models(self) -> list[dict[str, Any]]:
        return self._list("models")

    def profiles(self) -> list[dict[str, Any]]:
        return self._list("profiles")

    def graphs(self) -> list[dict[str, Any]]:
        return self._list("graphs")

    def forecasts(self) -> list[dict[str, Any]]:
        return self._list("forecasts")

    def measurements(self) -> list[dict[str, Any]]:
        return self._list("measurements")

    def _about(
        self, workload: Workload | Graph | str, on: str, plan: Plan | str | None, settings: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        return {"graph": self._graph(workload, settings), "on": on, "plan": None if plan is None else str(plan)}

    def _graph(self, workload: Workload | Graph | str, settings: Mapping[str, Any] | None) -> str:
        from foretell.capture import capture

        return self.send_graph(capture(workload, settings))

    def _begin(
        self,
        what: str,
        workload: Workload | Graph | str,
        settings: Mapping[str, Any] | None,
        question: Mapping[str, Any],
    ) -> str:
        accepted = self._ask("POST", f"/v1/{what}", json={"graph": self._graph(workload, settings), **question})
        return str(accepted["id"])

    def _list(self, what: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._ask("GET", f"/v1/{what}")
        return found

    def _http_get(self, path: str) -> httpx.Response:
        return self._send("GET", path)

    def _ask(self, method: str, path: str, **body: Any) -> Any:
        answer = self._send(method, path, **body)
        if answer.is_success:
            return answer.json()
        raise _error(answer)

    def _send(self, method: str, path: str, **body: Any) -> httpx.Response:
        try:
            return self._http.request(method, path, **body)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ServiceError(
                f"the service at {self._http.base_url} cannot be asked: {error}. Is it running? Start one: foretell serve"
            ) from None


def _error(answer: httpx.Response) -> ForetellError:
    try:
        problem = answer.json()
        return ServiceError(f"{problem['what']} {problem['next']}")
    except (ValueError, KeyError, TypeError):
        return ServiceError(f"the service answered {answer.status_code} without a reason. Is it a Foretell service?")
