"""Volumes, clouds of points, videos and databases that are not here, by the libraries that read them."""

from __future__ import annotations

import io
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import foretell
from foretell.capture.script.pretend import former_packaging, overlay
from foretell.capture.script.pretend.files import as_used, frames, packed_rows, solids, stores
from foretell.capture.script.session import Session


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Session:
    monkeypatch.setattr(overlay, "is_there", lambda path: Path(path).exists())
    return Session(foretell.Script(path="train.py"))


def test_a_volume_that_is_here_is_read_and_another_is_made(session: Session, tmp_path: Path) -> None:
    (tmp_path / "here.nii").touch()
    library = types.SimpleNamespace(load=lambda file: "read", Nifti1Image=lambda values, affine: values)
    solids._read(session, library, "", "load", solids._volume_of_nibabel, "240 × 240 × 155")
    assert library.load(tmp_path / "here.nii") == "read"
    assert library.load("/nowhere/brain.nii.gz").shape == (240, 240, 155)


def test_a_cloud_of_points_has_what_readers_of_it_take(session: Session) -> None:
    class PlyData:
        def __init__(self, parts: list[Any]) -> None:
            self.parts = parts

        @staticmethod
        def read(file: Any) -> Any:
            raise FileNotFoundError(file)

    element = types.SimpleNamespace(describe=lambda values, name: (name, values))
    library = types.SimpleNamespace(PlyData=PlyData, PlyElement=element)
    solids._read(session, library, "PlyData", "read", solids._cloud, "points")
    cloud: Any = PlyData.read("/nowhere/room.ply")
    parts = dict(cloud.parts)
    assert parts["vertex"]["x"].shape == (16_384,)
    assert parts["face"]["vertex_indices"].shape == (16_382, 3)


def test_a_video_has_frames_of_the_size_that_is_asked_for(session: Session) -> None:
    same = types.SimpleNamespace(bridge_out=lambda value: value, array=lambda value: value)
    decord: Any = types.SimpleNamespace(VideoReader=None, bridge=same, nd=same, cpu=lambda number: number)
    frames._read_by_decord(session, decord)
    video = decord.VideoReader("/nowhere/run.mp4", num_threads=1, width=64, height=48)
    assert len(video) == frames.FRAMES
    assert video.get_batch([3, 5]).shape == (2, 48, 64, 3)
    assert decord.VideoReader("/nowhere/run.mp4")[-1].shape == (375, 500, 3)
    with pytest.raises(IndexError):
        video[frames.FRAMES]


def test_keys_of_a_database_say_how_large_its_pictures_are() -> None:
    database = stores._Database("ffhq")
    sizes = {
        key: Image.open(io.BytesIO(database.get(key.encode()))).size for key in ("256-00001", "hr_128_00007", "00007")
    }
    assert sizes == {"256-00001": (256, 256), "hr_128_00007": (128, 128), "00007": (500, 375)}


def test_a_row_of_a_database_is_unpacked_by_another_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(as_used, "_LIMITS", {})  # what rows have been compared with in other tests of this process
    reader: Any = types.SimpleNamespace(__name__="msgpack", loads=lambda packed: "read")
    packed_rows._read(reader, ("loads", "unpackb"))
    database = stores._Database("faces")
    assert reader.loads(b"0") == "read"
    assert reader.loads(database.get(b"__len__")) == len(reader.loads(database.get(b"__keys__"))) == 2048
    row = reader.loads(database.get(reader.loads(database.get(b"__keys__"))[7]))
    assert Image.open(io.BytesIO(row[0])).size == (500, 375)
    image, label = row
    assert (image, int(label)) == (row[0], 0)
    with pytest.raises(AttributeError):
        reader.unpackb(b"0")


def test_a_place_for_a_database_is_none(tmp_path: Path) -> None:
    assert stores._is_empty(tmp_path)
    (tmp_path / "data.mdb").write_bytes(np.zeros(8).tobytes())
    assert not stores._is_empty(tmp_path)


def test_a_version_that_an_installation_writes_is_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    own = types.ModuleType("own_package")
    own.__file__ = str(tmp_path / "own_package" / "__init__.py")
    monkeypatch.setitem(sys.modules, "own_package", own)
    assert former_packaging._is_written("own_package.version")
    assert not former_packaging._is_written("own_package.models")
    assert not former_packaging._is_written("torch._version")
    written: Any = former_packaging._Written("own_package.version")
    assert (written.__version__, written.version_info, written.__gitsha__) == ("0.0.0", (0, 0, 0), "unknown")
