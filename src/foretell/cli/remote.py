"""`foretell predict … --server URL`, `foretell plan … --server URL`: captured here, answered by a service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from foretell.cli.hosts import compared
from foretell.cli.terminal import answer, note, progress
from foretell.errors import InputError, RequirementNotMet
from foretell.units import show_bytes, show_dollars, show_seconds, show_share

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from foretell import Script


def refuse(given: Mapping[str, object]) -> None:
    """What needs the timeline or many captures, which stay here."""
    if wrong := [name for name, value in given.items() if value]:
        raise InputError(f"{', '.join(wrong)} cannot be had from a service. Leave it out, or leave out --server.")


def predict(
    server: str,
    source: str,
    on: Sequence[str],
    settings: Mapping[str, str],
    plan: str | None,
    *,
    as_json: bool,
    require_fit: bool,
    cache: bool,
    **terms: Any,
) -> None:
    """Print what the service answers, one forecast for each cluster."""
    import foretell
    from foretell.forecasting.question import decide
    from foretell.serve.client import Client

    with progress() as report, Client(server) as client:
        graph = foretell.capture_graph(source, settings, progress=report, cache=cache)
        found = []
        conditions = terms.pop("conditions")
        places = compared([foretell.Cluster.parse(cluster) for cluster in on], conditions.host)
        for cluster, place in zip(on, places, strict=True):
            question = decide(graph, cluster, plan)
            if question.remark:
                note(question.remark)
            report(f"asking {server} about {graph.name} on {cluster}")
            own = plan if question.decided_by == "cluster" else question.plan
            fed = replace(conditions, host=place.nodes[0].host.op_seconds if place.host else conditions.host)
            found.append(client.forecast(graph, cluster, own, conditions=fed, **terms))
    answer(as_json, lambda: found[0] if len(found) == 1 else found, lambda width: _table(found))
    if require_fit and (over := [each["cluster"] for each in found if not each["memory"]["fits"]]):
        raise RequirementNotMet(f"{graph.name} does not fit on {', '.join(over)}, and --require-fit was given.")


def plan(
    server: str,
    source: str | Script,
    settings: Mapping[str, str],
    question: Mapping[str, Any],
    *,
    as_json: bool,
    cache: bool,
) -> dict[str, Any]:
    """Let the service search; print what it found, and the address where others see it."""
    import foretell
    from foretell.serve.client import Client

    with progress() as report, Client(server) as client:
        graph = foretell.capture_graph(source, settings or None, progress=report, cache=cache)
        job = client.plans(graph, **question)
        report(f"{server} searches for {graph.name}")
        found: dict[str, Any] = client.result(job)
    answer(as_json, lambda: found, lambda width: _front(found))
    note(f"To share: {server.rstrip('/')}/jobs/{job}")
    return found


def _front(found: Mapping[str, Any]) -> RenderableType:
    from rich.box import SIMPLE_HEAD
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from foretell.report.plan import show_odds

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in ("", "cluster", "plan", "batch", "job", "cost", "free", "fits"):
        table.add_column(name)
    best = (
        [found["recommended"]] if found["recommended"] not in (None, *found["front"]) else []
    )  # by what fits less surely
    for each in sorted([*found["front"], *best], key=lambda choice: float(choice["time"]["median"])):
        cost = "–" if each["cost"] is None else show_dollars(each["cost"]["median"])
        table.add_row(
            "→" if each == found["recommended"] else "", each["cluster"], each["plan"], str(each["batch"]),
            show_seconds(each["time"]["median"]), cost, show_share(each["headroom"]), show_odds(each["fit_probability"]),
        )  # fmt: skip
    return Group(Text(found["reason"]), table, *(Text(caveat, style="dim") for caveat in found["caveats"]))


def _table(found: Sequence[Mapping[str, Any]]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in ("cluster", "plan", "step", "90 % interval", "memory", "fits", "caveats"):
        table.add_column(name)
    for each in found:
        step, memory = each["step_time"], each["memory"]
        known = step["low"] is not None
        within = f"{show_seconds(step['low'])} – {show_seconds(step['high'])}" if known else "not calibrated"
        table.add_row(
            each["cluster"], each["plan"], show_seconds(step["seconds"]), within, show_bytes(memory["total"]),
            "yes" if memory["fits"] else "no", str(len(each["caveats"])),
        )  # fmt: skip
    return table
