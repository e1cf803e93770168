"""Videos that are not on this machine, as decord and PyAV decode them."""

from __future__ import annotations

import fractions
import os
import types
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from foretell.capture.script.imports import once_imported
from foretell.capture.script.pretend import overlay
from foretell.capture.script.pretend.files.sizes import size_of
from foretell.capture.script.session import Session

FRAMES: Final = 256  # of a video
RATE: Final = 25.0


def install(session: Session) -> None:
    once_imported("decord", lambda module: _read_by_decord(session, module))
    once_imported("av", lambda module: _opened_by_pyav(session, module))


def _note(session: Session, file: Any) -> tuple[int, int]:
    """Width and height of a video that is missing."""
    width, height = size_of(os.fspath(file))
    session.stand_in(f"videos in {os.path.dirname(os.fspath(file)) or '.'}", f"{FRAMES} frames {width} × {height}")
    return width, height


def _read_by_decord(session: Session, decord: Any) -> None:
    make = decord.VideoReader

    class VideoReader:
        """As decord's: its frames are black, and of the width and height that it was asked for."""

        def __init__(self, size: tuple[int, int]) -> None:
            self._size, self._at = size, 0

        def __len__(self) -> int:
            return FRAMES

        def __getitem__(self, index: Any) -> Any:
            if isinstance(index, slice):
                return self.get_batch(range(*index.indices(FRAMES)))
            if not -FRAMES <= index < FRAMES:
                raise IndexError(index)
            return decord.bridge.bridge_out(decord.nd.array(self._blank(1)[0]))

        def get_batch(self, indices: Any) -> Any:
            return decord.bridge.bridge_out(decord.nd.array(self._blank(len(indices))))

        def _blank(self, count: int) -> Any:
            width, height = self._size
            return np.zeros((count, height, width, 3), np.uint8)

        def next(self) -> Any:
            self._at += 1
            if self._at > FRAMES:
                raise StopIteration
            return self[0]

        def get_avg_fps(self) -> float:
            return RATE

        def get_key_indices(self) -> list[int]:
            return list(range(0, FRAMES, 12))

        def get_frame_timestamp(self, indices: Any) -> Any:
            starts = np.atleast_1d(np.asarray(indices, np.float64)) / RATE
            return np.stack([starts, starts + 1 / RATE], -1)

        def seek(self, position: int) -> None:
            self._at = position

        seek_accurate = skip_frames = seek

    def either(uri: Any, ctx: Any = None, width: int = -1, height: int = -1, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(uri, str | os.PathLike) or overlay.is_there(uri):
            return make(uri, ctx or decord.cpu(0), width, height, *args, **kwargs)
        own = _note(session, uri)
        return VideoReader((width if width > 0 else own[0], height if height > 0 else own[1]))

    decord.VideoReader = either


def _opened_by_pyav(session: Session, av: Any) -> None:
    read = av.open

    def either(file: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(file, str | os.PathLike) or overlay.is_there(file) or "w" in (*args, kwargs.get("mode")):
            return read(file, *args, **kwargs)
        return _Container(av, *_note(session, file))

    av.open = either


class _Container:
    """As PyAV's, with one stream of pictures and none of sound."""

    def __init__(self, av: Any, width: int, height: int) -> None:
        self._av, self._blank = av, np.zeros((height, width, 3), np.uint8)
        base = fractions.Fraction(1, round(RATE))
        stream = types.SimpleNamespace(
            type="video", index=0, frames=FRAMES, duration=FRAMES, time_base=base, average_rate=1 / base, base_rate=1 / base,
            guessed_rate=1 / base, width=width, height=height, thread_type="AUTO", start_time=0,
            codec_context=types.SimpleNamespace(width=width, height=height, thread_type="AUTO"),
        )  # fmt: skip
        self.streams = _Streams([stream])
        self.duration = round(FRAMES / RATE * 1_000_000)

    def decode(self, *streams: Any, **kinds: Any) -> Iterator[Any]:
        for at in range(FRAMES if "audio" not in kinds else 0):
            frame = self._av.VideoFrame.from_ndarray(self._blank, format="rgb24")
            frame.pts, frame.time_base = at, self.streams.video[0].time_base
            yield frame

    def seek(self, *args: Any, **kwargs: Any) -> None:
        return None

    close = seek

    def __enter__(self) -> _Container:
        return self

    def __exit__(self, *_: object) -> None:
        return None


class _Streams(list[Any]):
    @property
    def video(self) -> list[Any]:
        return list(self)

    @property
    def audio(self) -> list[Any]:
        return []

    def get(self, *streams: Any, **kinds: Any) -> list[Any]:
        return [] if "audio" in kinds and "video" not in kinds else list(self)
