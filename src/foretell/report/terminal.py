"""Forecasts in the terminal: the verdict first, then where time and memory go. Readable without colour."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Literal

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.panel import Panel
from rich.segment import Segment
from rich.style import Style
from rich.table import Table
from rich.text import Text

from foretell.forecasting.result import Forecast
from foretell.graph import Caveat
from foretell.report import findings
from foretell.report.findings import Part
from foretell.units import or_dash, show_bytes, show_dollars, show_rate, show_seconds, show_share

if TYPE_CHECKING:
    from foretell.forecasting.lengths import Varied

COLOURS = {
    "forward": "cyan",
    "backward": "blue",
    "optimizer": "magenta",
    "communication": "yellow",
    "bubble": "red",
    "stragglers": "bright_red",
    "trainer": "bright_yellow",
    "late-input": "green",
    "waiting": "bright_black",
    "parameters": "blue",
    "gradients": "cyan",
    "optimizer-state": "magenta",
    "activations": "yellow",
    "inputs": "green",
    "temporaries": "red",
    "workspace": "bright_magenta",
    "cache": "bright_black",
    "context": "bright_black",
    "communicator": "bright_black",
    "free": "bright_black",
}
_EIGHTHS = " ▏▎▍▌▋▊▉"
_WIDE = 100  # columns from which a comparison shows everything
_TITLED = 40  # letters of a plan that go into the title


class Bar:
    """A horizontal bar as wide as its cell allows; plain `#` where the terminal cannot draw blocks."""

    def __init__(self, share: float, colour: str) -> None:
        self.share, self.colour = min(max(share, 0.0), 1.0), colour

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = options.max_width
        if options.ascii_only:
            text = "#" * round(self.share * width)
        else:
            whole, eighth = divmod(round(self.share * width * 8), 8)
            text = "█" * whole + (_EIGHTHS[eighth] if eighth else "")
            text = text or ("▏" if self.share else "")  # what is there is seen
        yield Segment(text[:width].ljust(width), Style.parse(self.colour))

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(8, options.max_width)


def forecast_panel(forecast: Forecast, *, batch: int | None = None) -> RenderableType:
    """A single forecast: the answer in a panel, and below it what the answer is made of."""
    memory = forecast.memory
    return Group(
        _answer(forecast, batch),
        section(
            "Where the step goes",
            parts_table(findings.time_parts(forecast), forecast.step_time.seconds, show_seconds),
            f"the host issues ops for {show_seconds(forecast.host_time.seconds)} of it",
        ),
        section(
            "Memory at the peak",
            parts_table(findings.memory_parts(forecast), max(memory.capacity, memory.total), show_bytes),
            f"{show_bytes(memory.total)} of {show_bytes(memory.capacity)} · highest in {findings.peak_place(forecast)}",
        ),
        *caveats_of([forecast]),
    )


def forecast_table(forecasts: Sequence[Forecast], *, batches: Sequence[int] = (), width: int = 80) -> RenderableType:
    """Forecasts side by side, one row each, and which of them is fastest and cheapest."""
    wide = width >= _WIDE
    cells: dict[str, list[str | Text]] = {"cluster": [Text(f.cluster) for f in forecasts]}
    if wide and any(f.plan != f"dp={sum(rank.count for rank in f.memory.ranks)}" for f in forecasts):
        cells["plan"] = [Text(f.plan) for f in forecasts]
    if batches:
        cells["batch"] = [str(batch) for batch in batches]
    cells["step"] = [findings.show_plus_minus(f.step_time) for f in forecasts]
    cells["samples/s"] = [or_dash(f.throughput.samples_per_second, show_rate) for f in forecasts]
    if wide:
        cells["MFU"] = [or_dash(f.throughput.mfu, show_share) for f in forecasts]
        cells["bottleneck"] = [findings.bottleneck(f).partition(":")[0] for f in forecasts]
    if any(f.job for f in forecasts):
        cells["job"] = [show_seconds(f.job.seconds) if f.job else "–" for f in forecasts]
        cells["job $"] = [or_dash(f.job.dollars if f.job else None, show_dollars) for f in forecasts]
    cells["memory"] = [_memory(f, wide) for f in forecasts]
    cells["fits"] = [_fits(f, wide) for f in forecasts]
    if wide or "job" not in cells:  # a job's own cost is what it comes to
        cells["$/h"] = [or_dash(f.cost.dollars_per_hour, show_dollars) for f in forecasts]
        cells["$/M samples"] = [or_dash(findings.dollars_per_million_samples(f), show_dollars) for f in forecasts]
    table = grid(*cells, left=("cluster", "plan", "bottleneck"), wraps=("cluster", "plan", "$/M samples"))
    table.columns[0].ratio = 1
    for row in zip(*cells.values(), strict=True):
        table.add_row(*row)
    names = dict.fromkeys(f.workload for f in forecasts)
    return Group(
        Text(f"{', '.join(names)} on {len(forecasts)} clusters", style="bold"),
        *_steps(forecasts),
        Padding(table, (1, 0)),
        *_winners(forecasts),
        *caveats_of(forecasts),
    )


def _steps(forecasts: Sequence[Forecast]) -> list[RenderableType]:
    """What one step is, where all forecasts are of the same."""
    words = dict.fromkeys(" · ".join(findings.step_words(f)) for f in forecasts)
    prices = dict.fromkeys(f.cost.price for f in forecasts if f.cost.price)
    lines = [*(words if len(words) == 1 else ()), *([f"prices: {'; '.join(prices)}"] if prices else [])]
    hosts = dict.fromkeys(f"{f.host.name}, {show_seconds(f.host.op_seconds)} per op" for f in forecasts if f.host)
    lines.append(f"host: {next(iter(hosts))}" if len(hosts) == 1 else f"hosts: {'; '.join(hosts)}" if hosts else "")
    if any(findings.typical_error(f.step_time) is not None for f in forecasts):
        lines.append("±: typical error, half of such steps were nearer")
    return [Text(line, style="dim") for line in lines if line]


def _memory(forecast: Forecast, wide: bool) -> str:
    memory = forecast.memory
    return show_bytes(memory.total) + (f" of {show_bytes(memory.capacity)}" if wide else "")


def _fits(forecast: Forecast, wide: bool) -> str | Text:
    if not forecast.memory.fits:
        return Text("NO", style="bold red")
    return f"yes {findings.show_probability(forecast.memory.fit_probability)}" if wide else "yes"


def grid(*headings: str, left: Sequence[str] = (), wraps: Sequence[str] = ()) -> Table:
    """A plain table of numbers; columns of words lie to the `left`, and some give way where the terminal is narrow."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    for heading in headings:
        justify: Literal["left", "right"] = "left" if heading in left else "right"
        table.add_column(heading, justify=justify, no_wrap=heading not in wraps, overflow="fold")
    return table


def facts_table(rows: Iterable[tuple[str | Text, str | Text]]) -> Table:
    """Names and what is known of them; what is empty is left out."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for name, value in rows:
        if value:
            table.add_row(name, value if isinstance(value, Text) else Text(value))
    return table


def section(title: str, body: RenderableType, note: str = "") -> RenderableType:
    heading = Text.assemble((title, "bold"), (f"  {note}" if note else "", "dim"))
    return Padding(Group(heading, Padding(body, (0, 0, 0, 2))), (1, 0, 0, 0))


def parts_table(parts: Sequence[Part], whole: float, show: Callable[[float], str]) -> Table:
    """One row per part: name, amount, share, bar."""
    table = Table(box=None, show_header=False, expand=True, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(ratio=1)
    for part in parts:
        share = part.amount / whole if whole else 0.0
        table.add_row(part.label, show(part.amount), show_share(share), Bar(share, COLOURS[part.key]))
    return table


def lengths_section(varied: Varied) -> RenderableType:
    """Steps of sequences of many lengths, under the forecast of the longest batch."""
    times = [f"{name} {show_seconds(seconds)}" for name, seconds in varied.quantiles.items()]
    facts = facts_table(
        (
            ("Step time", f"{show_seconds(varied.mean)} on average; {' · '.join(times)}"),
            ("Padding", f"{show_share(varied.padding)} of the tokens; packing sequences would leave it out"),
            ("Memory", f"of the longest batch above, {varied.longest:,} tokens long"),
        )
    )
    return section("Sequences of many lengths", facts)


def caveats_of(forecasts: Sequence[Forecast]) -> list[RenderableType]:
    found = findings.together(forecasts)
    return [caveats(found)] if found else []


def caveats(items: Sequence[Caveat]) -> RenderableType:
    table = Table(box=None, show_header=False, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column()
    for caveat in findings.weighty(items):
        share = f" ({show_share(caveat.share)} of the step)" if caveat.share is not None else ""
        table.add_row("•", Text.assemble(caveat.text, share, (f"  {caveat.code}", "dim")))
    return section("Caveats", table)


def _answer(forecast: Forecast, batch: int | None) -> RenderableType:
    verdict = findings.verdict(forecast)
    facts = facts_table(
        (
            ("Batch", "" if batch is None else findings.largest_batch(batch)),
            ("Plan", forecast.plan.replace(",", ", ") if len(forecast.plan) > _TITLED else ""),
            ("Step", " · ".join(findings.step_words(forecast))),
            ("Assumed", _assumed(forecast)),
            ("Step time", findings.show_duration(forecast.step_time)),
            ("Throughput", " · ".join(findings.throughput_words(forecast))),
            ("Bottleneck", findings.bottleneck(forecast)),
            ("Critical path", " · ".join(findings.critical_words(forecast, 3))),
            ("Cost", " · ".join(findings.cost_words(forecast))),
            ("Job", " · ".join(findings.job_words(forecast))),
            ("Profile", forecast.profile or ""),
        )
    )
    mark = Text(f" {verdict.headline.upper()} ", style="bold reverse " + ("green" if verdict.fits else "red"))
    headline = Table.grid(padding=(0, 2, 0, 0))
    headline.add_row(mark, verdict.sentence)
    plan = f" · {forecast.plan}" if len(forecast.plan) <= _TITLED else ""
    title = Text.assemble((forecast.workload, "bold"), f" on {forecast.cluster}", (plan, "dim"))
    colour = "green" if verdict.fits else "red"
    return Panel(Group(headline, "", facts), title=title, title_align="left", border_style=colour, padding=(1, 2))


def _assumed(forecast: Forecast) -> str | Text:
    """What the model's size rests on and is not on this machine: a wrong one makes all that follows wrong."""
    sizes = findings.assumed_sizes(forecast)
    return Text(f"the model's size rests on {', '.join(sizes)}", style="bold yellow") if sizes else ""


def explanation_section(forecasts: Sequence[Forecast]) -> RenderableType:
    """All that was stood in for, cut short or assumed, as `--explain` shows it."""
    table = grid("", "what", "taken to be", left=("", "what", "taken to be"), wraps=("what", "taken to be"))
    for row in findings.explanation_rows(forecasts):
        table.add_row(*map(Text, row))
    if not table.row_count:
        return section("What was assumed", Text("Nothing: the step was captured from what the source itself says."))
    return section("What was assumed", table)


def _winners(forecasts: Sequence[Forecast]) -> list[RenderableType]:
    able = [f for f in forecasts if f.memory.fits and f.throughput.samples_per_second]
    if len(able) < 2:
        return []
    fastest = max(able, key=lambda f: f.throughput.samples_per_second or 0.0)
    priced = [(dollars, f) for f in able if (dollars := findings.dollars_per_million_samples(f)) is not None]
    words = [f"Fastest: {fastest.cluster}."]
    if priced:
        words.append(f"Cheapest per sample: {min(priced, key=lambda pair: pair[0])[1].cluster}.")
    return [Text(" ".join(words))]
