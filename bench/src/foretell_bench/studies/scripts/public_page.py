"""The page of public scripts: shares of outcomes, what failed with its message, and what was drawn and left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from foretell_bench.studies.scripts.outcomes import FORECASTS, brief, counts
from foretell_bench.studies.scripts.public_list import DRAWS, LeftOut

_FAILURES: Final = 32  # that the page has; the results have all
_ABOUT: Final = """# Public scripts

Training scripts of public repositories, as published: with the arguments of their READMEs, through `foretell predict --fake-data`, \
without their data and without a GPU. `bench/src/foretell_bench/studies/scripts/public.toml` lists repository, commit, arguments and \
what each trains, worked out by hand from its source. Drawn scripts were \
taken by a hash before any was run, and their results are those of their first run, when nobody had developed with them; open ones, \
and drawn ones once that run was over, were developed with, and their results are of today.

Written by `foretell bench scripts public --page`; `foretell bench scripts public` prints every script, and \
`bench/results/public_scripts.json` (drawn) and `public_scripts_open.json` have every answer and message; \
`bench/notes/public-scripts.md` tells how they were run, and what is not run again yet."""


def write_page(path: Path, sets: Mapping[str, Mapping[str, Mapping[str, Any]]], left: Sequence[LeftOut]) -> None:
    """Write the page of what there are results of, set by set."""
    parts = [_ABOUT, _shares(sets), *_wrong(sets), *_failures(sets), _left_out(left)]
    path.write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def _shares(sets: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    rows = ["| | " + " | ".join(sets) + " |", "|---|" + "---:|" * len(sets)]
    columns = []
    for those in sets.values():
        found = counts(those.values())
        forecasts = sum(found[kind] for kind in FORECASTS)
        checked = found["right"] + found["wrong"]
        seconds = sorted(r["cpu_seconds"] for r in those.values()) or [0.0]
        columns.append(
            {
                "scripts": f"{len(those)}",
                "repositories": f"{len({r['repository'] for r in those.values()})}",
                "give a forecast": f"{forecasts} ({forecasts / max(1, len(those)):.0%})",
                "of which were checked": f"{checked}",
                "of those right in parameters, batch and precision": f"{found['right']}",
                "refused, with line, cause and a way out": f"{found['clear refusal']}",
                "refused where a stand-in of ours failed": f"{found['stand-in failed']}",
                "failed": f"{found['bad failure']}",
                "seconds of CPU, median": f"{seconds[len(seconds) // 2]:.0f}",
            }
        )
    rows += [f"| {name} | " + " | ".join(column[name] for column in columns) + " |" for name in columns[0]]
    return "\n".join(rows)


def _wrong(sets: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[str]:
    rows = [
        f"| {_short(name)} | {part} | {given} | {true} |"
        for those in sets.values()
        for name, found in those.items()
        for part, (given, true) in found.get("differs", {}).items()
    ]
    if not rows:
        return []
    return ["## Wrong", "\n".join(["| script | | forecast | script |", "|---|---|---:|---:|", *rows])]


def _failures(sets: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[str]:
    rows = [
        f"| {_short(name)} | {title} | {found['outcome']} | {brief(found['message'].removeprefix('error: '), 60)} |"
        for title, those in reversed(list(sets.items()))  # what is newest is worked on next
        for name, found in those.items()
        if "message" in found
    ]
    if not rows:
        return []
    more = f"\n\nAnd {len(rows) - _FAILURES} more, in the results." if len(rows) > _FAILURES else ""
    table = ["| script | set | outcome | message |", "|---|---|---|---|", *rows[:_FAILURES]]
    return ["## Without a forecast", "\n".join(table) + more]


def _left_out(left: Sequence[LeftOut]) -> str:
    """How many; the list has the reasons, which fill a page of their own."""
    drawn = [sum(one.drawn == n for one in left) for n in range(len(DRAWS) + 1)]
    first, *others = (f"{count} {title}" for count, title in zip(drawn[1:], DRAWS, strict=True))
    return (
        f"{first.replace(' ', ' more repositories were drawn ', 1)}, {', '.join(others)} and {drawn[0]} for the open set, and left out: "
        "no training script that runs with a current Python, torch and libraries, something to be built, or no snapshot. The list "
        "says which and why."
    )


def _short(name: str) -> str:
    """Repository and script, without arguments."""
    repository, _, what = name.partition(": ")
    words = what.split()
    script = next((w for w in words if w.endswith(".py")), words[0] if words else "")
    return f"{repository}: {script}"
