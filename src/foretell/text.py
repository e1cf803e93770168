"""Text that leaves the program: names come from strangers' files, and a terminal obeys some of their characters."""

from __future__ import annotations

import json
import math
import re
from json.encoder import encode_basestring
from typing import Any, Final

# Control characters but tab and new line, marks that turn the direction of writing, halves of characters.
_OBEYED: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_LONG: Final = re.compile(r"\S{1000,}")  # longer than any path that is typed


def plain(text: str) -> str:
    """What a terminal only shows: `␛[31m` where there was an escape."""
    return _OBEYED.sub(_picture, text)


def brief(text: str) -> str:
    """With the middle of words left out that fill a screen."""
    return _LONG.sub(lambda word: f"{word[0][:80]}…{word[0][-20:]}", text)


def json_text(value: Any) -> str:
    """JSON that every reader takes: a number that is none is null, and what a terminal obeys is escaped."""
    return _OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", _written(value, "\n"))


def _picture(found: re.Match[str]) -> str:
    code = ord(found[0])
    return chr(0x2400 + code) if code < 0x20 else "␡" if code == 0x7F else "\N{REPLACEMENT CHARACTER}"


def _written(value: Any, line: str) -> str:
    """As `json.dumps` with an indent of two writes it, which is slow where it indents; `line` begins a line."""
    if isinstance(value, str):
        return encode_basestring(value)
    if isinstance(value, float):
        return float.__repr__(value) if math.isfinite(value) else "null"
    if not value or not isinstance(value, dict | list | tuple):
        return json.dumps(value)
    inside = line + "  "
    if isinstance(value, dict):
        parts = [f"{_name(key)}: {_written(item, inside)}" for key, item in value.items()]
        return f"{{{inside}{f',{inside}'.join(parts)}{line}}}"
    return f"[{inside}{f',{inside}'.join([_written(item, inside) for item in value])}{line}]"


def _name(key: Any) -> str:
    return encode_basestring(key) if isinstance(key, str) else json.dumps({key: 0})[1:-4]
