"""The words of a command line: what a shell would make of them, and the options before a program's own arguments."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Collection
from typing import Final

from foretell.errors import SourceError
from foretell.units import whole_number

_ASSIGNMENT: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_ENDS: Final = re.compile(r"(\d?>|&>|<|\||&$)")  # where output goes is nothing to the script
_CHAINS: Final = ("&&", "||", ";")


def words_of(line: str) -> list[str]:
    """As a shell splits it, up to what it does with the output."""
    try:
        lexer = shlex.shlex(line.replace("\\\n", " "), posix=True, punctuation_chars="|&;<>")
        lexer.whitespace_split = True
        lexer.commenters = ""
        words = list(lexer)
    except ValueError as problem:
        raise SourceError(f"the launch line cannot be read: {problem}. Quote it as for a shell.") from None
    for index, word in enumerate(words):
        if word in _CHAINS:
            raise SourceError(
                f"the launch line has several commands, at {word!r}. Give the one that starts the training, and set "
                "variables before it: NAME=value torchrun …."
            )
        if _ENDS.match(word):
            del words[index - (words[index - 1] in ("1", "2") and index > 0) :]
            break
    return [os.path.expandvars(word) for word in words]


def take_assignments(words: list[str]) -> dict[str, str]:
    """Variables that are set before a command; they are taken off it."""
    found: dict[str, str] = {}
    while words and (words[0] == "env" or _ASSIGNMENT.match(words[0])):
        name, equals, value = words.pop(0).partition("=")
        if equals:
            found[name] = value
    return found


def take_options(
    words: list[str], flags: Collection[str], launcher: str, pairs: Collection[str] = ()
) -> dict[str, str]:
    """A launcher's options, by names without dashes, up to the first word that is none; they are taken off.

    Every option has a value, in its word or the next, unless it is one of the flags; `pairs` have two.
    """
    found: dict[str, str] = {}
    while words and words[0].startswith("-") and words[0] != "-":
        word = words.pop(0)
        if word == "--":
            break
        name, equals, value = word.partition("=")
        plain = name.lstrip("-").replace("_", "-")
        if not name.startswith("--") and len(plain) > 1 and plain[1:].isdigit() and not equals:
            plain, equals, value = plain[0], "=", plain[1:]  # -n8
        if equals or plain in flags:
            found[plain] = value if equals else "true"
            continue
        if not words:
            raise SourceError(
                f"{launcher} {name} lacks its value in the launch line. Give it, and the script after it."
            )
        found[plain] = words.pop(0)
        del words[: plain in pairs]
    return found


def count_of(options: dict[str, str], launcher: str, *names: str) -> int | None:
    """A number among the options, by any of its names; None where it is not there, or means all devices of a node."""
    for name in names:
        if (text := options.get(name)) is None or text in ("gpu", "auto"):
            continue
        number = whole_number(text.rpartition(":")[2])  # 1:4 is from one to four
        if not number:
            raise SourceError(
                f"{launcher} --{name} {text} in the launch line is not a number here. Write it out, like --{name} 8."
            )
        return number
    return None
