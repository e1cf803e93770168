"""Names of columns that a script mentions: in its own sources, and in its arguments."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from foretell.capture.script.pretend.files.words import own_sources
from foretell.capture.script.pretend.sets.columns import suggested

_OPTION: Final = re.compile(r"--?([\w-]*(column|field|_key|caption|text_name)[\w-]*)(?:=(.*))?$")
_MADE: Final = ("input_ids", "attention_mask", "token_type_ids", "labels", "pixel_values", "input_features", "input_values",
                "pixel_mask", "decoder_input_ids", "conditioning_pixel_values", "label_ids", "input_length")  # fmt: skip
_RAW: Final = ("text", "image", "audio", "messages", "sharegpt", "translation", "words")  # which those are made of
_METHODS: Final = (
    "get",
    "rename_column",
    "remove_columns",
    "cast_column",
    "sort",
    "unique",
    "class_encode_column",
    "pop",
)
_DICTIONARIES: Final = re.compile(
    r"(example|examples|sample|samples|batch|row|item|x|d|ex|data|datapoint|record|element|instance|feature|features|"
    r"entry|e|el|b|train_example|line|inputs?)s?$|.*(data_?set|ds|examples?|_set|columns?|column_names)\w*$|.*\['\w+'\]$"
)


def mentioned_columns(arguments: Sequence[str]) -> list[str]:
    """Columns by the order in which they are mentioned; those of the arguments first."""
    found = dict.fromkeys(_in_arguments(arguments))
    for tree in own_sources():
        for name in _in_source(tree):
            if suggested(name) is not None:
                found.setdefault(name)
    raw = [name for name in found if name not in _MADE]
    return raw if any(str(suggested(name)).startswith(_RAW) for name in raw) else list(found)


def _in_arguments(arguments: Sequence[str]) -> Iterator[str]:
    for i, argument in enumerate(arguments):
        if (option := _OPTION.match(argument)) is None:
            continue
        value = option[3] if option[3] is not None else next(iter(arguments[i + 1 : i + 2]), "")
        if value and not value.startswith("-") and re.fullmatch(r"[\w ,.-]+", value):
            yield from filter(None, value.split(","))


def _in_source(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and _is_row(node.value):
            yield from _strings(node.slice)
        elif isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute) and (
                node.func.attr == "column" or (node.func.attr in _METHODS and _is_row(node.func.value))
            ):
                yield from _strings(*node.args[:1])
            for keyword in node.keywords:
                if keyword.arg in ("remove_columns", "columns", "input_columns", "dataset_text_field"):
                    yield from _strings(keyword.value)
        elif (
            isinstance(node, ast.Compare)
            and isinstance(node.ops[0], ast.In | ast.NotIn)
            and _is_row(node.comparators[0])
        ):
            yield from _strings(node.left)


def _is_row(node: ast.AST) -> bool:
    return _DICTIONARIES.fullmatch(ast.unparse(node)) is not None


def _strings(*nodes: Any) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.List | ast.Tuple):
            yield from _strings(*node.elts)
