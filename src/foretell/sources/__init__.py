"""Sources: names, files and configurations that people have, as Workloads."""

from __future__ import annotations

import os

from foretell.errors import SourceError


def check_source(source: str) -> None:
    """Refuse what the system cannot even look for: too long, with null bytes, behind a folder that is closed."""
    try:
        os.stat(source)
    except (FileNotFoundError, NotADirectoryError):
        return  # a name, perhaps
    except (OSError, ValueError) as problem:
        why = getattr(problem, "strerror", None) or str(problem)
        raise SourceError(
            f"no source {source[:80]!r}{'…' if len(source) > 80 else ''}: {why}. Give a name, or the path of a file."
        ) from None
