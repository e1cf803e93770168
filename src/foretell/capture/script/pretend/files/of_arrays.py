"""Pictures that are made of arrays nobody knows: those have bytes, of three channels, or of one where they are masks."""

from __future__ import annotations

import re
from typing import Any, Final

import numpy as np

from foretell.capture.as_gpu.patches import replace
from foretell.capture.script.imports import once_imported
from foretell.capture.script.pretend.files.guessed import Guessed
from foretell.capture.script.session import Session
from foretell.capture.script.shapes import picture_of

_MASKS: Final = re.compile(r"mask|label|seg|(^|_)gt|depth|gr[ae]y", re.IGNORECASE)


def install(session: Session) -> None:
    once_imported("PIL.Image", lambda module: _look(module, session))


def _look(module: Any, session: Session) -> None:
    make = module.fromarray

    def fromarray(obj: Any, *args: Any, **kwargs: Any) -> Any:
        about = obj.about if isinstance(obj, Guessed) else None
        if about is not None and session.guesses.made[about]["dtype"] == "float32" and not _MASKS.search(about):
            before = max(len(session.guesses.made[about]["shape"]) - np.ndim(obj), 0)
            session.guesses.contradict(about, picture_of(session.guesses, about, before))
        return make(obj, *args, **kwargs)

    replace(module, "fromarray", fromarray)
