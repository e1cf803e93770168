"""What went wrong in the user's code, for the user."""

from __future__ import annotations

import os
import traceback

from foretell.capture.reads import is_library

_NEXT = {
    "workload": "Run the same step on the CPU with plain PyTorch to debug it, then ask again.",
    "script": "It ran on an accelerator that is not there: --debug shows the whole traceback.",
}


def explain(error: BaseException, by: str = "workload") -> str:
    """A failure in the user's code, with the traceback trimmed to the user's own frames; all of it when debugging."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not is_library(f.filename)]
    lines = "".join(traceback.format_list(frames[-6:])).rstrip()
    message = words_of(error).split("\n\n")[0][:1000] or "(it has no message; its last line is below)"
    notes = "".join(f"\n{note}" for note in getattr(error, "__notes__", ()) if isinstance(note, str))
    where = f"\nIn your code:\n{lines}" if lines else ""
    whole = ""
    if os.environ.get("FORETELL_DEBUG", "0") not in ("", "0"):
        whole = "\nThe whole traceback:\n" + "".join(traceback.format_exception(error)).rstrip()
    return f"the {by} failed in its own code with {type(error).__name__}: {message}{notes}{where}\n{_NEXT[by]}{whole}"


def words_of(error: BaseException) -> str:
    """The message of an exception, which may be the user's own and fail to say."""
    try:
        return str(error).strip()
    except Exception as failure:
        return f"(its message cannot be read: {type(failure).__name__})"
