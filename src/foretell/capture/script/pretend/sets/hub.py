"""The library `datasets`: sets of the hub, and files it would read, that are not on this machine."""

from __future__ import annotations

import inspect
import os
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from foretell.capture.as_gpu.patches import replace
from foretell.capture.script.imports import once_imported
from foretell.capture.script.meant import length_in
from foretell.capture.script.pretend.sets import growing
from foretell.capture.script.pretend.sets.columns import SOUND, Spec, as_long, classes_in, column, spec_of
from foretell.capture.script.pretend.sets.described import described
from foretell.capture.script.pretend.sets.known import KnownSet, known_set, languages_of
from foretell.capture.script.pretend.sets.mentions import mentioned_columns
from foretell.capture.script.session import Session

_UNKNOWN_ROWS: Final = 10_000  # of a split that nobody knows
_STREAMED: Final = 2**16  # rows of a stream, whose end no script waits for
_SPLITS: Final = ("train", "validation", "test")
_READERS: Final = (
    "json",
    "csv",
    "text",
    "parquet",
    "imagefolder",
    "audiofolder",
    "arrow",
    "webdataset",
    "pandas",
    "xml",
)
_FOLDERS: Final[Mapping[str, Mapping[str, Spec]]] = {
    "imagefolder": {"image": "image:500x375", "label": "class:1000"}, "audiofolder": {"audio": "audio:16000:10.0"},
    "text": {"text": "text:300"},
}  # fmt: skip


def install(session: Session) -> None:
    once_imported("datasets", lambda module: _Hub(module, session).adapt())


class _Hub:
    def __init__(self, datasets: Any, session: Session) -> None:
        self.datasets, self.session = datasets, session
        self.saved: dict[str, Any] = {}  # what the script has put on disk
        self._reading = False

    def adapt(self) -> None:
        growing.let_stand_ins_grow(self.datasets)
        _decode_sounds(self.datasets)
        self._or_else("load_dataset", self.load)
        self._or_else("load_from_disk", self.load_from_disk)
        for owner in (self.datasets.Dataset, self.datasets.DatasetDict):
            replace(owner, "save_to_disk", lambda made, path, *a, **kw: self.saved.update({_place(path): made}))
            replace(owner, "push_to_hub", lambda *args, **kwargs: None)
        self._inspect()

    def _or_else(self, name: str, make: Callable[..., Any]) -> None:
        """Also where parts of the library have the function by name."""
        read = getattr(self.datasets, name)

        def either(*args: Any, **kwargs: Any) -> Any:
            if name == "load_from_disk" and (made := self.saved.get(_place(args[0] if args else ""))) is not None:
                return made
            try:
                return self._read(read, args, kwargs)
            except Exception:
                if self._reading:  # what reads a set falls back as a whole
                    raise
                return make(*args, **kwargs)

        replace(self.datasets, name, either)
        if hasattr(getattr(self.datasets, "load", None), name):
            replace(self.datasets.load, name, either)

    def _read(self, read: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """What is on this machine; of files that it makes a cache of, by one in the folder for what is written."""
        outer, self._reading = self._reading, True
        try:
            return read(*args, **kwargs)
        except Exception:
            if outer or "cache_dir" not in inspect.signature(read).parameters:
                raise
            return read(*args, **{**kwargs, "cache_dir": os.path.join(tempfile.gettempdir(), "sets")})
        finally:
            self._reading = outer

    def _inspect(self) -> None:
        answers: dict[str, Callable[..., Any]] = {
            "get_dataset_config_names": lambda path, *a, **kw: ["default"],
            "get_dataset_split_names": lambda path, config_name=None, **kw: list(self._known(path, config_name).splits),
            "load_dataset_builder": lambda path, name=None, **kw: self._builder(path, name),
        }
        for name, answer in answers.items():
            if hasattr(self.datasets, name):
                self._or_else(name, answer)

    def _builder(self, path: Any, name: Any) -> Any:
        info = self.load(path, name, split="train").info
        return type("Builder", (), {"info": info, "name": str(path)})()

    # What is loaded

    def load(
        self, path: Any, name: Any = None, data_dir: Any = None, data_files: Any = None, split: Any = None,
        streaming: bool = False, features: Any = None, **kwargs: Any,
    ) -> Any:  # fmt: skip
        path, name = str(path), name if isinstance(name, str) else None
        known = self._known(path, name, data_files)
        what = f"data set {path}" if path not in _READERS else f"files {data_files or data_dir or path}"
        rows = {part: min(n, _STREAMED) if streaming else n for part, n in known.splits.items()}
        parts = {part: self._split(what, known, part, n, name, features) for part, n in rows.items()}
        if split is None:
            whole = self.datasets.DatasetDict(parts)
            streams = {part: made.to_iterable_dataset() for part, made in parts.items()}
            return self.datasets.IterableDatasetDict(streams) if streaming else whole
        if isinstance(split, list | tuple):
            return [self._streamed(self._chosen(parts, one), streaming) for one in split]
        return self._streamed(self._chosen(parts, split), streaming)

    def load_from_disk(self, path: Any, *args: Any, **kwargs: Any) -> Any:
        """A set that was prepared and saved: one with splits, unless its path names one of them."""
        named = os.path.basename(_place(path))
        return self.load(path, split="train" if named in _SPLITS else None)

    def _streamed(self, made: Any, streaming: bool) -> Any:
        return made.to_iterable_dataset() if streaming else made

    def _known(self, path: str, name: str | None = None, data_files: Any = None) -> KnownSet:
        if (known := known_set(path, name)) is not None:
            return known
        splits: Sequence[str] = _SPLITS
        if isinstance(data_files, Mapping):
            splits = list(data_files)
        elif data_files is not None or path in _READERS:
            splits = ("train",)
        columns = _FOLDERS.get(path)
        if columns is None:
            what = f"data set {path}"
            arguments = self.session.script.arguments
            length = length_in(arguments)
            columns = {n: as_long(spec_of(n, what), length) for n in mentioned_columns(arguments)}
        return KnownSet(splits=dict.fromkeys(splits, _UNKNOWN_ROWS), columns=columns or {"text": "text:500"})

    def _split(self, what: str, known: KnownSet, part: str, rows: int, name: str | None, given: Any = None) -> Any:
        languages = languages_of(name, *self.session.script.arguments) or ("en", "de")
        made = {n: column(self.datasets, spec, languages, n) for n, spec in known.columns.items()}
        if isinstance(given, Mapping):  # as the script itself describes them
            made = described(given)
        few = min(rows, growing.HEAVY if any(c.heavy for c in made.values()) else growing.LIGHT)
        table = {n: [c.value(i) for i in range(few)] for n, c in made.items()}
        features = self.datasets.Features({n: c.feature for n, c in made.items()})
        info = self.datasets.DatasetInfo(description=f"{growing.MARK}{what}", features=features)
        whole = self.datasets.Dataset.from_dict(table, features=features, info=info, split=part)
        self._note(what, known)
        return growing.grown(whole, rows)

    def _note(self, what: str, known: KnownSet) -> None:
        known_rows = any(rows != _UNKNOWN_ROWS for rows in known.splits.values())
        classes = [(n, count) for n, spec in known.columns.items() if (count := classes_in(spec)) is not None]
        words = [f"columns {', '.join(known.columns)}"]
        if known_rows:
            self.session.stand_in(what)
            return
        words += [f"{count} classes of {name}" for name, count in classes]
        self.session.stand_in(what, f"{'; '.join(words)}; {_UNKNOWN_ROWS:,} rows a split", decides_size=bool(classes))

    def _chosen(self, parts: Mapping[str, Any], split: Any) -> Any:
        """A split, a part of one as `train[:10%]`, or several as `train+test`."""
        pieces = [self._piece(parts, word.strip()) for word in str(split).split("+")]
        return pieces[0] if len(pieces) == 1 else self.datasets.concatenate_datasets(pieces)

    def _piece(self, parts: Mapping[str, Any], word: str) -> Any:
        name, _, of = word.partition("[")
        made = parts.get(name)
        if made is None:  # of another name, which the script knows better
            made = parts.get("train") or next(iter(parts.values()))
        if not of:
            return made
        first, _, last = of.rstrip("]").partition(":")
        rows = len(made)
        return made.select(range(_row(first, rows, 0), _row(last, rows, rows)))


def _row(word: str, rows: int, otherwise: int) -> int:
    if not (number := re.match(r"\s*(-?\d+)(%?)", word)):
        return otherwise
    row = round(rows * int(number[1]) / 100) if number[2] else int(number[1])
    return max(0, min(rows, row + rows if row < 0 else row))


def _place(path: Any) -> str:
    return os.path.abspath(str(path))


def _decode_sounds(datasets: Any) -> None:
    """A recording of ours has no samples to decode, and decoders may not be installed."""
    import numpy as np

    audio: Any = datasets.Audio
    decode, encode = audio.decode_example, audio.encode_example

    def encoded(self: Any, value: Any) -> Any:
        ours = isinstance(value, dict) and SOUND in str(value.get("path") or "")
        return {"bytes": None, "path": value["path"]} if ours else encode(self, value)

    def decoded(self: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        path = str((value or {}).get("path") or "")
        if not os.path.basename(path).startswith(SOUND):
            return decode(self, value, *args, **kwargs)
        _, _, own, seconds = os.path.basename(path).removesuffix(".wav").split("-")
        rate = self.sampling_rate or int(own)
        return {"path": path, "array": np.zeros(int(rate * float(seconds)), np.float32), "sampling_rate": rate}

    replace(audio, "encode_example", encoded)
    replace(audio, "decode_example", decoded)
