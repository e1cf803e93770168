"""Sounds that are not on this machine, by the libraries that decode them: a few seconds, at the rate that is wanted."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch

from foretell.capture.script.imports import once_imported
from foretell.capture.script.pretend import overlay
from foretell.capture.script.pretend.files.callers import reading_frame, source_of
from foretell.capture.script.pretend.files.contents import RATE, SECONDS
from foretell.capture.script.session import Session

_RATES = ("22050", "44100", "48000", "24000", "8000")


def install(session: Session) -> None:
    once_imported("soundfile", lambda module: _soundfile(session, module))
    once_imported("librosa", lambda module: _librosa(session, module))
    once_imported("torchaudio", lambda module: _torchaudio(session, module))
    once_imported("scipy.io.wavfile", lambda module: _wavfile(session, module))


def _is_missing(file: Any) -> bool:
    return isinstance(file, str | os.PathLike) and not overlay.is_there(file)


def _rate(session: Session, file: Any) -> int:
    """Of a file: that which the script names in its code or in a file of settings that it was given, or a usual one."""
    rate = RATE
    frame: Any = reading_frame()
    while frame is not None:
        wanted = {v for v in frame.f_locals.values() if isinstance(v, int)} | _settings(frame.f_locals)
        if found := next((int(r) for r in _RATES if int(r) in wanted), None):
            rate = found
            break
        frame = frame.f_back
    else:
        text = source_of(session.script.path)
        rate = next((int(r) for r in _RATES if r in text), RATE)
    session.stand_in(f"sounds in {os.path.dirname(os.fspath(file)) or '.'}", f"{SECONDS} s at {rate:,} Hz")
    return rate


def _settings(values: dict[str, Any]) -> set[Any]:
    """Numbers of the object that a method belongs to, and of settings that it was given."""
    found: set[Any] = set()
    for value in list(values.values()):
        inner = value if isinstance(value, dict) else getattr(value, "__dict__", None)
        if isinstance(inner, dict) and len(inner) < 200:
            found |= {v for v in inner.values() if type(v) is int}
    return found


def _soundfile(session: Session, module: Any) -> None:
    read, info = module.read, module.info

    def samples(file: Any, *args: Any, **kwargs: Any) -> Any:
        if not _is_missing(file):
            return read(file, *args, **kwargs)
        rate = _rate(session, file)
        shape = (rate * SECONDS, 1) if kwargs.get("always_2d") else (rate * SECONDS,)
        return np.full(shape, 0.01, kwargs.get("dtype", "float64")), rate

    def about(file: Any, *args: Any, **kwargs: Any) -> Any:
        if not _is_missing(file):
            return info(file, *args, **kwargs)
        return _About(_rate(session, file))

    module.read, module.info = samples, about


class _About:
    """What libraries say of a sound before they read it."""

    def __init__(self, rate: int) -> None:
        self.samplerate = self.sample_rate = rate
        self.frames = self.num_frames = rate * SECONDS
        self.channels = self.num_channels = 1
        self.duration = float(SECONDS)
        self.bits_per_sample, self.encoding, self.format, self.subtype = 16, "PCM_S", "WAV", "PCM_16"


def _librosa(session: Session, module: Any) -> None:
    load = module.load

    def samples(path: Any, *, sr: Any = 22050, mono: bool = True, duration: Any = None, **kwargs: Any) -> Any:
        if not _is_missing(path):
            return load(path, sr=sr, mono=mono, duration=duration, **kwargs)
        rate = int(sr) if sr else _rate(session, path)
        session.stand_in(f"sounds in {os.path.dirname(os.fspath(path)) or '.'}", f"{SECONDS} s at {rate:,} Hz")
        return np.full(int(rate * (duration or SECONDS)), 0.01, np.float32), rate

    module.load = samples
    if hasattr(module, "core"):
        module.core.load = samples


def _torchaudio(session: Session, module: Any) -> None:
    load = module.load

    def samples(uri: Any, frame_offset: int = 0, num_frames: int = -1, *args: Any, **kwargs: Any) -> Any:
        if not _is_missing(uri):
            return load(uri, frame_offset, num_frames, *args, **kwargs)
        rate = _rate(session, uri)
        return torch.full((1, num_frames if num_frames > 0 else rate * SECONDS), 0.01), rate

    module.load = samples
    module.info = lambda uri, *args, **kwargs: _About(_rate(session, uri))


def _wavfile(session: Session, module: Any) -> None:
    read = module.read

    def samples(filename: Any, *args: Any, **kwargs: Any) -> Any:
        if not _is_missing(filename):
            return read(filename, *args, **kwargs)
        rate = _rate(session, filename)
        return rate, np.full(rate * SECONDS, 100, np.int16)

    module.read = samples
