"""A few rows that stand for many: work on a stand-in is done on them, and what comes out is as long as it would be.

Rows are repeated through the library's own table of indices, so that lengths, samplers and epochs are those of the
whole set, while mapping and filtering a set of millions takes a moment.
"""

from __future__ import annotations

import inspect
from typing import Any, Final

from foretell.capture.as_gpu.patches import replace
from foretell.capture.script.pretend.sets.columns import column, spec_of

MARK: Final = "foretell stands in for the "  # begins the description of what we made, which its descendants inherit
LIGHT: Final = 256  # rows of texts that are really there
HEAVY: Final = 16  # of pictures and sounds
_made: Final[list[str]] = []  # what was stood in for: a batch that is mapped does not say whose it is
_MAX_ROWS: Final = 2**21  # rows of the longest: a permutation of more takes too long


def is_stand_in(dataset: Any) -> bool:
    return MARK in (getattr(dataset.info, "description", None) or "")


def grown(few: Any, rows: int) -> Any:
    """The set with its rows repeated, in turn, until there are as many."""
    import numpy as np

    _made.append(few.info.description)
    rows = min(rows, _MAX_ROWS)
    return few if len(few) in (0, rows) else few.select(np.arange(rows) % len(few))


def let_stand_ins_grow(datasets: Any) -> None:
    _work_on_few(datasets.Dataset)
    _make_columns(datasets)
    _shuffle_streams(datasets)


def _few(dataset: Any) -> Any:
    """The rows that are really there, or as many of them as are left."""
    return dataset.select(range(min(len(dataset), dataset.data.num_rows)))


def _work_on_few(kind: Any) -> None:
    work, leave = kind.map, kind.filter
    of_map = inspect.signature(work)

    def mapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = of_map.bind(self, *args, **kwargs)
        given.arguments.pop("num_proc", None)
        if not is_stand_in(self) or not len(self):
            return work(*given.args, **given.kwargs)
        few = _few(self)
        given.arguments["self"] = few
        made = work(*given.args, **given.kwargs)
        if not len(made):
            return made
        return grown(made, max(1, round(len(self) * len(made) / len(few))))

    def filtered(self: Any, *args: Any, **kwargs: Any) -> Any:
        kwargs.pop("num_proc", None)
        if not is_stand_in(self) or not len(self):
            return leave(self, *args, **kwargs)
        few = _few(self)
        left = leave(few, *args, **kwargs)
        if not len(left):  # it looks for what our rows do not have
            return self
        return self if len(left) == len(few) else grown(left, max(1, round(len(self) * len(left) / len(few))))

    replace(kind, "map", mapped)
    replace(kind, "filter", filtered)


def _make_columns(datasets: Any) -> None:
    """A column that is read, renamed or removed, and is not there, is made as its name suggests."""
    kind = datasets.Dataset

    def with_columns(dataset: Any, names: Any) -> Any:
        wanted = [names] if isinstance(names, str) else list(names)
        missing = [name for name in wanted if isinstance(name, str) and name not in dataset.column_names]
        return _added(datasets, dataset, missing) if missing and is_stand_in(dataset) else dataset

    def making(name: str, of: Any) -> None:
        plain = getattr(kind, name)

        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            names = args[0] if args else next(iter(kwargs.values()), ())
            return plain(with_columns(self, of(names)), *args, **kwargs)

        replace(kind, name, method)

    for name in ("rename_column", "cast_column", "class_encode_column", "unique"):
        making(name, lambda names: names)
    making("rename_columns", list)
    making("select_columns", lambda names: names)
    making("__getitem__", lambda key: [key] if isinstance(key, str) else [])
    _rows(kind)
    drop = kind.remove_columns

    def remove(self: Any, column_names: Any, *args: Any, **kwargs: Any) -> Any:
        names = [column_names] if isinstance(column_names, str) else list(column_names)
        if is_stand_in(self):  # nothing to make in order to remove it
            names = [name for name in names if name in self.column_names]
        return drop(self, names, *args, **kwargs)

    replace(kind, "remove_columns", remove)
    _rows_with_every_column(datasets)


def _rows(kind: Any) -> None:
    """Rows that are read one by one."""
    read, read_many, iterate = kind.__getitem__, getattr(kind, "__getitems__", None), kind.__iter__

    def row(dataset: Any, value: Any) -> Any:
        return Row(value) if type(value) is dict and is_stand_in(dataset) else value

    replace(kind, "__getitem__", lambda self, key: row(self, v) if isinstance(v := read(self, key), dict) and
            isinstance(key, int) else v)  # fmt: skip
    replace(kind, "__iter__", lambda self: (row(self, value) for value in iterate(self)))
    if read_many is not None:
        replace(kind, "__getitems__", lambda self, keys: [row(self, value) for value in read_many(self, keys)])


def _added(datasets: Any, dataset: Any, names: list[str]) -> Any:
    what = dataset.info.description.partition(MARK)[2].splitlines()[0]
    columns = {name: column(datasets, spec_of(name, what), name=name) for name in names}
    few = _few(dataset)
    for name, made in columns.items():
        features = datasets.Features({name: made.feature})
        extra = datasets.Dataset.from_dict({name: [made.value(i) for i in range(len(few))]}, features=features)
        few = datasets.concatenate_datasets([few.flatten_indices(), extra], axis=1)
    few.info.description = dataset.info.description
    return grown(few, len(dataset))


class Row(dict[str, Any]):
    """A row of a stand-in, which has every column that its name tells."""

    def __missing__(self, name: str) -> Any:
        self[name] = value = _single(name)
        return value


def _single(name: str) -> Any:
    import datasets

    made = column(datasets, spec_of(name, "data set"), name=name)
    value = made.value(0)
    return made.feature.decode_example(value) if hasattr(made.feature, "decode_example") else value


def _rows_with_every_column(datasets: Any) -> None:
    """In functions that are mapped, which get a row or a batch that is formatted as it is read."""
    formatting = getattr(datasets, "formatting", None)
    lazy = getattr(getattr(formatting, "formatting", None), "LazyDict", None)
    if lazy is None:
        return
    read = lazy.__getitem__

    def getitem(self: Any, name: Any) -> Any:
        if name in self.data or not isinstance(name, str) or not _made:
            return read(self, name)
        value = _single(name)
        self.data[name] = value if type(self).__name__ == "LazyRow" else [value] * self.pa_table.num_rows
        return self.data[name]

    def get(self: Any, name: Any, default: Any = None) -> Any:
        """Who has something in place of a column does without it."""
        return self[name] if name in self.data else default

    replace(lazy, "__getitem__", getitem)
    replace(lazy, "get", get)


def _shuffle_streams(datasets: Any) -> None:
    """A stream fills a buffer before its first row comes out: ours are all alike."""
    stream = datasets.IterableDataset
    shuffle = stream.shuffle

    def shuffled(self: Any, seed: Any = None, generator: Any = None, buffer_size: int = 1000, **kwargs: Any) -> Any:
        return shuffle(self, seed=seed, generator=generator, buffer_size=min(buffer_size, 32), **kwargs)

    replace(stream, "shuffle", shuffled)
