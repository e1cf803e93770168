"""Forecasts as one self-contained HTML file: no network, no scripts, light and dark, every text escaped."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from foretell.errors import InputError
from foretell.forecasting.result import Forecast
from foretell.report import findings
from foretell.report.charts import Lane, memory_over_step, stacked_bars
from foretell.report.findings import Part, show_share
from foretell.report.inspection import facts, module_label
from foretell.report.memory import held
from foretell.report.ops import operators, short_name
from foretell.report.tree import module_tree, outline
from foretell.units import show_bytes, show_seconds

_TOP_OPERATORS = 15
_MODULE_ROWS = 40
_CHART_POINTS = 400
_WIDE, _NARROW = 880, 360  # chart widths in pixels
_ICON = "data:,"  # an empty icon, so that a browser asks for none


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of a table; `kind` is its style classes, `n` for numbers."""

    title: str
    kind: str = ""


def write_html(forecasts: Sequence[Forecast], path: str | os.PathLike[str]) -> None:
    """Write the report of one forecast, or of several with a comparison before them."""
    try:
        Path(path).write_text(page(forecasts), encoding="utf-8")
    except OSError as error:
        raise InputError(f"the report cannot be written to {path}: {error.strerror}. Choose another file.") from None


def page(forecasts: Sequence[Forecast]) -> str:
    from foretell import __version__

    if not forecasts:
        raise InputError("a report needs at least one forecast, got none.")
    style = (Path(__file__).parent / "page.css").read_text(encoding="utf-8")
    workloads = ", ".join(dict.fromkeys(f.workload for f in forecasts))
    alone = len(forecasts) == 1
    body = _chapter(forecasts[0], 0, heading="h1") if alone else _comparison(forecasts, workloads)
    title = f"{workloads} on {forecasts[0].cluster}" if alone else f"{workloads} on {len(forecasts)} clusters"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta name="generator" content="Foretell {escape(__version__)}">\n<link rel="icon" href="{_ICON}">\n'
        f"<title>{escape(title)} · Foretell</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n"
        f'<p class="kind">Foretell forecast</p>\n{body}\n'
        f"<footer>Made by Foretell {escape(__version__)} before the job ran. "
        "Times and memory are of the slowest and heaviest rank.</footer>\n</main>\n</body>\n</html>\n"
    )


def _comparison(forecasts: Sequence[Forecast], workloads: str) -> str:
    able = [f for f in forecasts if f.memory.fits]
    fastest = max(able, key=lambda f: f.throughput.samples_per_second or 0.0, default=None)
    cheapest = min(able, key=lambda f: findings.dollars_per_million_samples(f) or float("inf"), default=None)
    columns = (
        _Column("Cluster", "name"), _Column("Memory"), _Column("Step", "n"), _Column("Samples/s", "n"),
        _Column("$/M samples", "n"), _Column("Bottleneck", "wide-only"),
    )  # fmt: skip
    rows = []
    for number, f in enumerate(forecasts):
        rate, dollars = f.throughput.samples_per_second, findings.dollars_per_million_samples(f)
        fits = '<span class="yes">fits</span>' if f.memory.fits else '<span class="no">does not fit</span>'
        cells = (
            f'<a href="#forecast-{number}">{escape(f.cluster)}</a><small>{escape(f.plan)}</small>',
            f"{fits}<small>{show_bytes(f.memory.total)} of {show_bytes(f.memory.capacity)}</small>",
            show_seconds(f.step_time.seconds),
            "–" if rate is None else _best(findings.show_rate(rate), "fastest" if f is fastest else ""),
            "–" if dollars is None else _best(findings.show_dollars(dollars), "cheapest" if f is cheapest else ""),
            escape(findings.bottleneck(f)),
        )
        rows.append(cells)
    chapters = "\n".join(_chapter(f, number, heading="h2") for number, f in enumerate(forecasts))
    return (
        f'<h1>{escape(workloads)}</h1>\n<p class="soft">One step on {len(forecasts)} clusters, side by side.</p>'
        f"{_table(columns, rows)}\n{chapters}"
    )


def _best(value: str, title: str) -> str:
    return f'<span class="best">{value}</span><small>{title}</small>' if title else value


def _chapter(forecast: Forecast, number: int, *, heading: str) -> str:
    title = escape(forecast.workload if heading == "h1" else forecast.cluster)
    kind = "training" if forecast.graph.training else "inference"
    parts = (
        f'<{heading} id="forecast-{number}">{title}</{heading}>',
        f'<p class="soft">One {kind} step on {escape(forecast.cluster)}, plan {escape(forecast.plan)}</p>',
        _verdict(forecast),
        _step(forecast, number),
        _critical(forecast),
        _memory(forecast, number),
        _memory_over_step(forecast, number),
        _operators(forecast),
        _modules(forecast),
        _caveats(forecast),
        _facts(forecast),
    )
    return "\n".join(parts)


def _verdict(forecast: Forecast) -> str:
    verdict, memory = findings.verdict(forecast), forecast.memory
    rates, cost = findings.throughput_words(forecast), findings.cost_words(forecast)
    interval = findings.show_duration(forecast.step_time).partition(" (")[2].removesuffix(")")
    numbers = [("Step time", show_seconds(forecast.step_time.seconds), [interval or "no interval yet"])]
    if rates:
        numbers.append(("Throughput", rates[0], rates[1:]))
    numbers.append(("Memory, heaviest rank", show_bytes(memory.total), [f"of {show_bytes(memory.capacity)}"]))
    if cost:
        numbers.append(("Cost", cost[0], cost[1:]))
    if job := findings.job_words(forecast):
        numbers.append(("Whole job", job[0], job[1:]))
    cells = "".join(
        f"<div><dt>{label}</dt><dd>{_large(value)}{_small(more)}</dd></div>" for label, value, more in numbers
    )
    return (
        f'<section class="verdict {"fits" if verdict.fits else "over"}"><strong>{verdict.headline}</strong>'
        f'<p>{escape(verdict.sentence)}</p></section>\n<dl class="numbers">{cells}</dl>'
    )


def _large(value: str) -> str:
    number, _, unit = value.partition(" ")
    return f"{escape(number)} <span>{escape(unit)}</span>"


def _small(lines: Sequence[str]) -> str:
    return f"<small>{'<br>'.join(map(escape, lines))}</small>"


def _step(forecast: Forecast, number: int) -> str:
    step = forecast.step_time.seconds
    issuing = min(forecast.host_time.seconds, step)
    device = findings.time_parts(forecast)
    host: tuple[Part, ...] = (
        Part(key="host", label="host issuing ops", amount=issuing),
        Part(key="idle", label="host with nothing to do", amount=step - issuing),
    )
    host = tuple(part for part in host if part.amount > 0)
    lanes = (Lane(label="device", parts=device), Lane(label="host", parts=host))
    charts = [
        stacked_bars(lanes, step, show_seconds, name=f"{name}-{number}", title="Where the step goes", width=width)
        for name, width in (("step", _WIDE), ("step-narrow", _NARROW))
    ]
    said = findings.bottleneck(forecast)
    caption = f"{said[0].upper()}{said[1:]}. The host issues ops for {show_seconds(forecast.host_time.seconds)} of it."
    return _figure("Where the step goes", caption, charts, _legend((*device, *host), step, show_seconds))


def _critical(forecast: Forecast) -> str:
    path = forecast.critical_path
    if not path:
        return ""
    columns = (
        _Column("Module or collective", "name"), _Column("On", "wide-only"), _Column("Time", "n"), _Column("Share", "n"),
        _Column("", "share"),
    )  # fmt: skip
    whole = forecast.timeline.makespan or 1.0
    rows = [
        (
            f"<code>{escape(part.name)}</code>", escape(part.stream), show_seconds(part.seconds),
            show_share(part.seconds / whole), _bar(part.seconds / whole),
        )
        for part in path
    ]  # fmt: skip
    note = "The longest parts of the chain that the end of the step hangs on. To make the step shorter, shorten one of them."
    return f'<h3>Critical path</h3>\n<p class="soft">{note}</p>{_table(columns, rows)}'


def _memory(forecast: Forecast, number: int) -> str:
    memory, parts = forecast.memory, findings.memory_parts(forecast)
    whole = max(memory.capacity, memory.total)
    lanes = (Lane(label="memory", parts=parts),)
    limit = None if memory.fits else Part(key="capacity", label="the device has", amount=memory.capacity)
    charts = [
        stacked_bars(
            lanes, whole, show_bytes, name=f"{name}-{number}", title="Memory at the peak", width=width, limit=limit
        )
        for name, width in (("memory", _WIDE), ("memory-narrow", _NARROW))
    ]
    length = "what a program can use of the device" if memory.fits else "more than the device has"
    caption = (
        f"What the heaviest rank holds when it holds most: {show_bytes(memory.allocated)} allocated, "
        f"{show_bytes(memory.reserved)} reserved by the caching allocator, {show_bytes(memory.total)} in all. "
        f"The bar is {show_bytes(whole)} long, {length}."
    )
    return _figure("Memory at the peak", caption, charts, _legend(parts, whole, show_bytes))


def _memory_over_step(forecast: Forecast, number: int) -> str:
    if not forecast.memory_trace.allocated:
        return ""
    memory, series = forecast.memory, held(forecast, _CHART_POINTS)
    room = memory.capacity - (memory.total - memory.allocated)
    place = findings.peak_place(forecast)
    charts = [
        memory_over_step(series, room=room, place=place, name=f"{name}-{number}", width=width, height=height)
        for name, width, height in (("held", _WIDE, 340), ("held-narrow", _NARROW, 260))
    ]
    caption = (
        f"Bytes allocated after each of the {series.ops:,} ops, in the order the step issues them. Most is held at op "
        f"{series.peak + 1:,}, in {place}. Cache, context and communicator apart, there is "
        + (f"room for {show_bytes(room)}." if room > 0 else "no room at all.")
    )
    keys = "".join(f"<li>{_swatch(layer.key)}{escape(layer.label)}</li>" for layer in series.layers)
    columns = (_Column("Purpose"), _Column("First op", "n"), _Column("Most", "n"), _Column("Last op", "n"))
    rows = [
        (escape(layer.label), *(show_bytes(b) for b in (layer.nbytes[0], max(layer.nbytes), layer.nbytes[-1])))
        for layer in series.layers
    ]
    table = f"<details><summary>As a table</summary>{_table(columns, rows)}</details>"
    return _figure("Memory over the step", caption, charts, f'<ul class="keys">{keys}</ul>{table}')


def _operators(forecast: Forecast) -> str:
    uses = operators(forecast)
    shown = uses[:_TOP_OPERATORS]
    columns = (
        _Column("Operator, and its heaviest call", "name"), _Column("Phase", "wide-only"),
        _Column("Calls", "n wide-only"), _Column("Time", "n"), _Column("Share", "n"), _Column("", "share"),
    )  # fmt: skip
    rows = [
        (
            f"<code>{escape(short_name(use.name))}</code><small>{escape(use.heaviest_module or 'outside modules')}"
            f" · {escape(use.heaviest_shape)}</small>",
            escape(use.phase), f"{use.calls:,}", show_seconds(use.seconds), show_share(use.share), _bar(use.share),
        )
        for use in shown
    ]  # fmt: skip
    note = (
        f"The {len(shown)} most expensive of {len(uses)}, by device time; "
        f"together {show_share(sum(use.share for use in shown))} of it."
    )
    return f'<h3>Top operators</h3>\n<p class="soft">{note}</p>{_table(columns, rows)}'


def _modules(forecast: Forecast) -> str:
    root = module_tree(forecast)
    columns = (
        _Column("Module", "name"), _Column("Time", "n"), _Column("Forward", "n wide-only"),
        _Column("Backward", "n wide-only"), _Column("Parameters", "n wide-only"), _Column("Activations", "n"),
        _Column("", "share"),
    )  # fmt: skip
    rows = [
        (
            f'<span style="padding-left:{level * 1.1:.1f}rem">{escape(module_label(module))}</span>',
            show_seconds(module.seconds),
            *(show_seconds(s) if s else "–" for s in (module.forward, module.backward)),
            *(show_bytes(b) if b else "–" for b in (module.parameters, module.activations)),
            _bar(module.seconds / root.seconds if root.seconds else 0.0),
        )
        for level, module in outline(root, _MODULE_ROWS, least_share=0.005)
    ]
    note = (
        "Device time, parameters, and activations held at the peak, added up along the module tree. Equal blocks in a "
        "row are one line, what takes less than half a percent is left out, and the heaviest modules open furthest."
    )
    return f'<h3>Modules</h3>\n<p class="soft">{note}</p>{_table(columns, rows)}'


def _caveats(forecast: Forecast) -> str:
    if not forecast.caveats:
        return ""
    items = "".join(
        f"<li>{escape(c.text)} <small>{f'{show_share(c.share)} of the step · ' if c.share is not None else ''}"
        f"<code>{escape(c.code)}</code></small></li>"
        for c in forecast.caveats
    )
    return f'<h3>Caveats</h3>\n<ul class="caveats">{items}</ul>'


def _facts(forecast: Forecast) -> str:
    from foretell import __version__

    rows: Iterable[tuple[str, str]] = (
        ("Workload", forecast.workload),
        *facts(forecast.graph),
        ("Graph", forecast.graph.content_hash[:16]),
        ("Cluster", forecast.cluster),
        ("Plan", forecast.plan),
        ("Network, one rank", _sent(forecast)),
        *([("Power", f"{forecast.energy.watts:,.0f} W in all devices")] if forecast.energy else []),
        ("Cost model", forecast.model),
        ("Foretell", __version__),
    )
    cells = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in rows)
    return f'<h3>Facts</h3>\n<dl class="facts">{cells}</dl>'


def _sent(forecast: Forecast) -> str:
    links = ", ".join(f"{show_bytes(use.sent_bytes)} over {use.link}" for use in forecast.network.links)
    return f"{show_bytes(forecast.network.sent_bytes)} sent in a step" + (f": {links}" if links else "")


def _figure(title: str, caption: str, charts: Sequence[str], below: str) -> str:
    """A chart for each width: letters of one drawing cannot be right on a desk and on a phone."""
    wide, narrow = charts
    return (
        f"<h3>{escape(title)}</h3>\n<figure><figcaption>{escape(caption)}</figcaption>"
        f'<div class="wide-only">{wide}</div><div class="narrow-only">{narrow}</div>{below}</figure>'
    )


def _legend(parts: Sequence[Part], whole: float, show: Callable[[float], str]) -> str:
    items = (
        f"<li>{_swatch(part.key)}<span>{escape(part.label)}</span><span>{show(part.amount)}</span>"
        f"<span>{show_share(part.amount / whole if whole else 0.0)}</span></li>"
        for part in parts
    )
    return f'<ul class="legend">{"".join(items)}</ul>'


def _swatch(key: str) -> str:
    return f'<i class="{key}" style="--colour:var(--c-{key})"></i>'


def _table(columns: Sequence[_Column], rows: Iterable[Sequence[str]]) -> str:
    """Cells are HTML already: whoever fills them escapes what users wrote."""
    head = "".join(f'<th scope="col" class="{column.kind}">{column.title}</th>' for column in columns)
    lines = (
        "".join(f'<td class="{column.kind}">{cell}</td>' for column, cell in zip(columns, row, strict=True))
        for row in rows
    )
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _bar(share: float) -> str:
    return f'<span aria-hidden="true" style="width:{min(share, 1.0):.1%}"></span>'
