"""Pages of HTML: the frame every report shares, tables, figures and legends. No network, no scripts, light and dark."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Final

from foretell.errors import InputError
from foretell.graph import Caveat
from foretell.report.findings import Part
from foretell.text import plain
from foretell.units import show_share

STYLE: Final = Path(__file__).parent / "page.css"


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """What a server puts around a page: files that it serves, in place of styles inside, and a bar above. HTML already."""

    head: str
    above: str


def document(title: str, body: str, *, kind: str, style: str = "", footer: str = "", frame: Frame | None = None) -> str:
    """A whole page; `body` is HTML already. A page without a frame is a file of its own."""
    from foretell import __version__

    inside = frame.head if frame else f"<style>\n{STYLE.read_text(encoding='utf-8')}{style}</style>"
    # The empty icon keeps a browser from asking for one.
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta name="generator" content="Foretell {escape(__version__)}">\n<link rel="icon" href="data:,">\n'
        f"<title>{escape(title)} · Foretell</title>\n{inside}\n</head>\n<body>\n{frame.above if frame else ''}<main>\n"
        f'<p class="kind">Foretell {kind}</p>\n{body}\n'
        f"<footer>Made by Foretell {escape(__version__)}. {footer}</footer>\n</main>\n</body>\n</html>\n"
    )


def write_page(text: str, path: str | os.PathLike[str]) -> None:
    try:
        Path(path).write_text(plain(text), encoding="utf-8")
    except OSError as error:
        raise InputError(f"the report cannot be written to {path}: {error.strerror}. Choose another file.") from None


def table(
    titles: Sequence[str], rows: Iterable[Sequence[str]], *, words: Sequence[str] = (), wide: Sequence[str] = ()
) -> str:
    """A name, then numbers, `words` and, under no title, a bar; those in `wide` are not for a phone.

    Cells are HTML already: whoever fills them escapes.
    """
    kinds = ["name", *("share" if not title else "" if title in words else "n" for title in titles[1:])]
    kinds = [f"{kind} wide-only" if title in wide else kind for kind, title in zip(kinds, titles, strict=True)]
    head = "".join(f'<th scope="col" class="{kind}">{title}</th>' for title, kind in zip(titles, kinds, strict=True))
    lines = ("".join(f'<td class="{kind}">{cell}</td>' for kind, cell in zip(kinds, row, strict=True)) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def caveats(items: Iterable[Caveat]) -> str:
    listed = "".join(
        f"<li>{escape(c.text)} <small>{f'{show_share(c.share)} of the step · ' if c.share is not None else ''}"
        f"<code>{escape(c.code)}</code></small></li>"
        for c in items
    )
    return f'<h3>Caveats</h3>\n<ul class="caveats">{listed}</ul>' if listed else ""


def section(title: str, note: str, body: str) -> str:
    return f'<h3>{escape(title)}</h3>\n<p class="soft">{escape(note)}</p>{body}'


def figure(title: str, caption: str, chart: str, below: str = "") -> str:
    return f"<h3>{escape(title)}</h3>\n<figure><figcaption>{escape(caption)}</figcaption>{chart}{below}</figure>"


def for_both_widths(wide: str, narrow: str) -> str:
    """Letters of one drawing cannot be right on a desk and on a phone."""
    return f'<div class="wide-only">{wide}</div><div class="narrow-only">{narrow}</div>'


def legend(parts: Sequence[Part], whole: float, show: Callable[[float], str]) -> str:
    items = (
        f"<li>{_swatch(part.key)}<span>{escape(part.label)}</span><span>{show(part.amount)}</span>"
        f"<span>{show_share(part.amount / whole if whole else 0.0)}</span></li>"
        for part in parts
    )
    return f'<ul class="legend">{"".join(items)}</ul>'


def keys(labels: dict[str, str]) -> str:
    """Colours by key, with what they stand for."""
    items = "".join(f"<li>{_swatch(key)}{escape(label)}</li>" for key, label in labels.items())
    return f'<ul class="keys">{items}</ul>'


def bar(share: float) -> str:
    width = f"{100 * min(share, 1.0):.2f}"
    return f'<svg class="bar" aria-hidden="true" viewBox="0 0 100 1" preserveAspectRatio="none"><rect width="{width}" height="1"/></svg>'


def swatch(colour: str, kind: str = "") -> str:
    named = f"swatch {kind}".rstrip()
    return (
        f'<svg class="{named}" aria-hidden="true" viewBox="0 0 1 1"><rect width="1" height="1" fill="{colour}"/></svg>'
    )


def _swatch(key: str) -> str:
    return swatch(f"var(--c-{key})", key)
