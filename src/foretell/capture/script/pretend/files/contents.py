"""What is in a file that is not on this machine, by its ending and by how it is read."""

from __future__ import annotations

import builtins
import functools
import io
import json
import os
import pathlib
import pickle
import re
import string
import tarfile
import types
import wave
import zipfile
from collections.abc import Callable
from typing import Any, Final
from xml.sax.saxutils import escape

from foretell.capture.reads import is_library
from foretell.capture.script.imports import once_imported
from foretell.capture.script.meant import thing_meant
from foretell.capture.script.pretend import overlay
from foretell.capture.script.pretend.files import documents, ids, kinds, line_parts, lines, sizes, token_files, words
from foretell.capture.script.pretend.files.callers import (
    function_source,
    is_ready,
    reading_frame,
    source_of,
    uses_of_line,
)
from foretell.capture.script.pretend.files.checkpoints import NotHere
from foretell.capture.script.pretend.files.known_texts import known_text
from foretell.capture.script.pretend.files.line_parts import WORDS, are_names
from foretell.capture.script.pretend.files.packed import FLOWS, IDX, PRIZE, digits, packer_of, times_of
from foretell.capture.script.pretend.files.pickled_words import PickledWords, is_of_words, words_in
from foretell.capture.script.pretend.files.sizes import is_grey, size_of
from foretell.capture.script.pretend.files.unknown import ROWS, Document
from foretell.capture.script.pretend.files.vocabularies import is_vocabulary, vocabulary
from foretell.capture.script.pretend.reading import or_else
from foretell.capture.script.prose import TABLE, TEXT
from foretell.capture.script.session import Session
from foretell.capture.script.shapes import PICTURE

RATE: Final = 16_000  # of a sound, each second
SECONDS: Final = 4
_TABLE_ROWS: Final = 4096
_SHORT: Final = 8  # words of a line that no filter for long ones leaves out
_LISTS: Final = re.compile(
    r"os\.path\.join|imread|Image\.open|\.jpe?g|\.png|\.wav|\.npy|im(a?)ge?_?|filename|file_?path|filelist|ids\b",
    re.IGNORECASE,
)
_VOCABULARIES: Final = re.compile(r"vocab|Counter\(|set\(|word2i|stoi|Dictionary|Corpus|add_word|build_vocab")
_SETTINGS: Final = re.compile(
    r"config|cfg|setting|hparam|params|args|opts?\b|^model|^ds_|deepspeed|schedule|state", re.IGNORECASE
)
_PACKED_FOR_GENERATORS: Final = "dataset.json"  # what has the classes, in archives whose pictures are square
_SQUARE: Final = (256, 256)  # a picture of such an archive that does not say how large they are
_BOX: Final = "0 0.5 0.5 0.25 0.25\n"  # as YOLO's: a class, and where its box is in the picture
_VECTORS: Final = re.compile(r"glove|\.vec$|word2vec|w2v|fasttext|wiki\.|embed", re.IGNORECASE)
_UNPICKLED: Final = re.compile(r"\b\w*(pickle|pkl)\w*\.load\(", re.IGNORECASE)
_WRITING: Final = frozenset("wax+")
SETTINGS: Final[list[Callable[[str], str | None]]] = []  # files of settings that somebody knows by their path
# As many different characters as plays of Shakespeare have.
_LETTERS: Final = string.ascii_letters + " !$&',-.3:;?"


@functools.cache
def prose(separator: str = "", words: int = 20) -> str:
    """A text of a megabyte, where lines have twenty words: many different ones, and 65 different characters.

    With a separator each line has a sentence on either side of it, as of two languages.
    """
    plain = WORDS.split()
    lines = []
    for i in range(9_999):  # with the letters 10,000: as often as not two lines belong together
        rare = "".join(string.ascii_lowercase[(i // 26**k + 3 * k) % 26] for k in range(3))
        lines.append(" ".join([rare.capitalize(), *plain[i % 7 : i % 7 + words - 7], rare + "s", *plain[:4]]) + ".")
    lines.append(_LETTERS)
    return "\n".join(f"{line}{separator}{line}" if separator else line for line in lines) + "\n"


@functools.cache
def picture(ending: str, size: tuple[int, int] = PICTURE, mode: str = "RGB") -> bytes:
    from PIL import Image

    file = io.BytesIO()
    kind = {".jpg": "JPEG", ".jpeg": "JPEG", ".tif": "TIFF", ".tiff": "TIFF", ".pgm": "PPM"}.get(
        ending, ending[1:].upper()
    )
    Image.new(mode, size).save(file, kind)
    return file.getvalue()


@functools.cache
def sound() -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(RATE)
        out.writeframes(b"\x00\x01" * (RATE * SECONDS))
    return file.getvalue()


def annotation(thing: str) -> str:
    """As Pascal VOC's, of one thing."""
    width, height = PICTURE
    box = "<bndbox><xmin>32</xmin><ymin>32</ymin><xmax>160</xmax><ymax>160</ymax></bndbox>"
    return (
        f"<annotation><folder>VOC</folder><filename>00000.jpg</filename><size><width>{width}</width><height>{height}</height>"
        f"<depth>3</depth></size><segmented>0</segmented><object><name>{escape(thing)}</name><pose>Unspecified</pose><truncated>0"
        f"</truncated><difficult>0</difficult>{box}</object></annotation>"
    )


def _archive(path: str, size: tuple[int, int]) -> bytes:
    """A few pictures in an archive, or a text."""
    file = io.BytesIO()
    members = {f"{i:05}.jpg": picture(".jpg", size) for i in range(64)}
    if path.endswith(".zip") and size != PICTURE:  # with their classes, as tools for generators pack them
        members["dataset.json"] = json.dumps({"labels": [[name, i % 10] for i, name in enumerate(members)]}).encode()
    if prize := PRIZE.search(os.path.basename(path)):
        members = {prize[0]: prose().encode() * times_of(path)}
    if ".tar" in path:  # samples of several parts, as webdataset reads them
        parts = {"cls": b"0", "txt": WORDS.encode(), "json": b"{}"}
        members |= {f"{i:05}.{kind}": content for i in range(64) for kind, content in parts.items()}
        members = dict(sorted(members.items()))
    if path.endswith(".zip"):
        with zipfile.ZipFile(file, "w") as out:
            for name, content in members.items():
                out.writestr(name, content)
    else:
        with tarfile.open(fileobj=file, mode="w:gz" if path.endswith((".gz", ".tgz")) else "w") as packed:
            for name, content in members.items():
                info = tarfile.TarInfo(name)
                info.size = len(content)
                packed.addfile(info, io.BytesIO(content))
    return file.getvalue()


class Text(io.StringIO):
    """A text, which numpy may read numbers from: then it is a table."""

    def __init__(self, text: str, path: str) -> None:
        super().__init__(text)
        self.foretell_path = path


class Contents:
    """Opens what is missing as a file of its kind."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def apply(self) -> None:
        opened: Callable[..., Any] = builtins.open

        def open_or_make(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            try:
                return opened(file, mode, *args, **kwargs)
            except FileNotFoundError:
                if (
                    isinstance(file, int)
                    or _WRITING & set(mode)
                    or (made := self.of(os.fsdecode(file), "b" in mode)) is None
                ):
                    raise
                return documents.marked(made, os.fsdecode(file))

        builtins.open = io.open = open_or_make
        pathlib.io.open = open_or_make  # type: ignore[attr-defined]
        overlay.use_in_archives(open_or_make)
        once_imported(
            "blobfile", lambda m: or_else(m, "BlobFile", lambda path, mode="r", **_: open_or_make(path, mode))
        )
        documents.install(self._session)
        line_parts.know(self._session.guesses.known)
        sizes.ask(self._session.guesses)
        lines.read_tables()

    def of(self, path: str, binary: bool) -> Any:
        """A file that is open, or None where nobody can say what is in it, or where the script does without."""
        frame = reading_frame()
        if frame is None or is_library(os.path.abspath(path)) or is_ready(frame, path):
            return None
        are_names(self._session.guesses, path)
        return self.made(path, binary, frame)

    def made(self, path: str, binary: bool, frame: types.FrameType) -> Any:
        """As `of`, for the code of that frame."""
        if (pack := packer_of(path)) is not None:
            return self._packed(path, pack, frame) if binary else None
        if (known := self._of_a_known_format(path, binary)) is not None:
            return known
        ending = kinds.ending_of(path)
        if not binary and ending in kinds.PICTURES | kinds.SOUNDS:  # it is read as a text, whatever it is called
            ending = ".txt"
        if ending in kinds.DOCUMENTS and _SETTINGS.search(os.path.basename(path)):
            settings = next((text for read in SETTINGS if (text := read(path)) is not None), None)
            if settings is None:
                return None  # settings, of which every one counts
            return io.BytesIO(settings.encode()) if binary else io.StringIO(settings)
        if ending in kinds.PICTURES or (binary and kinds.is_picture(path, function_source(frame))):
            width, height = size_of(path)
            self._session.stand_in(f"pictures in {os.path.dirname(path) or '.'}", f"{width} × {height}")
            return io.BytesIO(picture(ending or ".png", (width, height), "L" if is_grey(path) else "RGB"))
        if ending in kinds.SOUNDS:
            self._session.stand_in(f"sounds in {os.path.dirname(path) or '.'}", f"{SECONDS} s")
            return io.BytesIO(sound())
        if binary and kinds.WEIGHTS.search(path.removesuffix(".zip")) and ".tar" in path:
            return NotHere(path)
        if ending in (".zip", ".tar", ".tgz") or path.endswith((".tar.gz", ".tar.bz2")):
            size = size_of(path)
            open_size = size == PICTURE and _PACKED_FOR_GENERATORS in source_of(frame.f_code.co_filename)
            size = _SQUARE if open_size else size
            self._session.stand_in(
                f"archive {path}", "pictures {} × {}, 10 classes".format(*size), decides_size=open_size
            )
            return io.BytesIO(_archive(path, size))
        if binary and (ending in (".pkl", ".pickle", ".p") or _UNPICKLED.search(uses_of_line(frame))):
            if re.search(r"tokeni[sz]er|bpe", os.path.basename(path), re.IGNORECASE):
                return io.BytesIO(pickle.dumps(words.Words(path, words.note(self._session, path))))
            if is_of_words(os.path.basename(path)):
                self._session.stand_in(f"vocabulary {path}", f"{words_in(path):,} words", decides_size=True)
                return NotHere(path, pickle.dumps(PickledWords(words_in(path))))
            self._note_document(path)
            return NotHere(path, pickle.dumps(Document()))
        if binary and (ending in (".pt", ".pth", ".ckpt") or (ending == ".bin" and "model" in os.path.basename(path))):
            return NotHere(path)
        if ending == ".bin":
            return token_files.packed(path, source_of(frame.f_code.co_filename), self._session)
        lines_of = self._text(path, ending, frame)
        return io.BytesIO(lines_of.getvalue().encode()) if lines_of is not None and binary else lines_of

    def _of_a_known_format(self, path: str, binary: bool) -> Any:
        """Well-known texts, flows, and files as MNIST's are."""
        if (known := known_text(path)) is not None:
            self._session.stand_in(f"text of {path}", known.assumed, decides_size=known.decides_size)
            return io.BytesIO(known.text().encode()) if binary else io.StringIO(known.text())
        ending = kinds.ending_of(path)
        if ending in FLOWS and binary:
            width, height = size_of(path)
            self._session.stand_in(f"flows in {os.path.dirname(path) or '.'}", f"{width} × {height}")
            return io.BytesIO(FLOWS[ending](width, height))
        if idx := IDX.search(os.path.basename(path)):
            count = 60_000 if "train" in os.path.basename(path) else 10_000
            self._session.stand_in(f"contents of {path}", f"{count:,} of 28 × 28, 10 classes", decides_size=True)
            return io.BytesIO(digits(idx[1] == "3", count))
        return None

    def _packed(self, path: str, pack: Callable[[bytes], bytes], frame: types.FrameType) -> io.BytesIO | None:
        """What the name without its last ending has, compressed."""
        made = self.made(os.path.splitext(path)[0], True, frame)
        if made is None:
            return None
        return io.BytesIO(pack(made.read()) * times_of(path))

    def _text(self, path: str, ending: str, frame: types.FrameType) -> io.StringIO | None:
        if is_vocabulary(path):
            return io.StringIO(vocabulary(self._session, path, frame))
        if ending in (".json", ".jsonl", ".ndjson"):
            self._note_document(path)
            return io.StringIO(f"{documents.MARK}\n" * ROWS)
        if ending == ".xml":
            self._session.stand_in(f"annotations in {os.path.dirname(path)}", "one box each")
            return io.StringIO(annotation(thing_meant(frame) or "person"))
        if ending in kinds.TABLES:
            rows = self._session.guesses.about(f"{TABLE}{path}", _TABLE_ROWS)
            self._session.stand_in(f"text of {path}", f"{rows:,} rows")
            return lines.Table(rows)
        if ending in kinds.TEXTS or (kinds.may_be_data(path, os.getcwd()) and ending not in kinds.DATA):
            return self._words(path, frame)
        return None

    def _words(self, path: str, frame: types.FrameType) -> io.StringIO:
        if re.search(r"(^|[/\\])(labels?|annotations?)[/\\]", path):
            self._session.stand_in(f"labels in {os.path.dirname(path)}", "one box each")
            return io.StringIO(_BOX)
        if _VECTORS.search(os.path.basename(path)):
            return self._vectors(path)
        source = "" if PRIZE.search(os.path.basename(path)) else function_source(frame)
        kind = self._session.guesses.about(f"{TEXT}{path}", "words")
        if kind == "folders":
            return lines.list_of_folders(self._session, path)
        if kind == "records":
            self._note_document(path)
            return io.StringIO(f"{documents.MARK}\n" * ROWS)
        if (numbered := ids.numbers(self._session, path, source)) is not None:
            return numbered
        if kind == "names" or (
            re.search(r"\breadlines|splitlines|for \w+ in|\.split", source) and _LISTS.search(source)
        ):
            return lines.list_of_files(self._session, path, source, source_of(frame.f_code.co_filename))
        decides = bool(_VOCABULARIES.search(source_of(frame.f_code.co_filename)))
        words = _SHORT if kind == "short" else 20
        assumed = f"65 characters, 10,000 lines of about {words} words" if decides else "words"
        self._session.stand_in(f"text of {path}", assumed, decides_size=decides)
        parts = re.search(r"""split\((["'])(\\t|\|\|\||\|)\1""", source)
        return Text(prose(parts[2].replace("\\t", "\t") if parts else "", words), path)

    def _vectors(self, path: str) -> io.StringIO:
        """Words with a vector each, of as many numbers as the file's name says."""
        found = re.search(r"(\d+)d", os.path.basename(path))
        size = int(found[1]) if found else 300
        self._session.stand_in(f"vectors of words in {path}", f"10,000 words of {size} numbers", decides_size=True)
        numbers = " ".join(["0.1"] * size)
        words = dict.fromkeys([*WORDS.split(), *(f"word{i}" for i in range(10_000))])
        return io.StringIO("".join(f"{word} {numbers}\n" for word in words))

    def _note_document(self, path: str) -> None:
        decides = bool(
            re.search(r"vocab|meta|dict|token|class|label|stat|config|word", os.path.basename(path), re.IGNORECASE)
        )
        assumed = "a vocabulary of 65" if decides else f"{ROWS:,} rows with every column"
        self._session.stand_in(f"contents of {path}", assumed, decides_size=decides)
