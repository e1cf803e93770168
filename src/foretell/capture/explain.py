"""What went wrong in the user's code, for the user."""

from __future__ import annotations

import os
import traceback

from foretell.capture.reads import OWN, is_library

_NEXT = {
    "workload": "Run the same step on the CPU with plain PyTorch to debug it, then ask again.",
    "script": "foretell --debug shows the whole traceback.",
}

# They run the user's functions, and go on with what these return.
_CALLERS = ("capture/fallback.py", "capture/script/", "capture/step.py", "capture/trace.py", "sources/resolve.py")


def explain(error: BaseException, by: str = "workload") -> str:
    """A failure in the user's code, with the traceback trimmed to the user's own frames; all of it when debugging."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not is_library(f.filename)]
    lines = "".join(traceback.format_list(frames[-6:])).rstrip()
    notes = "".join(f"\n{note}" for note in getattr(error, "__notes__", ()) if isinstance(note, str))
    where = f"\nIn your code:\n{lines}" if lines else ""
    return f"the {by} failed in its own code with {_named(error)}{notes}{where}\n{_NEXT[by]}{traceback_of(error)}"


def is_ours(error: BaseException) -> bool:
    """Whether Foretell's own code failed. What it raises on purpose is in torch's place, and the caller's to hear."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames or not isinstance(error, Exception) or isinstance(error, MemoryError | RecursionError):
        return False
    own = frames[-1].filename.removeprefix(OWN).replace(os.sep, "/")
    calls_users = own.startswith(_CALLERS)  # with arguments it does not take, perhaps
    return frames[-1].filename.startswith(OWN) and not calls_users and not (frames[-1].line or "").startswith("raise")


def own_failure(error: BaseException, by: str) -> str:
    return (
        f"Foretell itself failed with {_named(error)} while it captured the {by}. Your code is not to blame: please report it, "
        f"with the traceback that --debug shows.{traceback_of(error)}"
    )


def _named(error: BaseException) -> str:
    message = words_of(error).split("\n\n")[0][:1000] or "(it has no message; its last line is below)"
    return f"{type(error).__name__}: {message}"


def traceback_of(error: BaseException) -> str:
    """All of it, when debugging."""
    if os.environ.get("FORETELL_DEBUG", "0") in ("", "0"):
        return ""
    return "\nThe whole traceback:\n" + "".join(traceback.format_exception(error)).rstrip()


def words_of(error: BaseException) -> str:
    """The message of an exception, which may be the user's own and fail to say."""
    try:
        return str(error).strip()
    except Exception as failure:
        return f"(its message cannot be read: {type(failure).__name__})"
