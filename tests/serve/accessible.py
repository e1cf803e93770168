"""What keeps people from using a page: names that are missing, ids that are twice, letters too pale to read.

`$FORETELL_AXE` names a file `axe.min.js` of axe-core (npm install axe-core), whose serious findings are then listed too.
"""

from __future__ import annotations

import os
from pathlib import Path

from tests.serve.browser import Browser

AXE = "FORETELL_AXE"
_OWN = r"""(() => {
  const found = [], seen = new Set();
  const shown = (e) => e.checkVisibility({visibilityProperty: true, opacityProperty: true});
  const named = (e) => (e.getAttribute("aria-label") || e.innerText || e.title || e.querySelector("title")?.textContent || "").trim();
  const where = (e) => e.outerHTML.slice(0, 120);
  if (!document.documentElement.lang) found.push("no language");
  if (!document.title) found.push("no title");
  if (document.querySelectorAll("h1").length !== 1) found.push("not one h1");
  if (!document.querySelector("main")) found.push("no main");
  for (const e of document.querySelectorAll("[id]")) {
    if (seen.has(e.id)) found.push("id twice: " + e.id);
    seen.add(e.id);
  }
  for (const e of document.querySelectorAll("a[href], button")) if (shown(e) && !named(e)) found.push("no name: " + where(e));
  for (const e of document.querySelectorAll("input:not([type=hidden]), select, textarea")) {
    const label = [...(e.labels || [])].map((l) => l.innerText.trim() || l.textContent.trim()).join("");
    if (!label && !e.getAttribute("aria-label")) found.push("no label: " + where(e));
  }
  const pictures = "img:not([alt]), svg[role=img]:not([aria-labelledby]):not([aria-label])";
  for (const e of document.querySelectorAll(pictures)) found.push("no text: " + where(e));
  for (const e of document.querySelectorAll("*")) {
    const style = getComputedStyle(e), scrolls = ["auto", "scroll"].includes(style.overflowX) && e.scrollWidth > e.clientWidth + 1;
    const reached = e.tabIndex >= 0 || e.querySelector("a[href], button, input, select");
    if (scrolls && shown(e) && !reached) found.push("cannot be scrolled by keyboard: " + where(e));
  }
  const paint = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const colour = (text) => {
    paint.clearRect(0, 0, 1, 1); paint.fillStyle = text; paint.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = paint.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const behind = (e) => {
    for (let at = e; at; at = at.parentElement) {
      const paper = colour(getComputedStyle(at).backgroundColor);
      if (paper[3] > 0.99) return paper;
    }
    return colour(getComputedStyle(document.body).backgroundColor);
  };
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255).map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ratio = (a, b) => { const [x, y] = [light(a), light(b)].sort((p, q) => q - p); return (x + 0.05) / (y + 0.05); };
  const pale = (e, text) => {
    const style = getComputedStyle(e), size = parseFloat(style.fontSize);
    const least = size >= 24 || (size >= 18.6 && Number(style.fontWeight) >= 700) ? 3 : 4.5;
    const got = ratio(colour(text), behind(e));
    if (got < least - 0.05) found.push(`pale, ${got.toFixed(1)} : 1: ` + where(e));
  };
  for (const e of document.querySelectorAll("body *")) {
    if (e.closest("svg") || e.matches("option, datalist, optgroup, :disabled") || !shown(e)) continue;
    if ([...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim())) pale(e, getComputedStyle(e).color);
    if (e.matches("input[placeholder]")) pale(e, getComputedStyle(e, "::placeholder").color);
  }
  return found;
})()"""
_AXE = """axe.run(document, {runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]}).then((found) => found.violations
  .filter((v) => ["serious", "critical"].includes(v.impact))
  .map((v) => "axe " + v.id + ": " + v.nodes.slice(0, 3).map((n) => n.html.slice(0, 160)).join(" | ")))"""


def serious(person: Browser) -> list[str]:
    """Nothing, on a page that all can use."""
    found = list(person.evaluate(_OWN))
    if path := os.environ.get(AXE):
        person.evaluate(Path(path).read_text(encoding="utf-8") + ";0")
        found += person.evaluate(_AXE)
    return found
