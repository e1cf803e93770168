"""The words and operators of a shell script, as a shell takes them apart."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

Mode = Literal["bare", "double", "single"]
_CLOSES: Final = {"(": ")", "{": "}"}
_BLANK: Final = re.compile(r"<[A-Za-z][^<>\n]*>")  # <PATH TO DATA>: for the reader to fill in
_OPERATORS: Final = (";;", "&&", "||", ";", "&", "|", "(", ")", "\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A stretch of a word under one kind of quotation."""

    text: str
    mode: Mode


Word = tuple[Segment, ...]
Token = Word | str  # an operator is its text


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What a text is made of; `documents` are those that it writes with `<<`, by the number of their token."""

    tokens: tuple[Token, ...]
    documents: dict[int, str]


def bare(token: Token) -> str:
    """The text of a word without quotations or variables; empty for any other."""
    plain = not isinstance(token, str) and len(token) == 1 and token[0].mode == "bare"
    return token[0].text if plain and isinstance(token[0], Segment) else ""


class _Lexer:
    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self.tokens: list[Token] = []
        self.segments: list[Segment] = []
        self.documents: dict[int, str] = {}
        self.awaited: list[tuple[int, str]] = []  # documents that begin on the next line

    def run(self) -> Script:
        while self.at < len(self.text):
            self._next()
        self._end_word()
        return Script(tokens=tuple(self.tokens), documents=self.documents)

    def _next(self) -> None:
        text, char = self.text, self.text[self.at]
        if text.startswith("\\\n", self.at):
            self.at += 2
        elif char == "\\":
            self._add(text[self.at + 1 : self.at + 2], "single")
            self.at += 2
        elif char in " \t\r":
            self._end_word()
            self.at += 1
        elif char == "#" and not self.segments:
            self.at = _find(text, "\n", self.at)
        elif char == "'":
            end = _find(text, "'", self.at + 1)
            self._add(text[self.at + 1 : end], "single")
            self.at = end + 1
        elif char == '"':
            self._double()
        elif char in "$`":
            end = closed(text, self.at)
            self._add(text[self.at : end], "bare")
            self.at = end
        elif char == "<" and (blank := _BLANK.match(text, self.at)):
            self._add(blank[0].replace(" ", "_"), "single")
            self.at = blank.end()
        elif char in "<>":
            self._redirection()
        elif operator := next((o for o in _OPERATORS if text.startswith(o, self.at)), ""):
            self._operator(operator)
        else:
            self._add(char, "bare")
            self.at += 1

    def _operator(self, operator: str) -> None:
        array = operator == "(" and bool(self.segments) and self.segments[-1].text.endswith("=")
        self._end_word()
        self.tokens.append("=(" if array else operator)
        self.at += len(operator)
        if operator == "\n":
            for number, ends in self.awaited:
                self._document(number, ends)
            self.awaited.clear()

    def _redirection(self) -> None:
        """`2>&1`, `> FILE`; `<<END` brings a document."""
        text = self.text
        if self.segments and "".join(s.text for s in self.segments).isdigit():
            self.segments.clear()
        self._end_word()
        start = self.at
        while self.at < len(text) and text[self.at] in "<>&-":
            self.at += 1
        operator = text[start : self.at]
        self.tokens.append(operator)
        if operator in ("<<", "<<-"):
            end = min(_find(text, stop, self.at) for stop in "\n >|;")
            word = text[self.at : end].strip() or text[self.at : _find(text, "\n", self.at)].split(">")[0].strip()
            self.at += text[self.at :].index(word) + len(word) if word else 0
            self.awaited.append((len(self.tokens) - 1, word.strip("'\"\\")))

    def _document(self, number: int, ends: str) -> None:
        lines = []
        while self.at < len(self.text):
            end = _find(self.text, "\n", self.at)
            line, self.at = self.text[self.at : end], end + 1
            if line.strip() == ends:
                break
            lines.append(line)
        self.documents[number] = "\n".join(lines)

    def _double(self) -> None:
        text, parts = self.text, list[str]()
        self.at += 1
        while self.at < len(text) and text[self.at] != '"':
            if text.startswith("\\\n", self.at):
                self.at += 2
            elif text[self.at] == "\\" and text[self.at + 1 : self.at + 2] in ('"', "\\", "$", "`"):
                if parts:
                    self._add("".join(parts), "double")
                    parts = []
                self._add(text[self.at + 1], "single")
                self.at += 2
            elif text[self.at] in "$`":
                end = closed(text, self.at)
                parts.append(text[self.at : end])
                self.at = end
            else:
                parts.append(text[self.at])
                self.at += 1
        self.at += 1
        self.segments.append(Segment(text="".join(parts), mode="double"))

    def _add(self, text: str, mode: Mode) -> None:
        last = self.segments[-1] if self.segments else None
        if last is not None and last.mode == mode == "bare":
            self.segments[-1] = Segment(text=last.text + text, mode=mode)
        else:
            self.segments.append(Segment(text=text, mode=mode))

    def _end_word(self) -> None:
        if self.segments:
            self.tokens.append(tuple(self.segments))
            self.segments = []


def taken_apart(text: str) -> Script:
    return _Lexer(text).run()


def _find(text: str, what: str, start: int) -> int:
    found = text.find(what, start)
    return len(text) if found < 0 else found


def closed(text: str, start: int) -> int:
    """The end of `$NAME`, `${…}`, `$(…)` or `` `…` ``."""
    if text[start] == "`":
        return min(_find(text, "`", start + 1) + 1, len(text))
    opened = text[start + 1 : start + 2]
    if opened not in _CLOSES:
        return start + 1
    depth = 0
    for at, char in _outside_quotations(text, start + 1):
        depth += (char == opened) - (char == _CLOSES[opened])
        if depth == 0:
            return at + 1
    return len(text)


def _outside_quotations(text: str, start: int) -> Iterator[tuple[int, str]]:
    quoted = ""
    for at in range(start, len(text)):
        char = text[at]
        if quoted:
            quoted = "" if char == quoted else quoted
        elif char == "'":
            quoted = char
        else:
            yield at, char
