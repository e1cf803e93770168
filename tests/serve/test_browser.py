"""A person's whole path through the pages in a real Chromium, at three widths, with nothing on the console."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

from foretell.graph import Graph
from foretell.serve.access.keys import make_key
from foretell.serve.client import Client
from foretell.serve.database.connect import Database
from foretell.serve.inference_engine import InferenceEngine
from tests.serve.accessible import AXE, serious
from tests.serve.browser import Browser
from tests.serve.conftest import BASES, listening

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
WIDTHS = (1280, 820, 390)
PLACES = (
    "/", "/planner", "/history", "/history?kind=plans", "/history?kind=jobs", "/devices?compare=h200&compare=l40s", "/accuracy",
    "/docs",
)  # fmt: skip
pytestmark = [pytest.mark.nightly, pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium")]


def test_from_a_file_to_a_plan(address: str, tmp_path: Path) -> None:
    assert CHROMIUM is not None
    with Browser(CHROMIUM, tmp_path / "profile") as person:
        person.resize(WIDTHS[0])
        person.go(address)
        person.click("[name=way][value=file]")
        person.choose_file("[name=file]", BASES / "cnn.graph")
        assert "cnn.graph" in person.text()
        person.evaluate("document.querySelector('[name=nodes]:checked').focus()")
        person.press("ArrowRight")  # two nodes, by keyboard
        person.wait("document.querySelector('.sum').innerText.includes('2x8xh100-sxm')")
        person.click("form.ask button")
        person.wait("location.pathname.startsWith('/forecasts/')")
        shared = person.evaluate("location.href")
        for said in ("Step time", "Where the step goes", "Timeline", "Resources over the step", "Memory over the step"):
            assert said in person.text()

        person.click(".zoom a")  # the middle of the step
        person.wait("Number(document.querySelector('.zoom').dataset.begin) === 0.25")
        person.evaluate("document.querySelector('#timeline-0').scrollIntoView({block: 'center'})")
        box = person.evaluate(
            "(({x, y, width}) => [x, y, width])(document.querySelector('#timeline-0 svg').getBoundingClientRect())"
        )
        person.drag((box[0] + box[2] * 0.5, box[1] + 40), (box[0] + box[2] * 0.7, box[1] + 40))
        person.wait("Number(document.querySelector('.zoom').dataset.begin) > 0.25")
        person.click("#scaling button")
        person.wait("document.querySelectorAll('#scaling figure').length === 3")

        person.go(f"{address}/ask?graph={'0' * 64}&on=h200")
        assert "There is no graph" in person.text()
        for width in WIDTHS:
            person.resize(width, dark=width == WIDTHS[1])
            for place in (*PLACES, shared):
                person.go(place if place == shared else address + place)
                assert person.too_wide() == [], (place, width)
                assert not person.evaluate("document.documentElement.scrollWidth > innerWidth"), (place, width)
                assert serious(person) == [], (place, width)

        person.go(f"{address}/planner")
        person.click("[name=way][value=kept]")
        person.click("[name=gpus][value=h100-sxm]")
        person.fill("[name=samples]", "1e6")
        person.fill("[name=max_devices]", "2")
        person.click("form.ask button")
        person.wait("location.pathname.startsWith('/jobs/') && document.querySelector('svg a')")
        person.wait("document.querySelector('#files [name=tool]')")  # to hand the plan over
        assert serious(person) == []
        file = person.evaluate(
            "fetch(`${location.pathname}/files?tool=torchrun&command=train.py`).then((answer) => answer.text())"
        )
        assert "torchrun" in file
        person.evaluate(
            "document.querySelector('svg a').dispatchEvent(new MouseEvent('click', {bubbles: true, cancelable: true}))"
        )
        person.wait("document.querySelector('tr:has(:target)')")
        person.click("tr:has(:target) a")
        person.wait("location.pathname.startsWith('/forecasts/')")
        assert [said for said in person.console if "404" not in said] == []


@pytest.mark.parametrize("width", [1280, 390])
def test_to_compare_to_look_back_and_to_find_devices(address: str, tmp_path: Path, width: int) -> None:
    assert CHROMIUM is not None
    with Browser(CHROMIUM, tmp_path / "profile") as person:
        person.resize(width)
        person.go(address)
        person.click("[name=way][value=file]")
        person.choose_file("[name=file]", BASES / "cnn.graph")
        person.click("#hardware summary")
        person.fill("[name=on]", "h200 8xh100-sxm l40s")
        person.click("fieldset:last-of-type summary")
        person.fill("[name=trainer]", "lightning")
        person.click("form.ask button")
        person.wait("location.pathname === '/compare' && document.querySelectorAll('svg .interval').length === 3")
        assert serious(person) == []
        person.go(f"{address}/history")
        person.click("tbody tr:nth-child(1) [name=forecast]")
        person.click("tbody tr:nth-child(2) [name=forecast]")
        person.click("form button")
        person.wait("location.pathname === '/compare' && document.querySelectorAll('svg .interval').length === 2")
        person.click("td.name a")
        person.wait("location.pathname.startsWith('/forecasts/')")
        person.click(".links a")  # change the question: what was written is still there
        person.wait("document.querySelector('[name=trainer]')?.value === 'lightning'")
        person.go(f"{address}/devices")
        person.fill("[name=find]", "h200")
        person.wait(
            "document.querySelectorAll('#catalog tbody tr').length < 10 && location.search.includes('find=h200')"
        )
        person.click("#catalog th a")
        person.wait("location.search.includes('sort=name') && location.search.includes('find=h200')")
        assert person.console == []


@pytest.mark.skipif(AXE not in os.environ, reason=f"${AXE} names no axe.min.js (npm install axe-core)")
@pytest.mark.parametrize("width", [1280, 390])
def test_axe_finds_nothing_serious(address: str, tmp_path: Path, width: int) -> None:
    """Every kind of page, light and dark; what a forecast and a comparison show, too."""
    assert CHROMIUM is not None
    with Client(address) as service:
        graph = service.send_graph(Graph.load(BASES / "cnn.graph"))
    asked = (
        f"/ask?graph={graph}&on=8xh100-sxm&plan=dp=8",
        f"/compare?graph={graph}&on=h200&on=l40s",
        "/signin",
        "/nothing",
    )
    with Browser(CHROMIUM, tmp_path / "profile") as person:
        for dark in (False, True):
            person.resize(width, dark=dark)
            for place in (*PLACES, *asked):
                person.go(address + place)
                assert serious(person) == [], (place, dark)


def test_signing_in_and_out(engine: InferenceEngine, tmp_path: Path) -> None:
    """By plain forms, whose origin a browser has to name."""
    assert CHROMIUM is not None
    url = f"sqlite:///{tmp_path}/a.sqlite"
    key = make_key(Database(url), "research", "member")
    with listening(url, engine) as address, Browser(CHROMIUM, tmp_path / "profile") as person:
        person.go(f"{address}/history?shared=1")
        person.fill("[name=key]", "ftl_wrong")
        person.press("Enter")
        person.wait("document.body.innerText.includes('This key is not in use')")
        assert serious(person) == []
        person.fill("[name=key]", key)
        person.press("Enter")
        person.wait("location.search === '?shared=1' && document.querySelector('.who').innerText.includes('research')")
        person.click(".who button")
        person.wait("document.body.innerText.includes('Show a key')")
