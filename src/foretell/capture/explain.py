"""What went wrong in the user's code, for the user."""

from __future__ import annotations

import traceback

from foretell.capture.reads import is_library


def explain(error: BaseException) -> str:
    """A failure in the user's code, with the traceback trimmed to the user's own frames."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not is_library(f.filename)]
    lines = "".join(traceback.format_list(frames[-6:])).rstrip()
    message = words_of(error).split("\n\n")[0][:1000]
    notes = "".join(f"\n{note}" for note in getattr(error, "__notes__", ()) if isinstance(note, str))
    where = f"\nIn your code:\n{lines}" if lines else ""
    return (
        f"the workload failed in its own code with {type(error).__name__}: {message}{notes}{where}\n"
        "Run the same step on the CPU with plain PyTorch to debug it, then ask again."
    )


def words_of(error: BaseException) -> str:
    """The message of an exception, which may be the user's own and fail to say."""
    try:
        return str(error).strip()
    except Exception as failure:
        return f"(its message cannot be read: {type(failure).__name__})"
