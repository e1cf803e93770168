"""The status page: one table of what was found beside its bar, from saved results, and what is written by hand below it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final

from foretell import __version__
from foretell.errors import InputError
from foretell_bench.tables.figures import Figure

# What was set as a bar where a results file keeps none.
_LEAST_SAME_OPS, _MAX_PLANNER_LOSS, _LEAST_ANSWERS, _MAX_SECONDS = 0.99, 0.10, 500, 60
_PAGES: Final[Mapping[str, str]] = {
    "capture": "internals/capture.md",
    "one device": "accuracy/one-device.md",
    "generated networks": "accuracy/generated.md",
    "compiled steps": "accuracy/compiled.md",
    "other devices": "accuracy/other-devices.md",
    "a few step times": "accuracy/transfer.md",
    "several devices": "accuracy/distributed.md",
    "published jobs": "accuracy/published.md",
    "scripts": "accuracy/scripts.md",
    "planner": "accuracy/planner.md",
    "planner's speed": "guide/planning.md",
    "service": "guide/serving.md",
}
_HEAD: Final = f"""# Status

What Foretell {__version__} was measured to be good for; what misses the bar that was set is bold. The pages say how.
`foretell bench status --page docs/status.md` writes this page from `bench/results`.

| metric | value | bar | page |
|---|---|---|---|
"""


def write_page(page: Path, results: Path, notes: Path) -> None:
    try:
        page.write_text(status_page(results, notes.read_text(encoding="utf-8")), encoding="utf-8")
    except OSError as error:
        raise InputError(f"{error.filename} cannot be read or written: {error.strerror}. Check the path.") from None


def status_page(results: Path, notes: str) -> str:
    rows = [_row(room, figure) for room in _PAGES for figure in _FIGURES[room](results)]
    return _HEAD + "".join(rows) + "\n" + notes.partition("\n\n")[2]  # without the notes' own title


def _row(room: str, figure: Figure) -> str:
    shown, bar = _shown(figure, figure.value), "" if figure.bar is None else _shown(figure, figure.bar)
    if figure.met is False:
        shown = f"**{shown}**"
    if bar:
        bar = f"{'≥' if figure.at_least else '≤'} {bar}"
    return f"| {figure.source}: {figure.measure} | {shown} | {bar} | [{room}]({_PAGES[room]}) |\n"


def _shown(figure: Figure, value: float | None) -> str:
    """A share, unless the note names a unit."""
    return "–" if value is None else f"{value:,.0f} {figure.note}" if figure.note else f"{value:.1%}"


def _with_bars(figures: Iterator[Figure]) -> Iterator[Figure]:
    return (replace(figure, note="") for figure in figures if figure.bar is not None)


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _capture(results: Path) -> Iterator[Figure]:
    steps = _read(results / "sequences.json")
    same = sum(step["same"] for step in steps) / sum(max(step["recorded"], step["captured"]) for step in steps)
    measure = "are those that CUDA ran, in order"
    yield Figure(source="captured ops", measure=measure, value=same, bar=_LEAST_SAME_OPS, at_least=True)
    coverage = (results / "capture_coverage.jsonl").read_text(encoding="utf-8").splitlines()
    done = sum(json.loads(line)["ok"] for line in coverage) / len(coverage)
    yield Figure(source="named architectures", measure=f"captured, of {len(coverage):,}", value=done)


def _one_device(results: Path) -> Iterator[Figure]:
    from foretell_bench.tables import accuracy

    unseen, moves = accuracy.read(results / "accuracy.json")
    figures = accuracy.figures(unseen.steps, moves)
    yield from _with_bars(iter(figures))
    yield from (figure for figure in figures if figure.source in ("device interval", "step interval"))


def _generated(results: Path) -> Iterator[Figure]:
    from foretell_bench.tables import generated

    return _with_bars(iter(generated.figures(generated.read(results / "generated.json"))))


def _compiled(results: Path) -> Iterator[Figure]:
    from foretell_bench.tables import compiled

    for name in ("compiled_later.json", "compiled_blind.json", "compiled.json"):
        yield from _with_bars(compiled.figures(compiled.read(results / name)))


def _other_devices(results: Path) -> Iterator[Figure]:
    from foretell_bench.tables import devices

    return _with_bars(iter(devices.bars(devices.read(results / "devices.json"))))


def _few_step_times(results: Path) -> Iterator[Figure]:
    """After 20 random step times, or after 50 where the bar is there."""
    from foretell_bench.tables import tailoring, transfer

    for figure in _with_bars(iter(tailoring.figures(transfer.read(results / "transfer.json").lines))):
        if figure.measure.startswith(("profile, 20 random", "profile, 50 random")):
            yield figure


def _several_devices(results: Path) -> Iterator[Figure]:
    from foretell_bench.tables import distributed

    found = distributed.read(results / "distributed.json")
    return _with_bars(figure for each in found for figure in each.figures)


def _published(results: Path) -> Iterator[Figure]:
    from foretell_bench.tables import published

    return _with_bars(iter(published.figures(published.read(results / "published.json"))))


def _scripts(results: Path) -> Iterator[Figure]:
    jobs = _read(results / "scripts.json").values()
    for key, what in (("step", "step time"), ("allocated", "memory allocated"), ("reserved", "memory reserved")):
        errors = [abs(job[key] / job["measured"][key] - 1) for job in jobs]
        for name, over in (("mean", fmean), ("median", median)):
            yield Figure(source=f"{len(errors)} jobs of scripts", measure=f"{what}, {name} error", value=over(errors))


def _planner(results: Path) -> Iterator[Figure]:
    from foretell_bench.tables import planner

    for mean in planner.summaries(planner.read(results / "planner.json")):
        if mean.of in ("1 B", "8 B"):
            measure = "throughput that its choice loses to the best, with no run"
            yield Figure(source=f"Llama of {mean.of}", measure=measure, value=mean.loss, bar=_MAX_PLANNER_LOSS)


def _planner_speed(results: Path) -> Iterator[Figure]:
    for search in _read(results / "planner_speed.json"):
        if search["candidates"] >= 10_000:
            measure = f"up to {search['up_to']} devices, {search['workers']} cores"
            bar = _MAX_SECONDS if search["candidates"] < 20_000 else None
            source = f"{search['candidates']:,} candidates"
            yield Figure(source=source, measure=measure, value=search["wall_seconds"], bar=bar, note="s")


def _service(results: Path) -> Iterator[Figure]:
    load = _read(results / "service.json")["load"]
    cached, new = load["cached"]["per second"], load["uncached"]["p99 ms"]
    source = f"{load['clients']} clients"
    yield Figure(
        source=source, measure="answers at hand", value=cached, bar=_LEAST_ANSWERS, at_least=True, note="per second"
    )
    yield Figure(source=source, measure="new questions, 99th percentile", value=new, bar=300, note="ms")


_FIGURES: Final = {
    "capture": _capture,
    "one device": _one_device,
    "generated networks": _generated,
    "compiled steps": _compiled,
    "other devices": _other_devices,
    "a few step times": _few_step_times,
    "several devices": _several_devices,
    "published jobs": _published,
    "scripts": _scripts,
    "planner": _planner,
    "planner's speed": _planner_speed,
    "service": _service,
}
