"""A script followed from its first line to its last: assignments, lists, branches whose conditions are known, commands."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Sequence
from typing import Final, cast

from foretell.sources.configs.shell.variables import UNKNOWN, Variables, calculated
from foretell.sources.configs.shell.words import Segment, Token, Word, bare, taken_apart

ReadOther = Callable[[str], str | None]  # a file that is sourced
_ASSIGNED: Final = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_SEPARATORS: Final = ("\n", ";", "&", "|", "&&", "||", ";;", ")", "(")
_DECLARES: Final = ("export", "declare", "local", "readonly", "typeset")
_DEEPEST: Final = 8
_COMMANDS: Final = 4096


class Reader:
    """Nothing is run: commands are kept with their words, in order, and files they write from documents by name."""

    def __init__(self, variables: Variables, read_other: ReadOther, depth: int = 0) -> None:
        self.variables, self.read_other, self.depth = variables, read_other, depth
        self.commands: list[list[str]] = []
        self.written: dict[str, str] = {}
        self.tokens: Sequence[Token] = ()
        self.at = 0
        self._piped: str | None = None  # what the command before a | shows

    def read(self, text: str) -> None:
        script = taken_apart(text)
        self.tokens, self.documents, self.at = script.tokens, script.documents, 0
        while self.at < len(self.tokens):
            self._statements((), active=True)
            self.at += 1  # a word that closes nothing

    def _word(self) -> str:
        return bare(self.tokens[self.at]) if self.at < len(self.tokens) else ""

    def _statements(self, ends: tuple[str, ...], *, active: bool) -> None:
        """Up to a word or operator that ends them, which is not passed."""
        while self.at < len(self.tokens):
            token = self.tokens[self.at]
            word = self._word()
            if (word and word in ends) or (isinstance(token, str) and token in ends):
                return
            if isinstance(token, str) or word in ("{", "}", "then", "do", "!", "time"):
                self.at += 1
            elif word == "if":
                self._if(active)
            elif word in ("for", "while", "until"):
                self._loop(word, active)
            elif word == "case":
                self._case(active)
            else:
                self._simple(active)

    def _if(self, active: bool) -> None:
        taken = False
        while self._word() in ("if", "elif"):
            self.at += 1
            condition = self._up_to("then")
            holds = active and not taken and self._holds(condition)
            self._statements(("elif", "else", "fi"), active=holds)
            taken = taken or holds
        if self._word() == "else":
            self.at += 1
            self._statements(("fi",), active=active and not taken)
        self.at += 1

    def _loop(self, kind: str, active: bool) -> None:
        """The first round of `for`; how often `while` goes round is not known, so it is passed over."""
        self.at += 1
        head = self._up_to("do")
        if kind == "for" and len(head) > 2 and active and bare(head[1]) == "in":
            words = [w for token in head[2:] if not isinstance(token, str) for w in self.variables.words(token)]
            self.variables.assign(bare(head[0]), words[:1])
        self._statements(("done",), active=active and kind == "for")
        self.at += 1

    def _case(self, active: bool) -> None:
        self.at += 1
        value = " ".join(w for t in self._up_to("in") if not isinstance(t, str) for w in self.variables.words(t))
        taken = False
        while self.at < len(self.tokens) and self._word() != "esac":
            patterns = self._up_to(")", "esac")
            if self._word() == "esac":
                break
            texts = [self.variables.text(t) for t in patterns if not isinstance(t, str)]
            holds = active and not taken and any(fnmatch.fnmatchcase(value, text) for text in texts)
            self._statements((";;", "esac"), active=holds)
            taken = taken or holds
        self.at += 1

    def _up_to(self, *ends: str) -> list[Token]:
        """Tokens before a word or operator that ends them; operators are passed, `esac` is not."""
        found: list[Token] = []
        while self.at < len(self.tokens):
            token = self.tokens[self.at]
            if (isinstance(token, str) and token in ends) or (self._word() and self._word() in ends):
                if self._word() != "esac":
                    self.at += 1
                break
            found.append(token)
            self.at += 1
        return found

    def _simple(self, active: bool) -> None:
        """One command up to its separator, with its assignments, and what it writes to a file or hands on."""
        words: list[Word] = []
        target: Word | None = None
        document: str | None = None
        while self.at < len(self.tokens) and not _separates(token := self.tokens[self.at]):
            self.at += 1
            if not isinstance(token, str):
                words.append(token)
            elif token == "=(" and words:
                self._list(words.pop(), active)
            elif token.startswith("<<"):
                document = self.documents.get(self.at - 1)
            elif token[:1] in "<>" and self.at < len(self.tokens) and not isinstance(self.tokens[self.at], str):
                target = cast(Word, self.tokens[self.at])
                self.at += 1
        if not active:
            return
        filled = None if document is None else self.variables.text((Segment(text=document, mode="double"),))
        shown = self._command(words, self._piped if filled is None else filled) if words else None
        if target is not None and shown is not None:
            self.written[self.variables.text(target)] = shown
        self._piped = shown if self.at < len(self.tokens) and self.tokens[self.at] == "|" else None

    def _list(self, name: Word, active: bool) -> None:
        """`NAME=( … )`, over lines."""
        inside: list[Word] = []
        while self.at < len(self.tokens) and self.tokens[self.at] != ")":
            token = self.tokens[self.at]
            if not isinstance(token, str):
                inside.append(token)
            self.at += 1
        self.at += 1
        if active and (match := _ASSIGNED.match(name[0].text)):
            made = [w for word in inside for w in self.variables.words(word)]
            before = (self.variables.values(match[1]) or []) if match[2] else []
            self.variables.assign(match[1], [*before, *made])

    def _command(self, words: list[Word], piped: str | None = None) -> str | None:
        """Keep a command; the text that it would show, of the few whose text is known."""
        while words and (match := _ASSIGNED.match(words[0][0].text)) and words[0][0].mode == "bare":
            value = (Segment(text=match[3], mode="bare"), *words[0][1:])
            self.variables.assign(match[1], [self.variables.text(value)], more=bool(match[2]))
            words = words[1:]
        if not words:
            return None
        name = bare(words[0])
        made = [w for word in words for w in self.variables.words(word)]
        if name in _DECLARES:
            for word in words[1:]:
                if _ASSIGNED.match(word[0].text):
                    self._command([word])
        elif name in ("source", ".") and len(words) > 1:
            self._other(self.read_other(self.variables.text(words[1])))
        elif name == "eval":
            self._other(" ".join(made[1:]))
        elif "-c" in made[:-1] and " " in (inner := made[made.index("-c") + 1]):  # sh -c "…", also behind srun
            self._other(inner)
        elif name in ("cat", "sed", "echo"):
            return self._shown(name, made[1:], piped)
        elif made and len(self.commands) < _COMMANDS:
            self.commands.append(made)
        return None

    def _shown(self, name: str, words: list[str], piped: str | None) -> str | None:
        words = [word for word in words if not word.startswith("-")]
        if name == "echo":
            return " ".join(words)
        changes, files = ([], words) if name == "cat" else (words[:1], words[1:])
        text = self.read_other(files[0]) if files else piped
        for change in changes if text is not None else ():
            parts = change[1:].split(change[1]) if change.startswith("s") and len(change) > 1 else []
            if text is None or len(parts) != 4 or not parts[1]:  # s/old/new/flags
                return None
            text = text.replace(parts[1], parts[2])
        return text

    def _other(self, text: str | None) -> None:
        """Further text of the script: a file, or what `eval` reads."""
        if text is None or self.depth > _DEEPEST:
            return
        inner = Reader(self.variables, self.read_other, self.depth + 1)
        inner.read(text.replace(UNKNOWN, ""))
        self.commands += inner.commands
        self.written |= inner.written

    def _holds(self, tokens: list[Token]) -> bool:
        """Whether a condition holds; of what is not known, not."""
        result, joined = True, "&&"
        words: list[str] = []
        for token in [*tokens, ";"]:
            if not isinstance(token, str):
                words += self.variables.words(token) or [""]
            elif token in ("&&", "||", ";", "\n"):
                if words:
                    holds = _test(words)
                    result = (result and holds) if joined == "&&" else (result or holds)
                joined = token if token in ("&&", "||") else joined
                words = []
        return result


def _separates(token: Token) -> bool:
    return isinstance(token, str) and token in _SEPARATORS


def _test(words: list[str]) -> bool:
    negated = words[:1] == ["!"]
    words = words[1:] if negated else words
    if words[:1] in (["["], ["[["], ["test"]):
        words = [w for w in words[1:] if w not in ("]", "]]")]
        if words[:1] == ["!"]:
            negated, words = not negated, words[1:]
    elif words[:1] not in (["true"], ["false"]):
        return False
    holds = words == ["true"] or _compared(words)
    return holds != negated


def _compared(words: list[str]) -> bool:
    for joint, of in (("-o", any), ("-a", all)):
        if joint in words:
            at = words.index(joint)
            return of((_compared(words[:at]), _compared(words[at + 1 :])))
    if any(UNKNOWN in word for word in words):
        return False
    match words:
        case ["-z", *rest]:
            return not "".join(rest)
        case ["-n", *rest]:
            return bool("".join(rest))
        case [left, "=" | "==", right]:
            return fnmatch.fnmatchcase(left, right)
        case [left, "!=", right]:
            return not fnmatch.fnmatchcase(left, right)
        case [left, "-eq" | "-ne" | "-gt" | "-ge" | "-lt" | "-le" as how, right]:
            signs = {"-eq": "==", "-ne": "!=", "-gt": ">", "-ge": ">=", "-lt": "<", "-le": "<="}
            return calculated(f"{left or 0} {signs[how]} {right or 0}") == "1"
        case [single]:
            return bool(single)
    return False
