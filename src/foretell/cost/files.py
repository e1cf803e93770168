"""Files of arrays, with what they are about, and errors on strangers' files that end in what to do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from foretell.errors import ModelError
from foretell.limits import check_limit, check_plain

Arrays = Mapping[str, npt.NDArray[Any]]


def save_arrays(path: Path, arrays: Arrays, *, version: int, **about: str) -> None:
    from safetensors.numpy import save

    path.parent.mkdir(parents=True, exist_ok=True)
    dense = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    path.write_bytes(save(dense, metadata={"version": str(version), **about}))


def load_arrays(path: Path, *, version: int) -> tuple[Arrays, Mapping[str, str]]:
    """The arrays, and what was saved about them. No code of a file runs."""
    from safetensors import safe_open

    check_limit("bytes of a file of arrays", check_plain(path))
    with safe_open(path, framework="numpy") as file:
        about = file.metadata() or {}
        if int(about["version"]) > version:
            raise ModelError(
                f"{path} has format {about['version']}, this Foretell reads up to {version}. "
                "Upgrade with: pip install -U foretell"
            )
        return {name: file.get_tensor(name) for name in file.keys()}, about  # noqa: SIM118  (it is no mapping)


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
