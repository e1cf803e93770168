"""Volumes, clouds of points and meshes that are not on this machine, as the libraries that read them give them."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from foretell.capture.as_gpu.patches import replace
from foretell.capture.script.imports import once_imported
from foretell.capture.script.pretend import overlay
from foretell.capture.script.session import Session

VOLUME: Final = (240, 240, 155)  # of a head, as BraTS has them
_SLICE: Final = (512, 512)
_POINTS: Final = 16_384  # of a cloud
_COLOURS: Final = ("red", "green", "blue")


def install(session: Session) -> None:
    volume = "{} × {} × {}".format(*VOLUME)
    for library, owner, name, make, what in (
        ("nibabel", "", "load", _volume_of_nibabel, volume),
        ("SimpleITK", "", "ReadImage", _volume_of_simpleitk, volume),
        ("medpy.io", "", "load", _volume_of_medpy, volume),
        ("nrrd", "", "read", lambda module, *_: (np.zeros(VOLUME, np.int16), {}), volume),
        ("pydicom", "", "dcmread", _slice, "{} × {}".format(*_SLICE)),
        ("plyfile", "PlyData", "read", _cloud, f"{_POINTS:,} points"),
        ("trimesh", "", "load", _mesh, "a sphere"),
        ("trimesh", "", "load_mesh", _mesh, "a sphere"),
        ("open3d.io", "", "read_point_cloud", _cloud_of_open3d, f"{_POINTS:,} points"),
    ):
        once_imported(library, lambda m, o=owner, n=name, k=make, w=what: _read(session, m, o, n, k, w))  # type: ignore[misc]


def _read(session: Session, module: Any, owner: str, name: str, make: Callable[..., Any], what: str) -> None:
    """Let a function of a library make what is missing."""
    place = getattr(module, owner) if owner else module
    read: Callable[..., Any] | None = getattr(place, name, None)
    if read is None:
        return

    def either(file: Any, *args: Any, **kwargs: Any) -> Any:
        first = file[0] if isinstance(file, list | tuple) and file else file
        if not isinstance(first, str | os.PathLike) or overlay.is_there(first):
            return read(file, *args, **kwargs)
        session.stand_in(f"{name} of {os.path.dirname(os.fspath(first)) or '.'}", what)
        return make(module, file, *args, **kwargs)

    replace(place, name, staticmethod(either) if owner else either)


def _volume_of_nibabel(module: Any, *_: Any, **__: Any) -> Any:
    return module.Nifti1Image(np.zeros(VOLUME, np.float32), np.eye(4))


def _volume_of_simpleitk(module: Any, *_: Any, **__: Any) -> Any:
    return module.GetImageFromArray(np.zeros(VOLUME[::-1], np.int16))


def _volume_of_medpy(module: Any, *_: Any, **__: Any) -> Any:
    around = module.Header(spacing=(1.0, 1.0, 1.0))
    return np.zeros(VOLUME, np.int16), around


def _slice(module: Any, *_: Any, **__: Any) -> Any:
    """As a scanner of computed tomography writes it."""
    made = module.Dataset()
    made.Rows, made.Columns, made.BitsAllocated, made.BitsStored, made.HighBit = *_SLICE, 16, 16, 15
    made.SamplesPerPixel, made.PixelRepresentation, made.PhotometricInterpretation = 1, 1, "MONOCHROME2"
    made.RescaleSlope, made.RescaleIntercept, made.SliceThickness, made.InstanceNumber = 1, 0, 1, 1
    made.PixelSpacing, made.ImagePositionPatient = [1, 1], [0, 0, 0]
    made._pixel_array, made._pixel_id = np.zeros(_SLICE, np.int16), {}
    type(made).pixel_array = property(lambda self: self._pixel_array)
    return made


def _points() -> Any:
    """On a unit cube, so that no two are the same."""
    return np.random.default_rng(0).random((_POINTS, 3), np.float32)


def _cloud(module: Any, *_: Any, **__: Any) -> Any:
    points = _points()
    numbers = [(axis, "f4") for axis in ("x", "y", "z", "nx", "ny", "nz")]
    vertices = np.zeros(_POINTS, [*numbers, *((colour, "u1") for colour in _COLOURS), ("label", "i4")])
    for at, axis in enumerate("xyz"):
        vertices[axis] = points[:, at]
    faces = np.empty(_POINTS - 2, [("vertex_indices", "i4", (3,))])
    faces["vertex_indices"] = np.arange(_POINTS - 2)[:, None] + np.arange(3)
    describe = module.PlyElement.describe
    return module.PlyData([describe(vertices, "vertex"), describe(faces, "face")])


def _mesh(module: Any, *_: Any, **__: Any) -> Any:
    return module.creation.icosphere(subdivisions=4)


def _cloud_of_open3d(module: Any, *_: Any, **__: Any) -> Any:
    import open3d  # type: ignore[import-not-found]

    points = open3d.geometry.PointCloud()
    points.points = points.colors = points.normals = open3d.utility.Vector3dVector(_points())
    return points
