"""Forecasts as one self-contained HTML file, every text escaped."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from html import escape

from foretell.errors import InputError
from foretell.forecasting.result import Forecast
from foretell.report import findings
from foretell.report.charts import Lane, memory_over_step, stacked_bars
from foretell.report.findings import Part
from foretell.report.inspection import facts, module_label
from foretell.report.memory import memory_series
from foretell.report.ops import operators, short_name
from foretell.report.page import (
    bar,
    caveats,
    document,
    figure,
    for_both_widths,
    keys,
    legend,
    section,
    table,
    write_page,
)
from foretell.report.resources import resource_chart, resource_series
from foretell.report.schedule import is_pipeline, schedule_chart
from foretell.report.timeline import Window, Zoom, timeline_chart
from foretell.report.tree import module_tree, outline
from foretell.units import or_dash, show_bytes, show_dollars, show_rate, show_seconds, show_share

_TOP_OPERATORS = 15
_MODULE_ROWS = 40
_DEEPEST = 12  # levels that page.css sets in
_CHART_POINTS = 400
_WIDE, _NARROW = 880, 360  # chart widths in pixels


def write_html(forecasts: Sequence[Forecast], path: str | os.PathLike[str]) -> None:
    """Write the report of one forecast, or of several with a comparison before them."""
    write_page(page(forecasts), path)


def page(forecasts: Sequence[Forecast]) -> str:
    if not forecasts:
        raise InputError("a report needs at least one forecast, got none.")
    workloads = ", ".join(dict.fromkeys(f.workload for f in forecasts))
    alone = len(forecasts) == 1
    return document(
        f"{workloads} on {forecasts[0].cluster if alone else f'{len(forecasts)} clusters'}",
        _chapter(forecasts[0], 0, heading="h1") if alone else _comparison(forecasts, workloads),
        kind="forecast",
        footer="A forecast, before the job ran. Times and memory are of the slowest and heaviest rank.",
    )


def chapter(forecast: Forecast, zoom: Zoom) -> str:
    """The report of one forecast, for a page of somebody else's who can draw other parts of its timeline."""
    return _chapter(forecast, 0, heading="h1", zoom=zoom)


def _comparison(forecasts: Sequence[Forecast], workloads: str) -> str:
    able = [f for f in forecasts if f.memory.fits]
    fastest = max(able, key=lambda f: f.throughput.samples_per_second or 0.0, default=None)
    cheapest = min(able, key=lambda f: findings.dollars_per_million_samples(f) or float("inf"), default=None)
    titles = ("Cluster", "Memory", "Step", "Samples/s", "$/M samples", "Bottleneck")
    rows = [
        (
            f'<a href="#forecast-{number}">{escape(f.cluster)}</a><small>{escape(f.plan)}</small>',
            f'<span class="{"yes" if f.memory.fits else "no"}">{findings.verdict(f).headline.lower()}</span>'
            f"<small>{show_bytes(f.memory.total)} of {show_bytes(f.memory.capacity)}</small>",
            show_seconds(f.step_time.seconds),
            _best(f.throughput.samples_per_second, show_rate, "fastest" if f is fastest else ""),
            _best(findings.dollars_per_million_samples(f), show_dollars, "cheapest" if f is cheapest else ""),
            escape(findings.bottleneck(f)),
        )
        for number, f in enumerate(forecasts)
    ]
    chapters = "\n".join(_chapter(f, number, heading="h2") for number, f in enumerate(forecasts))
    compared = table(titles, rows, words=("Memory", "Bottleneck"), wide=("Bottleneck",))
    soft = f'<p class="soft">One step on {len(forecasts)} clusters, side by side.</p>'
    return f"<h1>{escape(workloads)}</h1>\n{soft}{compared}\n{chapters}"


def _best(value: float | None, show: Callable[[float], str], title: str) -> str:
    shown = or_dash(value, show)
    return f'<span class="best">{shown}</span><small>{title}</small>' if title and value is not None else shown


def _chapter(forecast: Forecast, number: int, *, heading: str, zoom: Zoom | None = None) -> str:
    title = escape(forecast.workload if heading == "h1" else forecast.cluster)
    kind = "training" if forecast.graph.training else "inference"
    parts = (
        f'<{heading} id="forecast-{number}">{title}</{heading}>',
        f'<p class="soft">One {kind} step on {escape(forecast.cluster)}, plan {escape(forecast.plan)}</p>',
        _verdict(forecast),
        _step(forecast, number),
        _critical_path(forecast),
        _schedule(forecast, number),
        _timeline(forecast, number, zoom),
        _resources(forecast, number),
        _memory(forecast, number),
        _memory_over_step(forecast, number),
        _operators(forecast),
        _modules(forecast),
        caveats(forecast.caveats),
        _explanation(forecast),
        _facts(forecast),
    )
    return "\n".join(parts)


def _verdict(forecast: Forecast) -> str:
    verdict, memory = findings.verdict(forecast), forecast.memory
    interval = findings.show_duration(forecast.step_time).partition(" (")[2].removesuffix(")")
    numbers = {
        "Step": findings.step_words(forecast),
        "Step time": [show_seconds(forecast.step_time.seconds), interval or "no interval"],
        "Throughput": findings.throughput_words(forecast),
        "Memory, heaviest rank": [show_bytes(memory.total), f"of {show_bytes(memory.capacity)}"],
        "Cost": findings.cost_words(forecast),
        "Whole job": findings.job_words(forecast),
    }
    assumed = ", ".join(findings.assumed_sizes(forecast))
    sizes = f" <b>The model's size rests on what was assumed: {escape(assumed)}.</b>" if assumed else ""
    cells = "".join(
        f"<div><dt>{label}</dt><dd>{_large(words[0])}<small>{'<br>'.join(map(escape, words[1:]))}</small></dd></div>"
        for label, words in numbers.items()
        if words
    )
    return (
        f'<section class="verdict {"fits" if verdict.fits else "over"}"><strong>{verdict.headline}</strong>'
        f'<p>{escape(verdict.sentence)}{sizes}</p></section>\n<dl class="numbers">{cells}</dl>'
    )


def _large(value: str) -> str:
    """The number is large and its unit small, whichever comes first."""
    first, _, rest = value.partition(" ")
    number, _, further = rest.partition(" ")
    if first.isalpha() and number[:1].isdigit():
        return f"<span>{escape(first)}</span> {escape(number)} <span>{escape(further)}</span>".removesuffix(
            " <span></span>"
        )
    return f"{escape(first)} <span>{escape(rest)}</span>"


def _bars(
    name: str, title: str, lanes: Sequence[Lane], whole: float, show: Callable[[float], str], limit: Part | None = None
) -> str:
    return for_both_widths(
        *(
            stacked_bars(lanes, whole, show, name=f"{name}-{width}", title=title, width=width, limit=limit)
            for width in (_WIDE, _NARROW)
        )
    )


def _step(forecast: Forecast, number: int) -> str:
    step, host_time = forecast.step_time.seconds, forecast.host_time.seconds
    issuing = min(host_time, step)
    device = findings.time_parts(forecast)
    host = tuple(
        part
        for part in (
            Part(key="host", label="host issuing ops", amount=issuing),
            Part(key="idle", label="host with nothing to do", amount=step - issuing),
        )
        if part.amount > 0
    )
    lanes = (Lane(label="device", parts=device), Lane(label="host", parts=host))
    bottleneck = findings.bottleneck(forecast)
    title = "Where the step goes"
    return figure(
        title,
        f"{bottleneck[0].upper()}{bottleneck[1:]}. The host issues ops for {show_seconds(host_time)} of it.",
        _bars(f"step-{number}", title, lanes, step, show_seconds),
        legend((*device, *host), step, show_seconds),
    )


def _explanation(forecast: Forecast) -> str:
    rows = [tuple(map(escape, row)) for row in findings.explanation_rows([forecast])]
    if not rows:
        return ""
    titles = ("About", "What", "Taken to be")
    note = "What the script's run could not know, and what was taken for it."
    return section("What was assumed", note, table(titles, rows, words=titles, wide=titles[1:]))


def _critical_path(forecast: Forecast) -> str:
    if not forecast.critical_path:
        return ""
    titles = ("Module or collective", "On", "Time", "Share", "")
    whole = forecast.step_time.seconds or 1.0
    rows = [
        (
            f"<code>{escape(part.name)}</code>",
            escape(part.stream),
            show_seconds(part.seconds),
            show_share(part.seconds / whole),
            bar(part.seconds / whole),
        )
        for part in forecast.critical_path
    ]
    note = (
        "The chain that decides when the step ends, its longest parts first; they sum to the step. To make the step shorter, "
        "shorten one of them."
    )
    return section("Critical path", note, table(titles, rows, words=("On",), wide=("On",)))


def _schedule(forecast: Forecast, number: int) -> str:
    if not is_pipeline(forecast.timeline):
        return ""
    charts = (
        schedule_chart(forecast.timeline, name=f"schedule-{number}-{width}", width=width) for width in (_WIDE, _NARROW)
    )
    caption = (
        "What each stage does and when, by micro-batch; gaps are the bubble. Rounds that repeat are not all drawn. "
        "Under each other: first stage to last."
    )
    return figure("Schedule", caption, for_both_widths(*charts))


def _timeline(forecast: Forecast, number: int, zoom: Zoom | None) -> str:
    if not forecast.timeline.spans:
        return ""
    caption = "What each stream of a rank does and when; what is too short to be seen alone is drawn together."
    return figure("Timeline", caption, f'<div id="timeline-{number}">{timeline_part(forecast, zoom, number)}</div>')


def timeline_part(forecast: Forecast, zoom: Zoom | None, number: int = 0) -> str:
    """A part of the step for both widths, with the ways to others."""
    window = zoom.window if zoom else Window()
    charts = for_both_widths(
        *(
            timeline_chart(forecast.timeline, name=f"timeline-{number}-{width}", width=width, window=window)
            for width in (_WIDE, _NARROW)
        )
    )
    return charts if zoom is None else zoom.links(f"#timeline-{number}") + charts


def _resources(forecast: Forecast, number: int) -> str:
    if not forecast.timeline.spans:
        return ""
    series = resource_series(forecast)
    charts = for_both_widths(
        *(resource_chart(series, name=f"resources-{number}-{width}", width=width) for width in (_WIDE, _NARROW))
    )
    rows = [
        (
            each.label,
            show_seconds(each.use.idle_seconds),
            show_seconds(each.use.active_seconds),
            each.show(each.use.peak),
        )
        for each in series
    ]
    below = table(("Resource", "Idle", "Active", "At most"), rows)
    caption = "Over one step from empty queues: how busy the device is, what of its memory's bandwidth is used, and the network."
    return figure("Resources over the step", caption, charts, below)


def _memory(forecast: Forecast, number: int) -> str:
    memory, parts, title = forecast.memory, findings.memory_parts(forecast), "Memory at the peak"
    whole = max(memory.capacity, memory.total)
    limit = None if memory.fits else Part(key="capacity", label="the device has", amount=memory.capacity)
    length = "what a program can use of the device" if memory.fits else "more than the device has"
    caption = (
        f"The heaviest rank at its peak: {show_bytes(memory.allocated)} allocated, "
        f"{show_bytes(memory.reserved)} reserved by the caching allocator, {show_bytes(memory.total)} in all. "
        f"The bar is {show_bytes(whole)} long, {length}."
    )
    bars = _bars(f"memory-{number}", title, [Lane(label="memory", parts=parts)], whole, show_bytes, limit)
    return figure(title, caption, bars, legend(parts, whole, show_bytes))


def _memory_over_step(forecast: Forecast, number: int) -> str:
    if not forecast.memory_trace.allocated:
        return ""
    memory, series = forecast.memory, memory_series(forecast, _CHART_POINTS)
    room = memory.capacity - (memory.total - memory.allocated)
    place = findings.peak_place(forecast)
    charts = for_both_widths(
        *(
            memory_over_step(
                series, room=room, place=place, name=f"series-{number}-{width}", width=width, height=height
            )
            for width, height in ((_WIDE, 340), (_NARROW, 260))
        )
    )
    caption = (
        f"Bytes allocated after each of the {series.ops:,} ops, in the order the step issues them. The peak is at op "
        f"{series.peak + 1:,}, in {place}. Cache, context and communicator apart, there is "
        + (f"room for {show_bytes(room)}." if room > 0 else "no room at all.")
    )
    rows = [
        (escape(layer.label), *(show_bytes(b) for b in (layer.nbytes[0], max(layer.nbytes), layer.nbytes[-1])))
        for layer in series.layers
    ]
    below = keys({layer.key: layer.label for layer in series.layers})
    below += (
        f"<details><summary>As a table</summary>{table(('Purpose', 'First op', 'Most', 'Last op'), rows)}</details>"
    )
    return figure("Memory over the step", caption, charts, below)


def _operators(forecast: Forecast) -> str:
    uses = operators(forecast)
    shown = uses[:_TOP_OPERATORS]
    titles = ("Operator, and its heaviest call", "Phase", "Calls", "Time", "Share", "")
    rows = [
        (
            f"<code>{escape(short_name(use.name))}</code><small>{escape(use.heaviest_module or 'outside modules')}"
            f" · {escape(use.heaviest_shape)}</small>",
            escape(use.phase),
            f"{use.calls:,}",
            show_seconds(use.seconds),
            show_share(use.share),
            bar(use.share),
        )
        for use in shown
    ]
    together = show_share(sum(use.share for use in shown))
    note = f"The {len(shown)} most expensive of {len(uses)}, by device time; together {together} of it."
    return section("Top operators", note, table(titles, rows, words=("Phase",), wide=("Phase", "Calls")))


def _modules(forecast: Forecast) -> str:
    root = module_tree(forecast)
    titles = ("Module", "Time", "Forward", "Backward", "Parameters", "Activations", "")
    rows = [
        (
            f'<span class="level-{min(level, _DEEPEST)}">{escape(module_label(module))}</span>',
            show_seconds(module.seconds),
            *(or_dash(seconds or None, show_seconds) for seconds in (module.forward, module.backward)),
            *(or_dash(nbytes or None, show_bytes) for nbytes in (module.parameters, module.activations)),
            bar(module.seconds / root.seconds if root.seconds else 0.0),
        )
        for level, module in outline(root, _MODULE_ROWS, least_share=0.005)
    ]
    note = (
        "Device time, parameters, and activations allocated at the peak, added up along the module tree. Equal blocks in "
        "a row are one line, what takes less than half a percent is left out, and the heaviest modules open furthest."
    )
    return section("Modules", note, table(titles, rows, wide=("Forward", "Backward", "Parameters")))


def _facts(forecast: Forecast) -> str:
    rows = {
        "Workload": forecast.workload,
        **dict(facts(forecast.graph)),
        "Graph": forecast.graph.content_hash[:16],
        "Cluster": forecast.cluster,
        "Plan": forecast.plan,
        "Network, one rank": _sent(forecast),
        "Power": f"{forecast.energy.watts:,.0f} W in all devices" if forecast.energy else "",
        "Cost model": forecast.model,
        "Profile": forecast.profile or "",
    }
    cells = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in rows.items() if value)
    return f'<h3>Facts</h3>\n<dl class="facts">{cells}</dl>'


def _sent(forecast: Forecast) -> str:
    links = ", ".join(f"{show_bytes(use.sent_bytes)} over {use.link}" for use in forecast.network.links)
    return f"{show_bytes(forecast.network.sent_bytes)} sent per step" + (f": {links}" if links else "")
