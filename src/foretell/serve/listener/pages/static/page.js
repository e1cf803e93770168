// What the pages do beyond links, forms and htmx: the name of a dropped file, tables to scroll, and a part of the timeline chosen by dragging.
"use strict";

document.addEventListener("change", (event) => {
  const input = event.target;
  if (input.matches(".drop input") && input.files.length) {
    input.parentElement.querySelector("span").textContent = input.files[0].name;
  }
});
for (const [kind, over] of [["dragover", true], ["dragleave", false], ["drop", false]]) {
  document.addEventListener(kind, (event) => event.target.closest?.(".drop")?.classList.toggle("over", over));
}

// A table that is wider than its place can be scrolled by keyboard.
const reachable = () => {
  for (const place of document.querySelectorAll(".scroll")) {
    if (place.scrollWidth > place.clientWidth + 1) place.tabIndex = 0;
    else place.removeAttribute("tabindex");
  }
};
for (const kind of ["DOMContentLoaded", "htmx:afterSettle"]) document.addEventListener(kind, reachable);
addEventListener("resize", reachable);

// The drawing's labels are on the left; shares of the step begin after them.
const LABELS = 92;
let drag = null;

const shareAt = (svg, x) => {
  const box = svg.getBoundingClientRect(), width = svg.viewBox.baseVal.width;
  const at = ((x - box.left) / box.width) * width;
  return Math.min(Math.max((at - LABELS) / (width - LABELS), 0), 1);
};
const show = (place, begin, end) => {
  const now = place.querySelector(".zoom").dataset, from = Number(now.begin), width = Number(now.end) - from;
  const query = `begin=${(from + begin * width).toFixed(9)}&end=${(from + end * width).toFixed(9)}`;
  htmx.ajax("GET", `${now.part}?${query}`, { target: place, swap: "innerHTML" });
};

document.addEventListener("pointerdown", (event) => {
  const svg = event.target.closest?.("[id^=timeline-] svg"), place = svg?.closest("[id^=timeline-]:not(svg *)");
  if (!svg || event.button !== 0 || !place.querySelector(".zoom")) return;
  const mark = document.createElementNS("http://www.w3.org/2000/svg", "rect");
  mark.setAttribute("class", "chosen");
  mark.setAttribute("height", svg.viewBox.baseVal.height);
  svg.append(mark);
  drag = { svg, place, mark, from: shareAt(svg, event.clientX) };
});
document.addEventListener("pointermove", (event) => {
  if (!drag) return;
  const to = shareAt(drag.svg, event.clientX), width = drag.svg.viewBox.baseVal.width - LABELS;
  drag.mark.setAttribute("x", LABELS + Math.min(drag.from, to) * width);
  drag.mark.setAttribute("width", Math.abs(to - drag.from) * width);
});
document.addEventListener("pointerup", (event) => {
  if (!drag) return;
  const { svg, place, mark, from } = drag, to = shareAt(svg, event.clientX);
  drag = null;
  mark.remove();
  if (Math.abs(to - from) > 0.01) show(place, Math.min(from, to), Math.max(from, to));
});
document.addEventListener("pointercancel", () => { drag?.mark.remove(); drag = null; });
