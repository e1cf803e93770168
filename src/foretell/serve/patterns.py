"""What names and ids of the service look like, as patterns for programs and in words for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

LIBRARIES: Final = ("timm", "torchvision", "hf")
HASH: Final = r"^[0-9a-f]{64}$"
ID: Final = r"^[0-9a-f]{32}$"
PROFILE: Final = r"^[a-z0-9][a-z0-9._-]{0,63}$"
NETWORK: Final = rf"^({'|'.join(LIBRARIES)})/[A-Za-z0-9][A-Za-z0-9._-]{{0,199}}$"
SETTING: Final = r"^[a-z][a-z0-9_]{0,39}$"
VALUE: Final = r"^[A-Za-z0-9_][A-Za-z0-9_.,:+-]{0,99}$"

_WORDS: Final[Mapping[str, str]] = {
    HASH: "it is no hash of a graph, which has 64 digits of 0-9 and a-f; a link may have been cut short",
    ID: "it is no id, which has 32 digits of 0-9 and a-f; a link may have been cut short",
    PROFILE: "it is no name of a profile: lower-case letters, digits, . _ and -, at most 64",
    NETWORK: f"it names no network: write it like torchvision/resnet50, after one of {', '.join(LIBRARIES)}",
    SETTING: "it is no name of a setting, like image_size",
    VALUE: "it is no value of a setting: letters, digits and _ . , : + -, at most 100",
}


def words_of(error: Mapping[str, Any]) -> str:
    """What pydantic found wrong; a pattern is said in words."""
    pattern = error.get("ctx", {}).get("pattern")
    return _WORDS.get(str(pattern), str(error["msg"]))
