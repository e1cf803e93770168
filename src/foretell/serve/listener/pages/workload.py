"""What is asked about: a network by name, a file, or one that was sent before."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Final
from urllib.parse import urlencode

from sqlalchemy import select
from starlette.concurrency import run_in_threadpool

from foretell.precision import PRECISIONS
from foretell.serve.access.keys import Caller
from foretell.serve.database.tables import StoredGraph
from foretell.serve.jobs.capture import CaptureRequest
from foretell.serve.listener.pages.forms import Form, checked
from foretell.serve.listener.pages.frame import choose, field, number
from foretell.serve.problems import Problem
from foretell.serve.service import Service
from foretell.serve.zoo import USUAL

_SHOWN: Final = 200
_USUAL_PRECISION: Final = str(CaptureRequest.model_fields["precision"].default)  # as on the command line


def workload_fields(service: Service, caller: Caller, values: Mapping[str, str]) -> str:
    """Three ways, one shown at a time, with what was written before."""
    known = _graphs(service, caller)
    graph = values.get("graph", "")
    way = values.get("way") or ("kept" if graph else "named")
    ways = {"named": "By name", "file": "A file", "kept": "Sent before"}
    tabs = "".join(
        f'<label class="tab"><input type="radio" name="way" value="{key}"{" checked" if key == way else ""}><span>{shown}</span></label>'
        for key, shown in ways.items()
    )
    search = (
        f'<input name="source" value="{escape(values.get("source", ""))}" list="names" maxlength="200" '
        'placeholder="torchvision/resnet50" spellcheck="false" autocapitalize="off" autocomplete="off" hx-get="/names" '
        'hx-trigger="focus once, input changed delay:250ms" '
        'hx-target="#names" hx-swap="innerHTML">'
        f'<datalist id="names">{name_options(list(USUAL))}</datalist>'
    )
    further = (
        f'<input name="set" value="{escape(values.get("set", ""))}" maxlength="1000" '
        'placeholder="image_size=384 grad_accumulation=4 channels_last=true" spellcheck="false" autocapitalize="off">'
    )
    modes = {"training": "training", "inference": "inference"}
    named = (
        field("Network", search, "Of timm, torchvision or transformers; captured here, which takes some seconds.")
        + '<div class="row">'
        + field("Batch", number("batch", values.get("batch", ""), hint="usual"))
        + field("Sequence", number("seq", values.get("seq", ""), hint="usual"))
        + field("Precision", choose("precision", {n: n for n in PRECISIONS}, values.get("precision", _USUAL_PRECISION)))
        + field("Step", choose("mode", modes, values.get("mode", "")))
        + field("Optimizer", choose("optimizer", {"adamw": "AdamW", "sgd": "SGD"}, values.get("optimizer", "")))
        + "</div>"
        + field("Other settings", further, "As --set takes them, with a space between.")
    )
    dropped = (
        '<label class="drop"><input type="file" name="file" accept=".graph"><span>Drop a .graph file here, or choose one</span>'
        "</label><p class=soft>Write one where the code is: <code>foretell inspect SOURCE --save FILE.graph</code>. "
        "It has operators and shapes; no weights, no data, no source.</p>"
    )
    kept = (
        field("Graph", choose("graph", known, graph))
        if known
        else '<p class="soft">Nothing was sent yet. Ask by name first, or drop a file.</p>'
    )
    return (
        f'<fieldset class="ways"><legend>What runs</legend><div class="tabs">{tabs}</div>'
        f'<div class="way named">{named}</div><div class="way file">{dropped}</div><div class="way kept">{kept}</div></fieldset>'
    )


def name_options(names: list[str]) -> str:
    return "".join(f'<option value="{escape(name)}"></option>' for name in names)


async def graph_or_wait(service: Service, caller: Caller, form: Form, then: str, query: dict[str, str]) -> str:
    """The address to go on at: `then` with the graph, or the wait for its capture."""
    way = form.text("way", "named")
    if way == "file":
        data = await form.file("file")
        if not data:
            raise Problem(422, "no file was chosen.", allowed="a .graph file", next="Choose one, or ask by name.")
        kept = await service.keep_graph(caller, data)
        return f"{then}?{urlencode({'graph': kept.hash} | query)}"
    if way == "kept":
        if not form.text("graph"):
            raise Problem(422, "no graph was chosen.", next="Choose one, or ask by name.")
        return f"{then}?{urlencode({'graph': form.text('graph')} | query)}"
    if not form.text("source"):
        raise Problem(
            422, "no network was named.", allowed="a name like torchvision/resnet50", next="Write one, or drop a file."
        )
    capture = checked(
        CaptureRequest, source=form.text("source"), batch=form.count("batch"), seq=form.count("seq"),
        precision=form.text("precision"), training=form.text("mode", "training") == "training",
        optimizer=form.text("optimizer"), settings=_settings(form.text("set")),
    )  # fmt: skip
    await run_in_threadpool(lambda: service.zoo.check(capture.source, wait=True))
    job = await run_in_threadpool(service.begin, caller, "capture", capture)
    return f"/captures/{job.id}?{urlencode({'then': then} | query)}"


def _settings(written: str) -> dict[str, str]:
    found = {}
    for each in written.split():
        name, equals, value = each.partition("=")
        if not equals:
            raise Problem(
                422,
                f"{each!r} is no setting.",
                got=each,
                allowed="settings like image_size=384",
                next="Correct Other settings.",
            )
        found[name] = value
    return found


def _graphs(service: Service, caller: Caller) -> dict[str, str]:
    columns = (StoredGraph.hash, StoredGraph.name, StoredGraph.precision, StoredGraph.training)
    wanted = select(*columns).where(StoredGraph.team_id == caller.team).order_by(StoredGraph.created.desc())
    with service.database.reading() as session:
        return {
            row.hash: f"{row.name[:80]} · {row.precision} · {'training' if row.training else 'inference'} · {row.hash[:8]}"
            for row in session.execute(wanted.limit(_SHOWN))
        }
