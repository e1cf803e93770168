"""torchaudio: importable beside a torch that it was not built for, and its data sets by their published sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

from foretell.capture.as_gpu.patches import replace
from foretell.capture.script.imports import once_imported
from foretell.capture.script.session import Session

_WORDS: Final = (
    "THE QUICK BROWN FOX JUMPS OVER THE LAZY DOG AND RUNS AWAY INTO THE DEEP DARK FOREST NEAR THE RIVER BANK " * 2
)
_COMMANDS: Final = """backward bed bird cat dog down eight five follow forward four go happy house learn left marvin nine no off on
    one right seven sheila six stop three tree two up visual wow yes zero""".split()
_GENRES: Final = "blues classical country disco hiphop jazz metal pop reggae rock".split()
# A sample of each set, and how many there are.
_SETS: Final[Mapping[str, tuple[int, Callable[[int], tuple[Any, ...]]]]] = {
    "LIBRISPEECH": (28539, lambda i: (_sound(12.7, 16000), 16000, _WORDS[:180], 84, 121123, i)),
    "LIBRITTS": (33236, lambda i: (_sound(5.6, 24000), 24000, _WORDS[:90], _WORDS[:90], 84, 121123, str(i))),
    "SPEECHCOMMANDS": (105829, lambda i: (_sound(1.0, 16000), 16000, _COMMANDS[i % 35], "a0a0a0a0", i % 5)),
    "YESNO": (60, lambda i: (_sound(6.3, 8000), 8000, [i >> k & 1 for k in range(8)])),
    "LJSPEECH": (13100, lambda i: (_sound(6.6, 22050), 22050, _WORDS[:100].lower(), _WORDS[:100].lower())),
    "VCTK_092": (44070, lambda i: (_sound(3.6, 48000), 48000, _WORDS[:40].lower(), "p225", f"{i:03}")),
    "GTZAN": (1000, lambda i: (_sound(30.0, 22050), 22050, _GENRES[i % 10])),
    "COMMONVOICE": (24000, lambda i: (_sound(5.0, 48000), 48000, {"sentence": _WORDS[:55].lower(), "path": f"{i}.mp3"})),
    "TEDLIUM": (92973, lambda i: (_sound(8.2, 16000), 16000, _WORDS[:120].lower(), "talk", "speaker", str(i))),
    "LibriMix": (13900, lambda i: (8000, _sound(5.0, 8000), [_sound(5.0, 8000), _sound(5.0, 8000)])),
}  # fmt: skip
_SPEECHCOMMANDS_PARTS: Final = {"training": 84843, "validation": 9981, "testing": 11005}


def make_importable() -> None:
    """A wheel for CUDA cannot load its compiled part beside a torch without: what it is for is not in training."""
    once_imported("torchaudio._extension.utils", _without_compiled_part)


def install(session: Session) -> None:
    once_imported("torchaudio.datasets", lambda module: _sets(module, session))


def _without_compiled_part(module: Any) -> None:
    load: Callable[[str], bool] = module._load_lib

    def load_or_not(library: str) -> bool:
        try:
            return load(library)
        except OSError:
            return False

    replace(module, "_load_lib", load_or_not)


def _sound(seconds: float, rate: int) -> torch.Tensor:
    return torch.zeros(1, int(seconds * rate))


def _sets(module: Any, session: Session) -> None:
    for name, (count, sample) in _SETS.items():
        if hasattr(module, name):
            _set(getattr(module, name), count, sample, session)


def _set(kind: Any, count: int, sample: Callable[[int], tuple[Any, ...]], session: Session) -> None:
    make, length, item = kind.__init__, kind.__len__, kind.__getitem__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            make(self, *args, **(kwargs | ({"download": False} if "download" in kwargs else {})))
        except Exception:  # each looks for its files in its own way
            part = kwargs.get("subset") or next((a for a in args if a in _SPEECHCOMMANDS_PARTS), None)
            self.foretell_count = (
                _SPEECHCOMMANDS_PARTS.get(str(part), count) if kind.__name__ == "SPEECHCOMMANDS" else count
            )
            self._walker = [str(i) for i in range(self.foretell_count)]
            session.stand_in(f"recordings of {kind.__name__}")

    def ours(self: Any) -> bool:
        return "foretell_count" in vars(self)

    replace(kind, "__init__", init)
    replace(kind, "__len__", lambda self: len(self._walker) if ours(self) else length(self))
    replace(kind, "__getitem__", lambda self, i: sample(int(i)) if ours(self) else item(self, i))
