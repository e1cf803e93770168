"""What a column of a data set holds: how that is written down, what a name suggests, and values of its kind.

text:N  dialogue:N  string  words:N  texts:COUNT:N     strings of N characters, or N words
int  float  bool  ints:COUNT:MOST  floats:COUNT
class:N  ["a", "b"]  tags:COUNT:N          classes, with their names where they are known
image:WxH[:MODE]  mask:WxH:N               pictures, and pictures whose numbers are classes
audio:RATE:SECONDS
messages:TURNS:N  sharegpt:TURNS:N  turns:TURNS:N  translation:N  answers  boxes:COUNT  objects:COUNT[:N]
"""

from __future__ import annotations

import io
import math
import re
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from foretell.capture.script.pretend.files.line_parts import WORDS
from foretell.capture.script.pretend.lacking import StandInError

Spec = str | Sequence[str]
_SHORT: Final = 200  # characters: a sentence or two
_BRIEFEST: Final = 20  # of which no word says which row it is of
_BRIEF: Final = 0.35
_LONG: Final = 0.6
_NORMAL: Final = (
    -1.86,
    -1.32,
    -1.01,
    -0.78,
    -0.58,
    -0.40,
    -0.24,
    -0.08,
    0.08,
    0.24,
    0.40,
    0.58,
    0.78,
    1.01,
    1.32,
    1.86,
)
CLASSES: Final = 10  # of a column of classes that nobody knows
SOUND: Final = "foretell-sound"  # begins the path of a recording that is not there
_TOO_LONG: Final = 4096  # numbers in a row, of which there are few rows
_LANGUAGES: Final = ("en", "de")
_ROLES: Final = ("user", "assistant")
# What names suggest, the first that fits; most specific first.
_SUGGESTED: Final[tuple[tuple[str, Spec], ...]] = (
    (r"(conditioning|control|source|target|input|output|edited|original|masked)_?(image|img|picture)s?", "image:512x512"),
    (r"(image|img|picture|photo|jpe?g|png|webp|pixel_values)(\.(jpg|png))?", "image:512x512"),
    (r"images", "images:1:512x512"),
    (r".*(mask|segmentation|annotation|label_map|seg_map)s?(_image)?", "mask:512x512:151"),
    (r"audio|speech|sound|wav|flac|mp3|waveform", "audio:16000:10.0"),
    (r"(input|token|query|label|decoder_input)_?ids|tokens_ids|attention_mask|token_type_ids", "ints:512:30000"),
    (r"messages|chat|dialog_turns", "messages:4:600"),
    (r"conversations?", "sharegpt:4:600"),
    (r"(chosen|rejected)(_response|_messages)?|response_[jk]", "text:800"),
    (r"translations?", "translation:120"),
    (r"tokens|words", "words:20"),
    (r"(ner|pos|chunk)?_?tags|tag_ids|ner_labels", "tags:20:9"),
    (r"answers", "answers"),
    (r"objects?|annotations", "objects:5:80"),
    (r"(bboxes|boxes|bbox)", "boxes:20"),
    (r"(fine_|coarse_|class_|hard_)?(label|labels|class|cls|category_id|intent|genre|target|targets|topic)", f"class:{CLASSES}"),
    (r".*(score|rating|similarity|price|value|weight|duration|length_seconds|reward|confidence)s?(_\w+)?", "float"),
    (r"(is|has)_\w+", "bool"),
    (r"idx|index|id|\w*_(id|idx|index|count|num|votes)|num_\w+|width|height|length|year|token_count|sampling_rate", "int"),
    (r"\w*(path|file|file_name|filename|url|uuid|uid|timestamp|date|lang|language|locale|split|subset|source|role|category|"
     r"type|level|author|license|gender|age|accent|model|dataset|domain|subject)", "string"),
    (r"choices|options|endings|candidates|captions|sentences|completions|responses", "texts:4:60"),
    (r"\w*(caption|prompt|title|headline|name|query|question\d?|problem|sentence\w*|hypothesis|premise|claim|topic|sent\d|"
     r"ending\d|choice\d|tweet|quote|header|anchor|positive|negative|completion|summary|highlights|keyword)s?", "text:80"),
    (r"\w*(text\w*|content|document|doc|article|context|passage|story|body|abstract|review|comment|post|dialogue|dialog|code|"
     r"func|instruction\w*|input|output|response|answer|solution|reasoning|explanation|transcription|transcript|"
     r"normalized_text|description|report|note|lyrics|poem|sequence|system|system_prompt|history|data|raw|email|paragraph)s?",
     "text:500"),
    (r"en|de|fr|es|ro|zh|ru|it|nl|pt|ja|cs|fi|hi|ar|pl|tr|ko|src|tgt|inputs|targets", "text:120"),
)  # fmt: skip
_COMPILED: Final = tuple((re.compile(pattern), spec) for pattern, spec in _SUGGESTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column as the library describes it, and its value in a row."""

    feature: Any
    value: Callable[[int], Any]
    heavy: bool = False  # decoding it takes long, so there are few rows


def text(length: int, seed: int = 0) -> str:
    """Plain words; of another seed, in another order, after one of its own: scripts group rows by what they say."""
    at = WORDS.index(" ", seed * 11 % (len(WORDS) - 20)) + 1 if seed else 0
    words = (_word(seed) if seed and length > _BRIEFEST else "") + WORDS[at:] + WORDS[:at]
    return (words * (length // len(words) + 1))[:length].rstrip() or "the"


def _word(number: int) -> str:
    """In letters, as a number has digits."""
    digits = [string.ascii_lowercase[number // 26**k % 26] for k in range(4)]
    return "".join(digits) + " "


def spread(mean: int, row: int) -> int:
    """Lengths of texts are as logarithms of a normal distribution are, wider for long ones, each sixteenth in turn."""
    wide = _LONG if mean > _SHORT else _BRIEF
    return max(3, round(mean * math.exp(wide * _NORMAL[row * 7 % 16] - wide**2 / 2)))


def suggested(name: str) -> Spec | None:
    """What a column of this name would hold, if that can be guessed."""
    plain = re.sub(r"(?<=[a-z])(?=[A-Z])|[ -]", "_", name).lower()
    return next((spec for pattern, spec in _COMPILED if pattern.fullmatch(plain)), None)


def spec_of(name: str, what: str) -> Spec:
    if (spec := suggested(name)) is None:
        raise StandInError(
            what, f"column {name!r}, whose contents its name does not tell",
            "Put a small data set of the same columns on this machine, and give the script its path.",
        )  # fmt: skip
    return spec


def as_long(spec: Spec, length: int | None) -> Spec:
    """Numbers of tokens that are as many as the script's settings say, and the one that comes next."""
    if length is None or not isinstance(spec, str) or not spec.startswith("ints:"):
        return spec
    kind, _, most = spec.split(":")
    return f"{kind}:{length + 1}:{most}"


def column(datasets: Any, spec: Spec, languages: Sequence[str] = _LANGUAGES, name: str = "") -> Column:
    """The library's feature and values of a column that is written down as `spec`; what it is called makes its texts its own."""
    if not isinstance(spec, str):
        kind, names = (spec[0], list(spec[1:])) if ":" in spec[0] else ("class", list(spec))
        return _KINDS[kind.partition(":")[0]](datasets, *kind.split(":")[1:], names=names)
    kind, *details = spec.split(":")
    if kind == "translation":
        return _translation(datasets, details[0], languages=languages)
    if kind in _WRITTEN:
        return _WRITTEN[kind](datasets, *details, seed=len(name) + sum(map(ord, name)))
    return _KINDS[kind](datasets, *details)


def classes_in(spec: Spec) -> int | None:
    """How many classes a column tells apart."""
    if not isinstance(spec, str):
        return len(spec) - (":" in spec[0])
    kind, *details = spec.split(":")
    return int(details[-1]) if kind in ("class", "tags", "mask") else None


# Kinds


def _value(datasets: Any, dtype: str, value: Callable[[int], Any]) -> Column:
    return Column(feature=datasets.Value(dtype), value=value)


def _many(datasets: Any, of: Any, value: Any, count: int) -> Column:
    return Column(feature=datasets.Sequence(of), value=lambda i: [value] * count, heavy=count > _TOO_LONG)


def _class(datasets: Any, count: str = "0", names: Sequence[str] = ()) -> Column:
    label = datasets.ClassLabel(names=list(names)) if names else datasets.ClassLabel(num_classes=int(count))
    return Column(feature=label, value=lambda i: i % label.num_classes)


def _tags(datasets: Any, length: str, count: str = "0", names: Sequence[str] = ()) -> Column:
    label = _class(datasets, count, names).feature
    return Column(feature=datasets.Sequence(label), value=lambda i: [k % label.num_classes for k in range(int(length))])


def _picture(datasets: Any, size: str, mode: str = "RGB") -> Column:
    return Column(feature=datasets.Image(), value=lambda i: {"bytes": png(size, mode), "path": None}, heavy=True)


def _mask(datasets: Any, size: str, count: str) -> Column:
    return _picture(datasets, size, "L")


def _pictures(datasets: Any, count: str, size: str) -> Column:
    value = [{"bytes": png(size, "RGB"), "path": None}] * int(count)
    return Column(feature=datasets.Sequence(datasets.Image()), value=lambda i: value, heavy=True)


@cache
def png(size: str, mode: str) -> bytes:
    from PIL import Image

    width, height = map(int, size.split("x"))
    Image.new(mode, (width, height)).save(written := io.BytesIO(), "PNG", compress_level=1)
    return written.getvalue()


def _audio(datasets: Any, rate: str, seconds: str) -> Column:
    path = f"{SOUND}-{rate}-{seconds}.wav"
    return Column(
        feature=datasets.Audio(sampling_rate=int(rate)), value=lambda i: {"bytes": None, "path": path}, heavy=True
    )


def _text(datasets: Any, length: str, seed: int = 0) -> Column:
    return _value(datasets, "string", lambda i: text(spread(int(length), i), seed + i))


def _dialogue(datasets: Any, length: str, seed: int = 0) -> Column:
    """As one text, of a question that several columns share and an answer that they do not."""
    half = int(length) // 2
    asks = "\n\nHuman: {}\n\nAssistant: {}"
    return _value(
        datasets,
        "string",
        lambda i: asks.format(text(spread(_shared(half), i), i), text(spread(half, i + 5), seed + i)),
    )


def _shared(length: int) -> int:
    """Of columns that are about as long the same: what they share is as long in each."""
    return 2 ** round(math.log2(length))  # type: ignore[no-any-return]


def _messages(
    datasets: Any, turns: str, length: str, role: str = "role", content: str = "content", seed: int = 0
) -> Column:
    """Of several columns all messages are the same but the last."""
    roles, count = _ROLES if role == "role" else ("human", "gpt"), int(turns)

    def messages(row: int) -> list[dict[str, str]]:
        shared = [text(spread(_shared(int(length)), row), row + k) for k in range(count - 1)]
        texts = [*shared, text(spread(int(length), row), row + seed)]
        return [{role: roles[k % 2], content: own} for k, own in enumerate(texts)]

    feature = [{role: datasets.Value("string"), content: datasets.Value("string")}]
    return Column(feature=feature, value=messages)


def _turns(datasets: Any, turns: str, length: str) -> Column:
    """Pairs of a question and an answer."""
    return _messages(datasets, turns, length, "input", "output")


def _translation(datasets: Any, length: str, languages: Sequence[str] = _LANGUAGES) -> Column:
    pair = {language: text(int(length)) for language in languages}
    return Column(feature=datasets.Translation(languages=list(languages)), value=lambda i: pair)


def _answers(datasets: Any) -> Column:
    feature = datasets.Sequence({"text": datasets.Value("string"), "answer_start": datasets.Value("int32")})
    return Column(feature=feature, value=lambda i: {"text": [WORDS[4:15]], "answer_start": [4]})


def _boxes(datasets: Any, count: str) -> Column:
    return _many(datasets, datasets.Sequence(datasets.Value("int64")), [10, 10, 110, 110], int(count))


def _objects(datasets: Any, count: str, classes: str = "0", names: Sequence[str] = ()) -> Column:
    label, n = _class(datasets, classes, names).feature, int(count)
    value = datasets.Value
    parts: Mapping[str, tuple[Any, Any]] = {
        "id": (value("int64"), 0), "bbox_id": (value("int64"), 0), "area": (value("int64"), 10000),
        "bbox": (datasets.Sequence(value("float32"), length=4), [10.0, 10.0, 100.0, 100.0]), "category": (label, 0),
    }  # fmt: skip
    feature = datasets.Sequence({name: kind for name, (kind, _) in parts.items()})
    return Column(feature=feature, value=lambda i: {name: [one] * n for name, (_, one) in parts.items()})


_KINDS: Final[Mapping[str, Callable[..., Column]]] = {
    "string": lambda d: _value(d, "string", str),
    "int": lambda d: _value(d, "int64", lambda i: i),
    "float": lambda d: _value(d, "float32", lambda i: float(i % 5)),
    "bool": lambda d: _value(d, "bool", lambda i: bool(i % 2)),
    "words": lambda d, n: Column(feature=d.Sequence(d.Value("string")), value=lambda i: (WORDS * int(n)).split()[: int(n)]),
    "texts": lambda d, count, n: _many(d, d.Value("string"), text(int(n)), int(count)),
    "ints": lambda d, count, most: _many(d, d.Value("int64"), 1, int(count)),
    "floats": lambda d, count: _many(d, d.Value("float32"), 0.0, int(count)),
    "class": _class, "tags": _tags, "image": _picture, "images": _pictures, "mask": _mask, "audio": _audio,
    "turns": _turns, "answers": _answers, "boxes": _boxes, "objects": _objects,
}  # fmt: skip
_WRITTEN: Final[Mapping[str, Callable[..., Column]]] = {
    "text": _text, "messages": _messages, "dialogue": _dialogue,
    "sharegpt": lambda d, turns, n, seed: _messages(d, turns, n, "from", "value", seed),
}  # fmt: skip
