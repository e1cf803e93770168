"""Fields of texts, examples made of them and data sets of examples, as torchtext had them before 0.12."""

from __future__ import annotations

import csv
import json
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch

from foretell.capture.script.pretend.texts.vocabularies import Vocab

TOKENIZERS: Final[list[Callable[..., Any]]] = []  # how a tokenizer is found by its name
STAND_INS: Final[list[Callable[[str, list[Any]], list[Example]]]] = []  # what makes examples of a file that is missing


class RawField:
    """Keeps what it is given."""

    sequential = False
    is_target = False

    def __init__(self, preprocessing: Any = None, postprocessing: Any = None, is_target: bool = False) -> None:
        self.preprocessing, self.postprocessing, self.is_target = preprocessing, postprocessing, is_target

    def preprocess(self, x: Any) -> Any:
        return x if self.preprocessing is None else self.preprocessing(x)

    def process(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        return list(batch) if self.postprocessing is None else self.postprocessing(batch)


class Field(RawField):
    """Text that becomes numbers: cut into words, padded, looked up."""

    vocab_cls = Vocab

    def __init__(
        self, sequential: bool = True, use_vocab: bool = True, init_token: Any = None, eos_token: Any = None,
        fix_length: int | None = None, dtype: Any = torch.long, preprocessing: Any = None, postprocessing: Any = None,
        lower: bool = False, tokenize: Any = None, tokenizer_language: str = "en", include_lengths: bool = False,
        batch_first: bool = False, pad_token: Any = "<pad>", unk_token: Any = "<unk>", pad_first: bool = False,
        truncate_first: bool = False, stop_words: Any = None, is_target: bool = False, tensor_type: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(preprocessing, postprocessing, is_target)
        self.sequential, self.use_vocab, self.init_token, self.eos_token = sequential, use_vocab, init_token, eos_token
        self.fix_length, self.lower, self.include_lengths, self.batch_first = (
            fix_length,
            lower,
            include_lengths,
            batch_first,
        )
        self.dtype = dtype if isinstance(dtype, torch.dtype) else torch.long
        if tensor_type is not None:
            self.dtype = torch.float if "Float" in str(tensor_type) else torch.long
        self.tokenize = TOKENIZERS[0](tokenize, tokenizer_language)
        self.pad_token = pad_token if sequential else None
        self.unk_token, self.pad_first, self.truncate_first = unk_token, pad_first, truncate_first
        self.stop_words = frozenset(stop_words or ())
        self.vocab: Any = None

    def preprocess(self, x: Any) -> Any:
        if self.sequential and isinstance(x, str):
            x = self.tokenize(x.rstrip("\n"))
        if self.lower:
            x = [word.lower() for word in x] if isinstance(x, list) else str(x).lower()
        if self.sequential and self.use_vocab and self.stop_words:
            x = [word for word in x if word not in self.stop_words]
        return super().preprocess(x)

    def build_vocab(self, *args: Any, **kwargs: Any) -> None:
        counter: Counter[Any] = Counter()
        for part in args:
            for values in part.of_field(self) if isinstance(part, Dataset) else [part]:
                for value in values:
                    counter.update(value if self.sequential else [value])
        specials = [self.unk_token, self.pad_token, self.init_token, self.eos_token, *kwargs.pop("specials", ())]
        self.vocab = self.vocab_cls(counter, specials=[word for word in specials if word is not None], **kwargs)

    def pad(self, minibatch: Any) -> Any:
        texts = [list(text) for text in minibatch]
        if not self.sequential:
            return minibatch
        ends = (self.init_token is not None) + (self.eos_token is not None)
        longest = max(map(len, texts)) if self.fix_length is None else self.fix_length - ends
        rows, lengths = [], []
        for text in texts:
            kept = text[-longest:] if self.truncate_first else text[:longest]
            kept = [
                *([self.init_token] if self.init_token is not None else []),
                *kept,
                *([self.eos_token] if self.eos_token is not None else []),
            ]
            rest = [self.pad_token] * (longest + ends - len(kept))
            rows.append([*rest, *kept] if self.pad_first else [*kept, *rest])
            lengths.append(len(kept))
        return (rows, lengths) if self.include_lengths else rows

    def numericalize(self, arr: Any, device: Any = None) -> Any:
        lengths = None
        if self.include_lengths and isinstance(arr, tuple):
            arr, lengths = arr[0], torch.tensor(arr[1], dtype=torch.long, device=device)
        if self.use_vocab and self.sequential:
            arr = [[self.vocab.stoi[word] for word in text] for text in arr]
        elif self.use_vocab:
            arr = [self.vocab.stoi[value] for value in arr]
        elif not self.sequential:
            arr = [float(v) if self.dtype.is_floating_point else int(v) if isinstance(v, str) else v for v in arr]
        if self.postprocessing is not None:
            arr = self.postprocessing(arr, self.vocab)
        made = torch.tensor(arr, dtype=self.dtype, device=device)
        if self.sequential and not self.batch_first:
            made = made.t().contiguous()
        return made if lengths is None else (made, lengths)

    def process(self, batch: Any, device: Any = None, *args: Any, **kwargs: Any) -> Any:
        return self.numericalize(self.pad(list(batch)), device=device)


class ReversibleField(Field):
    """Whose numbers can become text again."""

    def reverse(self, batch: torch.Tensor) -> list[str]:
        return [" "] * batch.shape[0]


class LabelField(Field):
    """A class of each example."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**(kwargs | {"sequential": False, "unk_token": None, "is_target": True}))


class NestedField(Field):
    """A list of texts each, as the letters of words."""

    def __init__(self, nesting_field: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.nesting_field = nesting_field

    def preprocess(self, x: Any) -> Any:
        return [self.nesting_field.preprocess(part) for part in super().preprocess(x)]

    def build_vocab(self, *args: Any, **kwargs: Any) -> None:
        parts = [[text for row in values for text in row] for part in args for values in part.of_field(self)]
        self.nesting_field.build_vocab(*parts, **kwargs)
        self.vocab = self.nesting_field.vocab

    def process(self, batch: Any, device: Any = None, *args: Any, **kwargs: Any) -> Any:
        rows = [list(row) for row in batch]
        longest = max(map(len, rows))
        letters = max((len(text) for row in rows for text in row), default=1)
        pad = self.vocab.stoi[self.nesting_field.pad_token]
        made = torch.full((len(rows), longest, letters), pad, dtype=torch.long, device=device)
        return (
            made if not self.include_lengths else (made, torch.tensor([len(row) for row in rows]), made.new_tensor([1]))
        )


class Example:
    """What belongs together, by the names of fields."""

    @classmethod
    def fromlist(cls, data: Any, fields: Any) -> Example:
        made = cls()
        for (name, field), value in zip(fields, data, strict=False):
            _put(made, name, field, value)
        return made

    @classmethod
    def fromdict(cls, data: Any, fields: Any) -> Example:
        made = cls()
        for key, named in fields.items():
            for name, field in named if isinstance(named, list) else [named]:
                _put(made, name, field, data[key])
        return made

    @classmethod
    def fromCSV(cls, data: Any, fields: Any, *args: Any) -> Example:
        return cls.fromlist(data, fields)

    @classmethod
    def fromJSON(cls, data: Any, fields: Any) -> Example:
        return cls.fromdict(json.loads(data), fields)


def _put(made: Example, name: Any, field: Any, value: Any) -> None:
    if field is None:
        return
    names, kinds = (name, field) if isinstance(name, tuple) else ((name,), (field,))
    for one, kind in zip(names, kinds, strict=True):
        setattr(made, one, kind.preprocess(value.rstrip("\n") if isinstance(value, str) else value))


class Dataset(torch.utils.data.Dataset[Any]):
    """Examples, and the fields that they have."""

    sort_key: Any = None

    def __init__(self, examples: Any, fields: Any, filter_pred: Any = None) -> None:
        self.examples = [e for e in examples if filter_pred is None or filter_pred(e)]
        self.fields: dict[Any, Any] = dict(fields)
        for names, kinds in list(self.fields.items()):
            if isinstance(names, tuple):
                del self.fields[names]
                self.fields.update(zip(names, kinds, strict=True))

    def of_field(self, field: Any) -> list[list[Any]]:
        names = [name for name, kind in self.fields.items() if kind is field]
        return [[getattr(example, name) for example in self.examples] for name in names]

    def split(self, split_ratio: Any = 0.7, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        parts = [split_ratio, 1 - split_ratio] if isinstance(split_ratio, float) else list(split_ratio)
        mixed, found, at = random.sample(self.examples, len(self.examples)), [], 0
        for share in (part / sum(parts) for part in parts):
            count = round(share * len(mixed))
            found.append(Dataset(mixed[at : at + count], self.fields))
            found[-1].sort_key = self.sort_key
            at += count
        return tuple(found)

    @classmethod
    def splits(
        cls, path: Any = None, root: Any = ".data", train: Any = None, validation: Any = None, test: Any = None, **kwargs: Any
    ) -> tuple[Any, ...]:  # fmt: skip
        where = "" if path is None else path
        return tuple(cls(os.path.join(where, part), **kwargs) for part in (train, validation, test) if part is not None)

    def __getitem__(self, index: Any) -> Any:
        return self.examples[index]

    def __len__(self) -> int:
        return len(self.examples)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.examples)

    def __getattr__(self, name: str) -> Any:
        if name in vars(self).get("fields", ()):
            return (getattr(example, name) for example in self.examples)
        raise AttributeError(name)


class TabularDataset(Dataset):
    """Rows of a file."""

    def __init__(
        self, path: Any, format: str, fields: Any, skip_header: bool = False, csv_reader_params: Any = None, **kwargs: Any
    ) -> None:  # fmt: skip
        named = fields
        if isinstance(fields, dict):
            named = [pair for one in fields.values() for pair in (one if isinstance(one, list) else [one])]
        if not os.path.isfile(path):
            super().__init__(STAND_INS[0](str(path), named), named, **kwargs)
            return
        with open(path, encoding="utf-8") as file:
            if format == "json":
                super().__init__([Example.fromJSON(line, fields) for line in file if line.strip()], named, **kwargs)
                return
            rows = list(csv.reader(file, delimiter="\t" if format == "tsv" else ",", **(csv_reader_params or {})))
        head = rows[0] if isinstance(fields, dict) or skip_header else []
        if isinstance(fields, dict):
            made = [Example.fromdict(dict(zip(head, row, strict=False)), fields) for row in rows[1:]]
        else:
            made = [Example.fromlist(row, fields) for row in (rows[1:] if skip_header else rows)]
        super().__init__(made, named, **kwargs)
