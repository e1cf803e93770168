"""A team's own hardware, posted to a service and then asked for: a file of the catalog by a stranger, in one request."""

from __future__ import annotations

import random
import tomllib
from typing import Any, Final

from foretell.errors import InputError
from foretell.serve.listener.catalog import DeviceRequest
from tests.fuzz.answers import check_finite
from tests.fuzz.harness import Nonsense
from tests.fuzz.mutate import VALUES, damaged
from tests.fuzz.targets.catalog import spoil, text_of, written
from tests.fuzz.targets.service import check, client

QUICK_WEIGHT = 0.5
EXAMPLE: Final[str] = DeviceRequest.model_json_schema()["examples"][0]["toml"]
NAMES: Final = (
    "x39",
    "x39",
    "x39",
    "x39",
    "h200",
    "2xh200",
    "a/b",
    "../x",
    "",
    "X39",
    "a b",
    "x" * 300,
    "1",
    "x39@ib-400g",
    "é",
)
PLACES: Final = (("x39", "dp=1"), ("2xx39", "dp=2"), ("4x2xx39", "dp=8,zero=3"), ("x39+h200", "dp=2"))


def make(rng: random.Random) -> bytes:
    """The name, and after it the file."""
    text = rng.choice((EXAMPLE, EXAMPLE, text_of("devices/h200")))
    odd = rng.choice((*NAMES, str(rng.choice(VALUES))[:300]))
    name = (odd if rng.random() < 0.15 else "x39").encode("utf-8", "replace").replace(b"\n", b"?")
    if rng.random() < 0.15:
        return name + b"\n" + damaged(rng, text.encode())
    data: dict[str, Any] = tomllib.loads(text)
    for _ in range(rng.choice((0, 1, 1, 2, 4))):
        spoil(rng, data)
    return name + b"\n" + "\n".join(written(data)).encode("utf-8", "replace")


def prepare() -> None:
    client()


def use(data: bytes, rng: random.Random) -> None:
    asks, graph = client()
    name, _, text = data.decode("utf-8", "replace").partition("\n")
    added = asks.post("/v1/devices", json={"name": name, "toml": text})
    check(added)
    try:
        check_finite(added.json())
        on, plan = rng.choice(PLACES)
        asked = {"graph": graph, "on": on.replace("x39", name), "plan": plan, "model": "roofline"}
        answers = [asks.post("/v1/forecasts", json=asked)]
        answers += [asks.get(place, params={"compare": name, "device": name}) for place in ("/devices", "/picture")]
        for answer in answers:
            _look_at(answer)
    finally:
        if asks.delete(f"/v1/devices/{name}").status_code != 204:
            raise Nonsense(f"a device {name!r} was added and cannot be removed")


def _look_at(answer: Any) -> None:
    try:
        check(answer)
    except InputError:
        return  # it is there, and this question is refused
    if answer.headers["content-type"].startswith("application/json"):
        check_finite(answer.json())
        if not answer.json()["step_time"]["seconds"] > 0:
            raise Nonsense("a step takes no time")
