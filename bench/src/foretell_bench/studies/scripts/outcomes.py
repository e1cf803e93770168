"""What became of a public script: a forecast, right or wrong, a refusal that helps, or a failure; and how many of each."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from foretell_bench.studies.scripts.public_list import PublicScript

OUTCOMES: Final = ("right", "wrong", "unchecked", "clear refusal", "stand-in failed", "bad failure")
FORECASTS: Final = OUTCOMES[:3]
_MESSAGE: Final = 4000  # characters that are kept
_LINE: Final = re.compile(r"\b[Ll]ine \d+|\.\w+:\d+\b")
_WAY_OUT: Final = re.compile(
    r"--(?!debug\b|json\b|fake-data\b)[a-z][\w-]+"  # an option that would help
    r"|(?:^|[.:;,!?)]\s+|\n\s*|\bor |\band )(?i:add|ask|change|choose|copy|create|declare|download|give|install|leave|make|mend|move"
    r"|name|pass|point|put|remove|replace|run|set|start|take|try|turn|unpack|update|use|write)\b"
    r"|\b(?:pip|conda) install\b"
)
_PRINTED: Final = "\nIt printed:"  # what follows is the script's
_OURS: Final = (
    "this is a bug in Foretell",
    "Foretell itself failed",
    "Traceback (most recent call last), in Foretell",
    "has made no update of its parameters in",  # for a time limit
)
_STANDS_IN: Final = re.compile(r"may come from what Foretell stood in for|Foretell's stand-in for .* has no ")


def outcome_of(script: PublicScript, code: int | None, answer: str, message: str) -> dict[str, Any]:
    """What the command said, and what that is; a code of None is a command that ran out of time."""
    if code == 0 and (forecast := _parsed(answer)) is not None:
        found = _facts(forecast)
        wrong = differences(script, found)
        kind = "unchecked" if not script.checked else "wrong" if wrong else "right"
        return {"outcome": kind, **found, **({"differs": wrong} if wrong else {})}
    kept = message if len(message) <= _MESSAGE else f"{message[: _MESSAGE // 2]} … {message[-_MESSAGE // 2 :]}"
    return {"outcome": refusal(code, message), "exit_code": code, "message": kept}


def refusal(code: int | None, message: str) -> str:
    """What it is that gave no forecast; to blame a stand-in of ours is clear, and still a script that we do not run."""
    if code != 2 or not is_clear(message):
        return "bad failure"
    return "stand-in failed" if _STANDS_IN.search(_own(message)) else "clear refusal"


def is_clear(message: str) -> bool:
    """Whether a refusal says where, why and what to do: the last is not to read a traceback."""
    if any(words in message for words in _OURS):
        return False
    own = _own(message)
    words = "\n".join(line for line in own.split("\n") if not line.startswith(" "))  # frames are indented
    return bool(_LINE.search(own) and _WAY_OUT.search(words))


def _own(message: str) -> str:
    return message.partition(_PRINTED)[0]


def differences(script: PublicScript, found: Mapping[str, Any]) -> dict[str, list[Any]]:
    """What the forecast says and what the script does, where they differ; nothing is compared that is not known."""
    names = ("parameters", "batch", "micro_steps", "precision", "plan")
    known = {name: value for name in names if (value := getattr(script, name)) is not None}
    return {name: [found[name], value] for name, value in known.items() if found[name] != value}


def _parsed(answer: str) -> Mapping[str, Any] | None:
    try:
        read = json.loads(answer)
    except ValueError:
        return None
    first = read[0] if isinstance(read, list) and read else read
    return first if isinstance(first, dict) and "step" in first else None


def _facts(forecast: Mapping[str, Any]) -> dict[str, Any]:
    step = forecast["step"] or {}
    return {
        "parameters": step.get("parameters"),
        "batch": step.get("samples"),
        "tokens": step.get("tokens"),
        "micro_steps": step.get("grad_accumulation"),
        "precision": step.get("precision"),
        "optimizer": step.get("optimizer"),
        "plan": forecast["plan"],
        "step": forecast["step_time"]["seconds"],
        "total_memory": forecast["memory"]["total"],
        "caveats": [f"{c['code']}: {c['text']}" for c in forecast["caveats"]],
    }


def counts(results: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """How many scripts came to each outcome."""
    of = [result["outcome"] for result in results]
    return {kind: of.count(kind) for kind in OUTCOMES}


def summary(title: str, results: Sequence[Mapping[str, Any]]) -> str:
    """A line: how many, and the shares of forecasts and of right ones among those that were checked."""
    found = counts(results)
    forecasts = sum(found[kind] for kind in FORECASTS)
    checked = found["right"] + found["wrong"]
    seconds = sorted(result["cpu_seconds"] for result in results)
    parts = [
        f"{title}: {len(results)} scripts of {len({r['repository'] for r in results})} repositories, "
        f"{forecasts} forecasts ({forecasts / max(1, len(results)):.0%})",
        f"{found['right']} of {checked} checked are right ({found['right'] / max(1, checked):.0%})",
        f"{found['clear refusal']} clear refusals",
        f"{found['stand-in failed']} where a stand-in failed",
        f"{found['bad failure']} bad failures",
        f"median {seconds[len(seconds) // 2]:.0f} s of CPU" if seconds else "",
    ]
    return "; ".join(filter(None, parts))


def table(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Every script with its outcome, as Markdown."""
    rows = ["| script | outcome | CPU | parameters | batch | precision | plan |", "|---|---|---:|---:|---:|---|---|"]
    for name, found in results.items():
        shown = [found.get(part) for part in ("parameters", "batch", "precision", "plan")]
        cells = [f"{x:,}" if isinstance(x, int) else str(x) if x is not None else "" for x in shown]
        rows.append(f"| {brief(name, 90)} | {found['outcome']} | {found['cpu_seconds']:.0f} s | {' | '.join(cells)} |")
    return "\n".join(rows)


def brief(text: str, most: int) -> str:
    """The first line of a text, cut, as a cell of a table."""
    line = " ".join(text.split()).replace("|", "/")
    return line if len(line) <= most else line[: most - 1] + "…"
