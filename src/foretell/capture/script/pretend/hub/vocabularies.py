"""Tokenizers that lie in files which are not on this machine: SentencePiece's, those of `tokenizers`, and pickled ones.

Only the file says how many words they know. The script's own sources often say it too, where they size a model.
"""

from __future__ import annotations

import os
import re
from typing import Any

from foretell.capture.script.imports import once_imported
from foretell.capture.script.pretend import overlay
from foretell.capture.script.pretend.files.line_parts import WORDS
from foretell.capture.script.pretend.files.words import ids_of, note
from foretell.capture.script.session import Session


def install(session: Session) -> None:
    once_imported("sentencepiece", lambda module: _pieces(module, session))
    once_imported("tokenizers", lambda module: _files(module, session))


# SentencePiece


def _pieces(module: Any, session: Session) -> None:
    """A processor becomes ours when it is given a file that is not there."""
    kind: Any = module.SentencePieceProcessor

    class SentencePieceProcessor(kind):  # type: ignore[misc]
        def __init__(self, model_file: Any = None, *args: Any, **kwargs: Any) -> None:
            missing = model_file is not None and not overlay.is_there(str(model_file))
            super().__init__(None if missing else model_file, *args, **kwargs)
            if missing:
                self._become(model_file)

        def _become(self, path: Any) -> bool:
            self.words = note(session, os.fspath(path))
            self.__class__ = ours
            return True

        def Load(self, model_file: Any = None, *args: Any, **kwargs: Any) -> Any:
            if model_file is not None and not overlay.is_there(str(model_file)):
                return self._become(model_file)
            return super().Load(model_file, *args, **kwargs)

        load = LoadFromFile = Load

    ours = type("SentencePieceProcessor", (SentencePieceProcessor,), _pieces_face())
    module.SentencePieceProcessor = SentencePieceProcessor


def _pieces_face() -> dict[str, Any]:
    """What processors can, under both of its names."""

    def encode(
        self: Any, text: Any, out_type: Any = int, add_bos: bool = False, add_eos: bool = False, **kwargs: Any
    ) -> Any:
        if not isinstance(text, str):
            return [encode(self, one, out_type, add_bos, add_eos) for one in text]
        ids = [1] * add_bos + ids_of(text, self.words) + [2] * add_eos
        return ids if out_type is int else [text[i : i + 4] for i in range(0, len(text), 4)]

    def decode(self: Any, tokens: Any, *args: Any, **kwargs: Any) -> Any:
        return "the " * (1 if isinstance(tokens, int) else len(tokens))

    def piece_to_id(self: Any, piece: Any) -> Any:
        if not isinstance(piece, str):
            return [piece_to_id(self, one) for one in piece]
        known = {"<unk>": 0, "<s>": 1, "</s>": 2, "<pad>": 3}
        return known.get(piece, ids_of(piece or "the", self.words)[0])

    def size(self: Any) -> int:
        return int(self.words)

    as_pieces = lambda self, text, **kwargs: encode(self, text, str)  # noqa: E731
    no = lambda self, token: False  # noqa: E731
    to_piece = lambda self, token: WORDS.split()[0] if isinstance(token, int) else ["the"] * len(token)  # noqa: E731
    faces: dict[str, Any] = {
        "encode Encode encode_as_ids EncodeAsIds": encode, "encode_as_pieces EncodeAsPieces": as_pieces,
        "decode Decode decode_ids DecodeIds decode_pieces DecodePieces": decode, "piece_to_id PieceToId": piece_to_id,
        "id_to_piece IdToPiece": to_piece, "is_control is_unknown is_byte is_unused IsControl IsUnknown IsByte IsUnused": no,
        "vocab_size get_piece_size GetPieceSize piece_size __len__": size, "unk_id": lambda self: 0,
        "bos_id": lambda self: 1, "eos_id": lambda self: 2, "pad_id": lambda self: -1, "GetScore get_score": lambda self, i: 0.0,
    }  # fmt: skip
    return {name: function for names, function in faces.items() for name in names.split()}


# Files of `tokenizers`


def _files(module: Any, session: Session) -> None:
    """Its class cannot be changed: another with its name makes its objects."""
    kind = module.Tokenizer

    def made(path: Any) -> Any:
        size = note(session, path)
        special = [
            "<unk>",
            "<s>",
            "</s>",
            "<pad>",
            "[UNK]",
            "[CLS]",
            "[SEP]",
            "[PAD]",
            "[MASK]",
            "<|endoftext|>",
            "<bos>",
            "<eos>",
        ]
        words = list(dict.fromkeys([*special, *re.findall(r" ?[^\s]{1,4}|\s", WORDS)]))
        words += [f"<{i}>" for i in range(size - len(words))]
        plain = kind(module.models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
        plain.pre_tokenizer = module.pre_tokenizers.Split(module.Regex(r" ?[^\s]{1,4}|\s"), "isolated")
        plain.add_special_tokens(special)
        return plain

    class Kind(type):
        def __instancecheck__(cls, thing: Any) -> bool:
            return isinstance(thing, kind)

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            return kind(*args, **kwargs)

        def __getattr__(cls, name: str) -> Any:
            return getattr(kind, name)

        def from_file(cls, path: Any) -> Any:
            return kind.from_file(str(path)) if overlay.is_there(path) else made(path)

        def from_pretrained(cls, identifier: str, *args: Any, **kwargs: Any) -> Any:
            try:
                return kind.from_pretrained(identifier, *args, **kwargs)
            except Exception:
                return made(identifier)

    module.Tokenizer = Kind("Tokenizer", (), {"__doc__": kind.__doc__})
