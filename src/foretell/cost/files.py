"""Files of a fitted model: arrays with what they are about, checksums, and errors that end in what to do."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from foretell.errors import ModelError
from foretell.limits import check_limit, read_bytes, read_json

CHECKSUMS: Final = "checksums.json"  # of every other file of a model's folder, by its path there
Arrays = Mapping[str, npt.NDArray[Any]]


def save_arrays(path: Path, arrays: Arrays, *, version: int, **about: str) -> None:
    from safetensors.numpy import save

    path.parent.mkdir(parents=True, exist_ok=True)
    dense = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    path.write_bytes(save(dense, metadata={"version": str(version), **about}))


def load_arrays(path: Path, *, version: int) -> tuple[Arrays, Mapping[str, str]]:
    """The arrays, and what was saved about them. No code of a file runs."""
    from safetensors import safe_open

    check_limit("bytes of a file of arrays", path.stat().st_size)
    with safe_open(path, framework="numpy") as file:
        about = file.metadata() or {}
        if int(about["version"]) > version:
            raise ModelError(
                f"{path} has format {about['version']}, this Foretell reads up to {version}. "
                "Upgrade with: pip install -U foretell"
            )
        return {name: file.get_tensor(name) for name in file.keys()}, about  # noqa: SIM118  (it is no mapping)


def seal(folder: Path) -> None:
    """Write down the checksums of a model that is complete."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != CHECKSUMS)
    sums = {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    (folder / CHECKSUMS).write_text(json.dumps(sums, indent=2) + "\n")


def check_seal(folder: Path) -> None:
    """Refuse a model with a file that changed since it was complete; one without checksums is older than they are."""
    if not (folder / CHECKSUMS).is_file():
        return
    with reading(folder / CHECKSUMS, "checksums of a model"):
        sums = dict(read_json(folder / CHECKSUMS))
    for name, known in sums.items():
        if ".." in name or name.startswith("/"):
            raise ModelError(f"{folder / CHECKSUMS} names {name!r}, which is no file of the model.")
        with reading(folder / name, "part of the model that its checksums name"):
            found = hashlib.sha256(read_bytes(folder / name, "bytes of a file of arrays")).hexdigest()
        if found != known:
            raise ModelError(
                f"{folder / name} is damaged, or was changed after the model was fitted: its checksum is not the one in "
                f"{CHECKSUMS}. Restore the folder from a copy, or fit it anew: foretell fit"
            )


def check_numbers(what: str, numbers: object, *, dims: int = 1, least: float = -1e6, most: float = 1e6) -> None:
    """Refuse what is not an array of so many dimensions, each of its numbers between two bounds."""
    array = np.asarray(numbers)
    if array.ndim != dims or array.dtype.kind not in "iuf" or not np.all((array >= least) & (array <= most)):
        raise ValueError(f"{what} is not a number from {least:g} to {most:g}, or not all of them are")


@contextmanager
def reading(path: Path, what: str) -> Iterator[None]:
    """Whatever a stranger's file makes go wrong is an error about that file."""
    try:
        yield
    except ModelError:
        raise
    except Exception as error:  # the formats' own errors have no common type
        raise ModelError(
            f"{path} holds no {what} ({type(error).__name__}: {error}). Fit one with: foretell fit"
        ) from error
