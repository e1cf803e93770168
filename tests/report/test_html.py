"""The HTML report: self-contained, escaped, and opened in a real browser at the widths of a desk and of a phone."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from foretell.errors import InputError
from foretell.graph import Caveat
from foretell.report.charts import byte_ticks
from foretell.report.html import page, write_html
from foretell.units import GIB, MIB
from tests.report.examples import small_forecast

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--enable-logging=stderr", "--virtual-time-budget=3000",
)  # fmt: skip
HOSTILE = "<script>window.ran = true</script><img src=x onerror='window.ran = true'>"
VOID = {"meta", "link", "br"}

# A frame of the wanted width: headless windows do not get as narrow as a phone.
PROBE = """<!doctype html><meta charset=utf-8><body><script>
const pages = %s, found = [];
for (const [name, text, width] of pages) {
  const frame = document.createElement("iframe");
  frame.style = `border:0;height:800px;width:${width}px`;
  frame.srcdoc = text;
  frame.onload = () => {
    const page = frame.contentDocument, root = page.documentElement;
    const inside = (e) => e.closest(".scroll") !== null || e.closest("svg") !== null;
    const tooWide = [...page.body.querySelectorAll("*")].filter(
      (e) => !inside(e) && e.getBoundingClientRect().right > width + 1).map((e) => e.tagName + "." + e.className);
    found.push({name, width, scrolls: root.scrollWidth > root.clientWidth, tooWide,
      ran: frame.contentWindow.ran === true, text: page.body.innerText, title: page.title,
      charts: [...page.querySelectorAll("svg[role=img]")].filter((e) => e.getBoundingClientRect().width > 0).length});
    if (found.length === pages.length) {
      const out = document.createElement("pre");
      out.id = "found";
      out.textContent = JSON.stringify(found);
      document.body.replaceChildren(out);
    }
  };
  document.body.append(frame);
}
</script>"""


class _Balance(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_page_is_balanced_and_asks_nothing_of_the_network() -> None:
    text = page([small_forecast(), small_forecast(capacity=GIB)])
    balance = _Balance()
    balance.feed(text)
    assert balance.open == []
    assert not re.search(r"https?:|@import|url\(|<script|<iframe|<object", text)
    assert set(re.findall(r'(?:src|href)="([^#][^"]*)"', text)) == {"data:,"}
    ids = re.findall(r' id="([^"]+)"', text)
    assert len(ids) == len(set(ids))


def test_every_chart_has_a_title_and_a_description() -> None:
    text = page([small_forecast()])
    charts = re.findall(r"<svg [^>]*role=\"img\".*?</svg>", text, re.DOTALL)
    assert len(charts) == 10  # five, each for two widths
    for chart in charts:
        labels = re.search(r'aria-labelledby="(\S+) (\S+)"', chart)
        assert labels is not None
        assert f'<title id="{labels[1]}">' in chart
        assert f'<desc id="{labels[2]}">' in chart


def test_user_text_is_escaped() -> None:
    text = page([small_forecast(name=HOSTILE, cluster=HOSTILE, plan=HOSTILE, caveats=(Caveat(HOSTILE, HOSTILE),))])
    assert HOSTILE not in text
    assert "<script" not in text
    assert "<img" not in text
    assert html.escape(HOSTILE) in text


def test_report_that_cannot_be_written_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written"):
        write_html([small_forecast()], tmp_path / "missing" / "report.html")
    with pytest.raises(InputError, match="at least one"):
        page([])


@pytest.mark.parametrize("most", [3, 700, 5 * MIB, 714 * MIB, 80 * GIB, 3000 * GIB])
def test_ticks_are_few_and_within(most: int) -> None:
    ticks = byte_ticks(most)
    assert ticks[0] == 0
    assert ticks[-1] <= most
    assert 2 <= len(ticks) <= 7


@pytest.mark.nightly
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed to open the report in")
def test_report_in_a_browser(tmp_path: Path) -> None:
    write_html([small_forecast()], tmp_path / "fits.html")
    write_html([small_forecast(name=HOSTILE, cluster="2xl4", capacity=GIB)], tmp_path / "over.html")
    write_html(
        [small_forecast(), small_forecast(cluster="16x8xh100-sxm@ib-400g", capacity=GIB)], tmp_path / "both.html"
    )
    pages = [(n, (tmp_path / f"{n}.html").read_text(), w) for n in ("fits", "over", "both") for w in (1280, 390)]
    probe = tmp_path / "probe.html"
    probe.write_text(PROBE % json.dumps(pages).replace("<", "\\u003c"), encoding="utf-8")
    dom, console = _open(probe, tmp_path)
    assert console == []
    answer = re.search(r'<pre id="found">(.*?)</pre>', dom, re.DOTALL)
    assert answer is not None, "the pages did not load"
    found = json.loads(html.unescape(answer[1]))
    assert len(found) == len(pages)
    for seen in found:
        assert not seen["scrolls"], f"{seen['name']} scrolls sideways at {seen['width']} px"
        assert seen["tooWide"] == []
        assert not seen["ran"]
    shown = {seen["name"]: seen for seen in found}
    assert "Fits" in shown["fits"]["text"]
    assert "1.43 GiB of 80 GiB" in shown["fits"]["text"]
    assert "Does not fit" in shown["over"]["text"]
    assert HOSTILE in shown["over"]["text"]
    assert "side by side" in shown["both"]["text"]
    assert shown["fits"]["charts"] == 5
    assert shown["fits"]["title"] == "small-transformer on 8xh100-sxm · Foretell"


def _open(path: Path, folder: Path) -> tuple[str, list[str]]:
    """The page's DOM once it has loaded, and what it wrote to the browser's console."""
    assert CHROMIUM is not None
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={folder / 'profile'}", "--dump-dom", path.as_uri()]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return run.stdout, [line for line in run.stderr.splitlines() if "CONSOLE" in line]
