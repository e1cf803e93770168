"""An attack on a running service: `python -m tests.fuzz.attack --seed 1`; exits with 1 where one came through.

The service is started as a user does, with keys, in a process of its own. Every address is asked in ways nobody may, markup is
put wherever text is kept, questions ask for the whole machine, requests do not end, processes are killed at work. While this
goes on, a bystander asks whether the service is there, and the memory of the main process is looked at.
"""

from __future__ import annotations

import argparse
import base64
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import psutil

from foretell.graph import Graph
from foretell.serve.access.guard import PATIENCE
from foretell.serve.access.keys import make_key, revoke_key
from foretell.serve.database.connect import Database
from tests.fuzz.targets.catalog import spoil, written
from tests.fuzz.targets.own_device import EXAMPLE

BASES = Path(__file__).parent / "bases"
OPEN = ("/healthz", "/metrics", "/static/", "/openapi.json", "/docs", "/signin", "/signout")  # to anybody
MARK = "<x39 onload=alert(1)>"
LONGEST, LARGEST, SLOWEST = 45.0, 300, 10.0  # seconds of an answer, MiB that the main process may grow, of a bystander
JSON = {"Content-Type": "application/json"}


@dataclass
class Attack:
    """A service, who may ask it, and what came through."""

    address: str
    process: psutil.Process
    database: Database
    rng: random.Random
    keys: dict[str, str]
    ids: dict[str, str] = field(default_factory=dict)
    found: list[str] = field(default_factory=list)
    asked: int = 0
    client: httpx.Client = field(default_factory=lambda: httpx.Client(timeout=120))

    def ask(self, method: str, path: str, who: str | None = "member", **more: Any) -> httpx.Response:
        """What came back; no answer in time, or one that is our fault, has been found."""
        headers = dict(more.pop("headers", {}))
        if who is not None:
            headers.setdefault("Authorization", f"Bearer {self.keys[who]}")
        self.asked += 1
        began = time.monotonic()
        try:
            answer = self.client.request(method, self.address + path, headers=headers, **more)
        except httpx.HTTPError as error:
            answer = httpx.Response(444, text=repr(error))
            self.say("high" if isinstance(error, httpx.TimeoutException) else "low", f"{method} {path[:80]}: {error!r}")
        self.client.cookies.clear()
        if answer.status_code == 500:
            self.say("high", f"{method} {path[:80]} {str(more)[:200]}: {answer.text[:300]}")
        if time.monotonic() - began > LONGEST:
            self.say("high", f"{method} {path[:80]} took {time.monotonic() - began:.0f} s")
        return answer

    def say(self, level: str, what: str) -> None:
        self.found.append(f"{level}: {what}")
        print(self.found[-1], flush=True)


@contextmanager
def service(rng: random.Random) -> Iterator[Attack]:
    with tempfile.TemporaryDirectory(prefix="foretell-attack-") as folder:
        url = f"sqlite:///{folder}/service.sqlite"
        database = Database(url)
        keys = {role: make_key(database, f"team {MARK}", role, MARK) for role in ("reader", "member", "admin")}
        keys["other"] = make_key(database, "other", "admin")
        keys["revoked"] = make_key(database, "other", "admin")
        revoke_key(database, keys["revoked"].split("_")[1])
        keys["guess"] = (
            f"ftl_{rng.randbytes(8).hex()}_{base64.urlsafe_b64encode(rng.randbytes(32)).decode().rstrip('=')}"
        )
        (Path(folder) / "catalog").mkdir()
        line = [sys.executable, "-m", "foretell.cli", "serve", "--port", "0", "--workers", "1", "--database", url]
        own = {"FORETELL_CATALOG": f"{folder}/catalog", "FORETELL_SERVE_RATE": "100000", "HOME": folder}
        process = subprocess.Popen(line, stdout=subprocess.PIPE, text=True, env=os.environ | own)
        try:
            assert process.stdout is not None
            said = re.search(r"http://\S+", process.stdout.readline())
            assert said is not None
            yield Attack(said[0], psutil.Process(process.pid), database, rng, keys)
        finally:
            process.terminate()
            process.wait(60)


def prepare(attack: Attack) -> None:
    graph = replace(Graph.load(BASES / "cnn.graph"), name=f"net {MARK}").to_bytes()
    ids = attack.ids
    ids["graph"] = attack.ask("POST", "/v1/graphs", content=graph).json()["hash"]
    answer = attack.ask("POST", "/v1/forecasts", json={"graph": ids["graph"], "on": "2xh200", "plan": "dp=2"})
    ids["forecast"] = answer.headers["foretell-forecast"]
    ids["job"] = attack.ask("POST", "/v1/scales", json={"graph": ids["graph"], "on": "h200", "up_to": 2}).json()["id"]


def addresses(attack: Attack) -> list[tuple[str, str]]:
    """Every address for programs and for people, with what is really there."""
    described = httpx.get(f"{attack.address}/openapi.json").json()["paths"]
    ids, found = attack.ids, []
    for path, methods in described.items():
        known = ids["graph"] if "{hash}" in path else ids["forecast"] if "forecasts" in path else ids["job"]
        found += [(method.upper(), re.sub(r"\{\w+\}", known, path)) for method in methods]
    pages = (
        "/", "/ask", "/planner", "/history", "/compare", "/devices", "/accuracy", "/docs", f"/forecasts/{ids['forecast']}",
        f"/jobs/{ids['job']}", f"/jobs/{ids['job']}/files", "/names?source=timm/res", "/picture?device=h200&count=2",
    )  # fmt: skip
    found += [("GET", path) for path in pages]
    found += [("POST", path) for path in ("/ask", "/planner", "/devices", f"/jobs/{ids['job']}/cancel")]
    return list(dict.fromkeys(found))


def ways(attack: Attack) -> None:
    """Nine ways of asking that nobody may, at every address."""
    basic = base64.b64encode(b"admin:admin").decode()
    asks: dict[str, tuple[str | None, dict[str, str]]] = {
        "no key": (None, {}),
        "a guess": ("guess", {}),
        "revoked": ("revoked", {}),
        "basic": (None, {"Authorization": f"Basic {basic}"}),
        "empty": (None, {"Authorization": "Bearer"}),
        "long": (None, {"Authorization": f"Bearer {'x' * 7000}"}),
        "cookie": (None, {"Cookie": f"foretell_key={attack.keys['guess']}"}),
        "another site": ("admin", {"Origin": "https://evil.example"}),
        "forwarded": (None, {"X-Forwarded-For": "127.0.0.1", "X-Forwarded-Host": "localhost", "Forwarded": "for=127.0.0.1"}),
    }  # fmt: skip
    for method, path in addresses(attack):
        for name, (who, headers) in asks.items():
            if path.startswith(OPEN) and name != "another site":
                continue
            status = attack.ask(method, path, who, headers=headers, json={} if method == "POST" else None).status_code
            if status < 400:
                attack.say("high", f"{method} {path} answered {status} to {name}")
    for path in ("/v1/graphs/{graph}", "/v1/graphs/{graph}/file", "/v1/forecasts/{forecast}", "/v1/jobs/{job}",
                 "/v1/jobs/{job}/result", "/forecasts/{forecast}", "/jobs/{job}", "/v1/jobs/{job}/events",
                 "/v1/graphs/{graph}/nearest"):  # fmt: skip
        status = attack.ask("GET", path.format(**attack.ids), "other").status_code
        if status != 404:
            attack.say("high", f"another team got {status} at {path}")


def writes(attack: Attack) -> None:
    """What a reader may not do, with and without a trick to be taken for somebody else."""
    ids = attack.ids
    bodies = {
        "/v1/forecasts": {"graph": ids["graph"], "on": "h200"}, "/v1/plans": {"graph": ids["graph"], "samples": 1e6},
        "/v1/scales": {"graph": ids["graph"], "on": "h200", "up_to": 2}, "/v1/captures": {"source": "timm/resnet18"},
        "/v1/profiles": {"device": "h200", "name": "x"}, "/v1/measurements": {"graph": ids["graph"], "on": "h200", "seconds": 1.0},
        f"/v1/jobs/{ids['job']}/resume": {}, "/ask": {}, "/planner": {}, "/devices": {}, f"/jobs/{ids['job']}/cancel": {},
        f"/jobs/{ids['job']}/resume": {}, f"/forecasts/{ids['forecast']}/scaling": {}, "/v1/graphs": {},
    }  # fmt: skip
    tricks = (
        {}, {"X-HTTP-Method-Override": "GET"}, {"X-Original-URL": "/healthz", "X-Rewrite-URL": "/healthz"},
        {"Origin": "null"}, {"Cookie": f"foretell_key={attack.keys['guess']}"},
    )  # fmt: skip
    for path, body in bodies.items():
        for trick in tricks:
            status = attack.ask("POST", path, "reader", json=body, headers=trick).status_code
            if status < 400:
                attack.say("high", f"a reader's POST {path} with {trick} got {status}")
    status = attack.ask("DELETE", f"/v1/jobs/{ids['job']}", "reader").status_code
    if status < 400:
        attack.say("high", f"a reader cancelled a job: {status}")


def markup(attack: Attack) -> None:
    """Markup wherever text comes in; then no page shows it as markup."""
    ids = attack.ids
    device = {"name": "x39", "title": MARK, "vendor": MARK, "architecture": MARK, "size": "48 GiB", "bandwidth": "864 GB/s",
              "l2": "96 MiB", "fp32": "91 TFLOP/s", "bf16": "362 TFLOP/s", "fp16": "362 TFLOP/s", "units": "142", "clock": "2520",
              "watts": "350", "node": "8", "source": MARK, "inside": "pcie-4", "between": "eth-100g", "host": "epyc-turin"}  # fmt: skip
    answers = [
        attack.ask("POST", "/devices", "admin", data=device),
        attack.ask("POST", "/devices", "admin", data=device | {"name": MARK}),
        attack.ask("POST", "/v1/measurements", json={"graph": ids["graph"], "on": MARK, "seconds": 1.0}),
        attack.ask("POST", "/v1/captures", json={"source": f"timm/{MARK}"}),
        attack.ask("POST", "/signin", None, data={"key": MARK, "then": f"/{MARK}"}, headers={"Accept": "text/html"}),
    ]
    places = (
        "/", "/history", "/history?kind=jobs", "/devices", "/devices?compare=x39", "/accuracy", "/planner",
        f"/forecasts/{ids['forecast']}", f"/jobs/{ids['job']}", f"/compare?forecast={ids['forecast']}",
        *(f"/{page}={MARK}" for page in (
            "?on", "ask?graph", "devices?find", "devices?compare", "planner?gpus", "compare?on", "picture?device", "names?source",
            "history?kind", f"forecasts/{ids['forecast']}?begin", "signin?then", f"captures/{ids['job']}?then", "?trainer", "?plan",
        )), f"/{MARK}", f"/forecasts/{MARK}",
    )  # fmt: skip
    answers += [attack.ask("GET", place, headers={"Accept": "text/html"}) for place in places]
    for answer in answers:
        html = answer.headers.get("content-type", "").startswith("text/html")
        if html and "<x39" in answer.text.lower():
            attack.say("high", f"markup at {answer.request.url}")
        if answer.status_code < 400 and "content-security-policy" not in answer.headers:
            attack.say("medium", f"no policy at {answer.request.url}")
    for then in (
        "//evil.example",
        "https://evil.example",
        "/\\evil.example",
        "/%0d%0aSet-Cookie:x=1",
        "javascript:alert(1)",
    ):
        answer = attack.ask("POST", "/signin", None, data={"key": attack.keys["reader"], "then": then})
        place = answer.headers.get("location", "/")
        if (
            not place.startswith("/")
            or place.startswith(("//", "/\\"))
            or any(cookie.startswith("x") for cookie in answer.headers.get_list("set-cookie"))
        ):
            attack.say("high", f"sent to {place} by {then}")


def too_much(attack: Attack) -> None:
    """Questions that ask for the whole machine; numbers of all sizes where a count is meant."""
    graph, rng = attack.ids["graph"], attack.rng
    huge = [rng.choice((2**17, 2**18, 10**6, 2**20, 10**12, 10**40)) for _ in range(6)]
    for n in huge:
        for on, plan in ((f"{n}x1xh100-sxm", f"dp={n}"), (f"{n}xh200", f"dp={n}"), ("h200", f"dp=1,grad_accumulation={n}"),
                         ("8xh200", f"pp=8,grad_accumulation={n}"), (f"4x{n}xl40s", None), (f"2x{n}xt4+h200", None)):  # fmt: skip
            attack.ask("POST", "/v1/forecasts", json={"graph": graph, "on": on, "plan": plan})
    for on, plan in (("131072xh100-sxm", "dp=131072"), ("16384x8xh100-sxm", "dp=16384,tp=8"), ("4096x8xh200", "dp=128,pp=256"),
                     ("16384x1xt4", None), ("+".join(["1xt4", "2xt4"] * 100), None),
                     ("64xh200", "pp=64,grad_accumulation=65536"), ("8xh200", "pp=8,virtual_stages=1000000")):  # fmt: skip
        attack.ask("POST", "/v1/forecasts", json={"graph": graph, "on": on, "plan": plan})
    for text in ("1e400", "NaN", "Infinity", "9" * 5000, "1" + "0" * 400, "-0", "[" * 50_000, '"\\ud800"', "0x10"):
        body = f'{{"graph": "{graph}", "on": "h200", "conditions": {{"jitter": {text}}}}}'
        attack.ask("POST", "/v1/forecasts", content=body.encode(), headers=JSON)
    for _ in range(40):
        job = {"graph": graph, "gpus": ["h200"] * rng.randint(1, 60), "max_devices": rng.choice((0, 16_384, 10**9)),
               "samples": rng.choice((1e300, -1.0, 1.0)), "batches": [rng.choice((1, 10**12))] * rng.randint(0, 60)}  # fmt: skip
        answer = attack.ask("POST", "/v1/plans", json=job)
        if answer.status_code == 202:
            attack.ask("DELETE", f"/v1/jobs/{answer.json()['id']}")
    attack.ask("POST", "/v1/graphs", content=iter([b"x" * 2**20] * 80))
    attack.ask("POST", "/v1/forecasts", content=iter([b" " * 2**16] * 8), headers=JSON)
    for path in ("/picture?device=h200&count=999999999", "/v1/check?on=" + "1xt4%2B" * 100 + "t4", "/v1/forecasts?most=99999999999",
                 "/devices?" + "&".join(["compare=h200"] * 500), "/compare?" + "&".join(["on=h200"] * 500)):  # fmt: skip
        attack.ask("GET", path)


def files(attack: Attack) -> None:
    """Hardware of one's own that lies, asked for before it is taken away; tables of prices as long as they may be."""
    graph, rng = attack.ids["graph"], attack.rng
    for i in range(40):
        data = tomllib.loads(EXAMPLE)
        for _ in range(rng.choice((1, 1, 2, 5))):
            spoil(rng, data)
        text = "\n".join(written(data)).encode("utf-8", "replace").decode()
        if attack.ask("POST", "/v1/devices", "admin", json={"name": f"own{i}", "toml": text}).status_code >= 400:
            continue
        for on, plan in ((f"own{i}", None), (f"64x8xown{i}", "dp=512"), (f"2xown{i}+h200", None)):
            answer = attack.ask("POST", "/v1/forecasts", json={"graph": graph, "on": on, "plan": plan})
            if answer.status_code == 200 and not 0 < answer.json()["step_time"]["seconds"] < float("inf"):
                attack.say("medium", f"a step takes {answer.json()['step_time']} on {text}")
        for path in (f"/picture?device=own{i}&count=999999", f"/devices?compare=own{i}", f"/v1/check?on=own{i}"):
            attack.ask("GET", path, "admin")
        if attack.ask("GET", f"/v1/check?on=own{i}", "other").status_code < 400:
            attack.say("high", f"another team can ask for own{i}")
        if attack.ask("DELETE", f"/v1/devices/own{i}", "admin").status_code != 204:
            attack.say("medium", f"own{i} cannot be removed")
    for text in ("a=" + "[" * 60_000, "a." * 30_000 + "b=1", "[a]\n" * 16_000, "x" * 65_536, "a = 1\n" * 10_000):
        attack.ask("POST", "/v1/devices", "admin", json={"name": "bomb", "toml": text})
    for head, row in (("device,dollars_per_hour", "h200,1"), ("device,dollars_per_hour", "h200,1,2"), (",", ",,,,"),
                      ("InstanceType,AcceleratorName,AcceleratorCount,Price,SpotPrice,Region", "x,H200,1,3,2,a")):  # fmt: skip
        table = "\n".join([head, *[row] * ((200_000 - len(head)) // (len(row) + 1))])
        for _ in range(5):
            job = {"graph": graph, "gpus": ["h200"], "max_devices": 2, "samples": 1e6, "offers": table}
            answer = attack.ask("POST", "/v1/plans", json=job)
            if answer.status_code == 202:
                attack.ask("DELETE", f"/v1/jobs/{answer.json()['id']}")


def paths(attack: Attack) -> None:
    """Out of folders, into SQL, into headers and templates."""
    for text in ("../" * 8 + "etc/passwd", "..%2f" * 8 + "etc%2fpasswd", "%2e%2e/" * 6 + "etc/passwd", "....//etc/passwd", "a%00.css",
                 "'%20OR%201=1--", "';DROP%20TABLE%20keys;--", "{{7*7}}", "${7*7}", "%0d%0aX-Evil:1", "service.css/../../x"):  # fmt: skip
        for place in ("/static/", "/v1/graphs/", "/v1/forecasts/", "/v1/jobs/", "/jobs/", "/forecasts/"):
            answer = attack.ask("GET", place + text)
            if "root:" in answer.text or "x-evil" in answer.headers or answer.status_code < 400:
                attack.say("high", f"GET {place}{text}: {answer.status_code}")
    for field_, value in (("model", "../../../etc"), ("profile", "/etc/passwd"), ("profile", "../x"), ("model", "roofline\0"),
                          ("on", "/etc/passwd"), ("plan", "$(id)"), ("plan", "dp=1;import os")):  # fmt: skip
        body = {"graph": attack.ids["graph"], "on": "h200", field_: value}
        if attack.ask("POST", "/v1/forecasts", json=body).status_code < 400:
            attack.say("high", f"{field_}={value!r} was taken")


def unended(attack: Attack) -> None:
    """Requests that stop in their head, in their body, or never begin: closed within a minute and a half."""
    host, port = attack.address.removeprefix("http://").split(":")
    head = f"POST /v1/forecasts HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {attack.keys['member']}\r\n"
    texts = (b"", b"GET / HT", head.encode(), f"{head}Content-Length: 500\r\n\r\n{{".encode(),
             f"{head}Transfer-Encoding: chunked\r\n\r\n5\r\n{{".encode())  # fmt: skip
    links = []
    for i in range(200):
        link = socket.create_connection((host, int(port)), 10)
        link.sendall(texts[i % len(texts)])
        links.append(link)
    ends = time.monotonic() + PATIENCE + 30
    left = 0
    for link in links:
        link.settimeout(max(ends - time.monotonic(), 0.1))
        with suppress(ConnectionError):
            try:
                while link.recv(65536):
                    pass
            except TimeoutError:
                left += 1
        link.close()
    if left:
        attack.say("medium", f"{left} of 200 requests that did not end were still open after {PATIENCE + 30:.0f} s")


def killed(attack: Attack) -> None:
    """Workers killed at their work: the next question is answered."""
    for i in range(10):
        asking = threading.Thread(
            target=lambda i=i: httpx.post(
                f"{attack.address}/v1/forecasts",
                timeout=120,
                headers={"Authorization": f"Bearer {attack.keys['member']}"},
                json={"graph": attack.ids["graph"], "on": f"{i + 2}xh100-sxm", "conditions": {"jitter": 0.001 * i}},
            )
        )
        asking.start()
        time.sleep(attack.rng.uniform(0, 0.3))
        for child in attack.process.children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                child.send_signal(signal.SIGKILL)
        asking.join()
        answer = attack.ask("POST", "/v1/forecasts", json={"graph": attack.ids["graph"], "on": f"{i + 2}xl40s"})
        if answer.status_code != 200:
            attack.say("medium", f"after a kill: {answer.status_code} {answer.text[:200]}")


CHAPTERS: tuple[Callable[[Attack], None], ...] = (ways, writes, markup, paths, too_much, files, killed, unended)


def watch(attack: Attack, end: threading.Event, seen: dict[str, float]) -> None:
    """A bystander, and the memory of the main process."""
    before = attack.process.memory_info().rss
    while not end.wait(0.5):
        began = time.monotonic()
        with suppress(httpx.HTTPError):
            httpx.get(f"{attack.address}/healthz", timeout=60)
        seen["slowest"] = max(seen.get("slowest", 0.0), time.monotonic() - began)
        seen["grown"] = max(seen.get("grown", 0.0), (attack.process.memory_info().rss - before) / 2**20)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="one chapter")
    asked = parser.parse_args()
    with service(random.Random(asked.seed)) as attack:
        prepare(attack)
        end, seen = threading.Event(), dict[str, float]()
        bystander = threading.Thread(target=watch, args=(attack, end, seen))
        bystander.start()
        for chapter in CHAPTERS:
            if asked.only in (None, chapter.__name__):
                before, began = attack.asked, time.monotonic()
                chapter(attack)
                print(
                    f"{chapter.__name__}: {attack.asked - before} requests, {time.monotonic() - began:.0f} s",
                    flush=True,
                )
        end.set()
        bystander.join()
        if seen.get("slowest", 0.0) > SLOWEST:
            attack.say("high", f"a bystander waited {seen['slowest']:.1f} s")
        if seen.get("grown", 0.0) > LARGEST:
            attack.say("high", f"the main process grew by {seen['grown']:.0f} MiB")
    by = {level: sum(line.startswith(level) for line in attack.found) for level in ("high", "medium", "low")}
    print(f"seed {asked.seed}: {attack.asked} requests, found {by}; a bystander waited {seen.get('slowest', 0.0):.1f} s at most, "
          f"the main process grew by {seen.get('grown', 0.0):.0f} MiB")  # fmt: skip
    return int(bool(by["high"] or by["medium"] > 2))


if __name__ == "__main__":
    sys.exit(main())
