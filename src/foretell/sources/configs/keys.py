"""The keys of a configuration: each is used, costs nothing, or is named in a caveat; none is ignored in silence."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeVar

from foretell.errors import SourceError, check_count
from foretell.graph import Caveat

T = TypeVar("T")
_OFF: Final[tuple[Any, ...]] = (None, False, "", "none", "None", "auto", "no", "NO", (), [], {}, 0)
_SHOWN: Final = 12  # keys that a caveat names one by one


class Keys:
    """A table of a configuration. What is asked for counts as used."""

    def __init__(self, entries: Mapping[str, Any], file: str, inside: str = "", model: str | None = None) -> None:
        self._entries, self.file, self._inside = entries, file, inside
        self.model = model  # that is given beside the file, and goes before the one it names
        self._used: set[str] = set()
        self._parts: list[Keys] = []
        self._not_modelled: dict[str, str] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def take(self, name: str, default: Any = None) -> Any:
        """A value; None and `auto`, with which a file leaves it to others, are the default."""
        self._used.add(name)
        value = self._entries.get(name)
        return default if value is None or value == "auto" else value

    def raw(self, name: str) -> Any:
        """A value as it is written."""
        self._used.add(name)
        return self._entries.get(name)

    def count(self, name: str, default: T = None, least: int = 1) -> int | T:  # type: ignore[assignment]
        value = self.take(name)
        if value is True:  # of a launch script: what only running it would tell
            self.say(name, "its value is not in the file")
        if value is None or value is True:
            return default
        try:
            number = int(value) if isinstance(value, int | str) else int(value) if float(value).is_integer() else value
        except (TypeError, ValueError, OverflowError):
            raise self.wrong(name, value, "a whole number") from None
        check_count(f"{self.label(name)} of {self.file}", number, SourceError, least=least)
        return int(number)

    def number(self, name: str, default: float | None = None) -> float | None:
        value = self.take(name)
        try:
            number = default if value is None else float(value)
        except (TypeError, ValueError, OverflowError):
            raise self.wrong(name, value, "a number") from None
        if number is not None and not math.isfinite(number):
            raise self.wrong(name, value, "a finite number")
        return number

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.take(name)
        if value is None:
            return default
        if isinstance(value, str) and value.lower() in ("true", "false", "yes", "no", "1", "0"):
            return value.lower() in ("true", "yes", "1")
        if isinstance(value, bool | int):
            return bool(value)
        raise self.wrong(name, value, "true or false")

    def text(self, name: str, default: str = "") -> str:
        value = self.take(name, default)
        if not isinstance(value, str | int | float):
            raise self.wrong(name, value, "text")
        return str(value)

    def chosen(self, name: str, choices: Mapping[str, T], default: str) -> T:
        """What a word of the file stands for."""
        word = self.text(name, default)
        if word not in choices:
            raise self.wrong(name, word, f"one of {', '.join(choices)}")
        return choices[word]

    def part(self, name: str) -> Keys:
        """A table inside this one; empty where there is none."""
        value = self.take(name)
        value = {} if value is None or value is False else value
        if not isinstance(value, Mapping):
            raise self.wrong(name, value, "a table of keys")
        made = Keys({str(k): v for k, v in value.items()}, self.file, self.label(name), self.model)
        self._parts.append(made)
        return made

    def flattened(self, names: Iterable[str]) -> Keys:
        """The same table with the keys of some tables inside it as its own."""
        inside = {name: self._entries[name] for name in names if isinstance(self._entries.get(name), Mapping)}
        flat = {name: value for name, value in self._entries.items() if name not in inside}
        made = Keys(
            {**flat, **{k: v for table in inside.values() for k, v in table.items()}},
            self.file,
            self._inside,
            self.model,
        )
        self._used.update(self._entries)
        self._parts.append(made)
        return made

    def renamed(self, plain: Callable[[str], str]) -> Keys:
        """The same table by other spellings of its keys, which are all accounted for there."""
        made = Keys({plain(name): value for name, value in self._entries.items()}, self.file, self._inside, self.model)
        self._used.update(self._entries)
        self._parts.append(made)
        return made

    def read_as(self, entries: Mapping[str, Any], model: str | None = None) -> Keys:
        """The same file by entries that say it in another trainer's words, which are all accounted for there."""
        made = Keys(entries, self.file, self._inside, model or self.model)
        self._used.update(self._entries)
        self._parts.append(made)
        return made

    def left(self) -> list[str]:
        """What nobody has asked for so far."""
        return [name for name in self._entries if name not in self._used]

    def free(self, *names: str) -> None:
        """They cost nothing, or are what a forecast is asked for beside the file."""
        self._used.update(names)

    def not_modelled(self, *names: str, why: str = "") -> None:
        """They change the cost where they are set, and are named."""
        for name in names:
            if name in self._entries and not _is_off(self._entries[name]):
                self._not_modelled[self.label(name)] = why or shown(self._entries[name])
            self._used.add(name)

    def say(self, name: str, why: str) -> None:
        """Of a value that is used in part."""
        self._not_modelled[self.label(name)] = why

    def label(self, name: str) -> str:
        return f"{self._inside}.{name}" if self._inside else name

    def wrong(self, name: str, got: Any, allowed: str) -> SourceError:
        return SourceError(f"{self.label(name)} of {self.file} must be {allowed}, got {shown(got)}. Correct the file.")

    def caveats(self) -> Iterator[Caveat]:
        """What the file asks for that the forecast does not have."""
        unmodelled = dict(self._walk(lambda keys: keys._not_modelled.items()))
        if unmodelled:
            listed = _listed(f"{name} ({why})" if why else name for name, why in unmodelled.items())
            text = f"{self.file} asks for what changes the cost and is not modelled: {listed}."
            yield Caveat("configuration-not-modelled", text)
        unknown = list(self._walk(lambda keys: (keys.label(n) for n in keys._entries if n not in keys._used)))
        if unknown:
            text = f"{self.file} has keys that are not known here and may change the cost: {_listed(unknown)}."
            yield Caveat("configuration-key-unknown", text)

    def _walk(self, of: Any) -> Iterator[Any]:
        yield from of(self)
        for part in self._parts:
            yield from part._walk(of)


def shown(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:39]}…"


def _is_off(value: Any) -> bool:
    return any(value is off or (type(value) is type(off) and value == off) for off in _OFF)


def _listed(items: Iterable[str]) -> str:
    names = list(items)
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
