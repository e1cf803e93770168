"""A box for scripts: they read what is on this machine and change none of it, whatever they write with.

    namespaces   what they write lies in memory over what they read, no network, nothing they start outlives them
    landlock     writes outside of the folder for temporary files are refused, and so is TCP
    none         stand-ins of Python's functions alone, as on systems without either

The kernel decides which of them there is; `enter` takes the first that it gives.
"""

from __future__ import annotations

import os
import sys
from typing import Final, Literal, get_args

from foretell.errors import InputError, check_choice

Kind = Literal["namespaces", "landlock", "none"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
VARIABLE: Final = "FORETELL_BOX"


def enter() -> Kind:
    """From here on this process, and all it starts, is in a box; which one it is.

    With namespaces it is another process that returns: this one waits for its end, and ends alike.
    """
    wanted = os.environ.get(VARIABLE) or KINDS[0]
    check_choice(f"${VARIABLE}", wanted, KINDS, InputError)
    if sys.platform != "linux" or wanted == "none":
        return "none"
    from foretell.capture.box import landlock, namespaces

    if wanted == "namespaces" and namespaces.enter():
        return "namespaces"
    return "landlock" if landlock.enter() else "none"
